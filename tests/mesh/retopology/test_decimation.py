"""What retopology is compared with, and its benchmark."""

import sys
from pathlib import Path

import numpy as np
import pytest

from quintet.media.meshes.points import sample_surface
from quintet.media.meshes.remesh import voxel_remesh
from quintet.mesh import shapes
from quintet.mesh.retopology.decimation import decimate
from quintet.mesh.retopology.measures import compare

MESHES = [shapes.build(shapes.compose(number)) for number in range(8)]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import retopology

    return retopology


@pytest.mark.parametrize("noise", [0, 0.005])
def test_decimation_reaches_the_number_of_faces_and_keeps_the_shape(noise):
    clean = MESHES[2]
    vertices, faces = voxel_remesh(*clean, 40)
    before = (vertices + np.random.default_rng(0).normal(size=vertices.shape) * noise, faces)
    simple = decimate(*before, len(clean[1]))
    assert 0.9 * len(clean[1]) <= len(simple.faces) <= len(clean[1])
    assert compare(simple, clean, 1024)["chamfer"] < 0.02
    np.testing.assert_array_equal(decimate(*before, len(faces)).faces, faces)


def test_decimation_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_simplification", None)
    with pytest.raises(ImportError, match=r"pip install 'quintet\[retopology\]'"):
        decimate(*MESHES[0], 10)


@pytest.mark.parametrize("number", range(0, 8, 3))
def test_the_nearest_mesh_is_found_and_placed_in_any_unit(benchmark, number):
    vertices, faces = MESHES[number]
    points = sample_surface(vertices * 30 + 100, faces, 2048, np.random.default_rng(1)).points
    found = benchmark.NearestMesh(MESHES)(points)
    np.testing.assert_array_equal(found[1], faces)
    np.testing.assert_allclose(found[0], vertices * 30 + 100, atol=1.5)


def test_a_dense_input_has_about_the_wished_faces_and_noise(benchmark):
    vertices, faces = benchmark.dense(MESHES[0], 6000, 0.005, 0)
    assert len(faces) == pytest.approx(6000, rel=0.15)
    again = benchmark.dense(MESHES[0], 6000, 0, 0)
    side = np.ptp(again[0], axis=0).max()
    assert benchmark.dense(MESHES[0], 0, 0.005, 0) is MESHES[0]
    assert (vertices - again[0]).std() == pytest.approx(0.005 * side, rel=0.05)


def test_points_are_left_out_around_places(benchmark):
    whole = benchmark.rows_of(MESHES[0], 3000, 0)
    assert whole.shape == (3000, 6)
    holes = benchmark.rows_of(MESHES[0], 2700, 0.1)
    assert holes.shape == (2700, 6)
    remaining = {tuple(row) for row in holes}
    is_left = np.array([tuple(row) in remaining for row in whole])
    assert is_left.sum() == 2700
    places, gone = whole[:, :3], whole[~is_left, :3]
    nearest = np.linalg.norm(gone[:, None] - places, axis=-1).argsort(1)[:, :10]
    assert is_left[nearest].mean() < 0.3


def test_bars_are_numbers_or_baselines(benchmark):
    means = {
        "model": {"chamfer": 0.02, "exact": 0.6},
        "decimation": {"chamfer": 0.03, "exact": 0.1},
    }
    assert benchmark.misses(means, ["chamfer=decimation"], ["exact=0.5", "exact=decimation"]) == []
    missed = benchmark.misses(means, ["chamfer=0.01"], ["exact=0.7"])
    assert missed == ["chamfer is 0.02, not below 0.01", "exact is 0.6, not above 0.7"]
    assert benchmark.misses({"model": {"chamfer": np.nan}}, ["chamfer=1"], [])
    # Of several bars the largest counts.
    assert benchmark.misses(means, ["chamfer=0.5*decimation,3*bin"], [], {"bin": 0.01}) == []
    missed = benchmark.misses(means, ["chamfer=0.5*decimation,bin"], [], {"bin": 0.01})
    assert missed == ["chamfer is 0.02, not below 0.015"]
    with pytest.raises(SystemExit, match="length is no measure; known: chamfer, exact"):
        benchmark.misses(means, ["length=1"], [])
    assert benchmark.table(means).splitlines()[2] == "| chamfer | 0.02 | 0.03 |"


def test_scans_of_a_folder_are_inputs_and_targets(benchmark, tmp_path):
    from quintet.media.meshes.files import write_mesh

    write_mesh(tmp_path / "a.obj", *MESHES[0])
    (tmp_path / "notes.txt").write_text("none")
    [(scan, target, faces)] = benchmark.scanned(tmp_path, 300)
    assert scan is target
    assert faces == 300
    np.testing.assert_allclose(scan[0], MESHES[0][0], atol=1e-5)
