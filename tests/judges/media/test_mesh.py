"""Judges of meshes: known answers on spheres, boxes and planes; trimesh as a second opinion."""

import numpy as np
import pytest
import torch
import trimesh

from quintet.engine.errors import RunError
from quintet.judges.media import mesh as meshes
from quintet.judges.media.mesh import Mesh
from quintet.judges.receipt import Receipt, of_sets
from quintet.media.errors import BadFile
from quintet.media.meshes.files import write_mesh

SETS = [meshes.Coverage, meshes.MinimumMatching, meshes.NearestNeighbour]


def mesh_of(shape) -> Mesh:
    return Mesh(np.array(shape.vertices, np.float64), np.array(shape.faces, np.int64))


def ball(radius=0.5) -> Mesh:
    return mesh_of(trimesh.creation.icosphere(subdivisions=3, radius=radius))


def box(*extents) -> Mesh:
    return mesh_of(trimesh.creation.box(extents or (1, 1, 1)))


def moved(mesh, *by) -> Mesh:
    return Mesh(mesh.vertices + np.array(by), mesh.faces)


def rough(mesh, size) -> Mesh:
    noise = np.random.default_rng(1).normal(size=mesh.vertices.shape)
    return Mesh(mesh.vertices + size * noise, mesh.faces)


def value(judge, reference, output) -> float:
    (row,) = judge().rows([reference], [output])
    return float(row)


@pytest.fixture
def fewer_points(monkeypatch):
    monkeypatch.setattr(meshes, "PAIR_POINTS", 512)


SQUARE = Mesh(
    np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], float), np.array([[0, 1, 2], [0, 2, 3]])
)
DISTANCES = [meshes.Chamfer, meshes.Hausdorff]


# -- points ---------------------------------------------------------------------------------


def test_points_lie_on_the_surface_and_are_spread_by_area():
    mesh = box(1, 1, 4)
    points = meshes.sample(mesh, 20_000)
    shape = trimesh.Trimesh(*mesh, process=False)
    around = trimesh.proximity.closest_point_naive(shape, points.positions[:50].numpy())
    assert around[1].max() < 1e-12
    at_ends = (points.positions[:, 2].abs() > 2 - 1e-12).double().mean()
    assert float(at_ends) == pytest.approx(2 / 18, abs=0.01)
    assert torch.allclose(points.normals.norm(dim=1), torch.ones(20_000, dtype=torch.float64))


def test_normals_point_as_those_of_trimesh():
    mesh = ball()
    points = meshes.sample(mesh, 500)
    outward = torch.nn.functional.normalize(points.positions, dim=1)
    assert float((points.normals * outward).sum(1).min()) > 0.98


def test_nearest_points_are_those_of_all_comparisons_across_chunks():
    draw = np.random.default_rng(0)
    a, b = draw.random((2500, 3)), draw.random((300, 3))
    distances, index = meshes.nearest(torch.from_numpy(a), torch.from_numpy(b))
    table = np.linalg.norm(a[:, None] - b, axis=-1)
    np.testing.assert_allclose(distances.numpy(), table.min(1), rtol=1e-13)
    assert (index.numpy() == table.argmin(1)).all()


# -- pairs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", DISTANCES)
@pytest.mark.parametrize("mesh", [ball(), box(), SQUARE])
def test_a_mesh_has_no_distance_from_itself(judge, mesh, fewer_points):
    assert value(judge, mesh, mesh) == 0


@pytest.mark.parametrize("judge", DISTANCES)
def test_a_plane_moved_along_its_normal_is_as_far_as_it_was_moved(judge, fewer_points):
    assert value(judge, SQUARE, moved(SQUARE, 0, 0, 0.3)) == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize("judge", DISTANCES)
def test_distances_of_spheres_in_spheres_are_differences_of_radii(judge):
    assert value(judge, ball(0.5), ball(0.4)) == pytest.approx(0.1, abs=0.003)


@pytest.mark.parametrize("judge", DISTANCES)
def test_distances_are_symmetric_and_grow_with_noise(judge, fewer_points):
    mesh = ball()
    values = [value(judge, mesh, rough(mesh, size)) for size in (0, 0.01, 0.03, 0.1)]
    assert values == sorted(values)
    assert values[0] < values[1]
    other = rough(mesh, 0.03)
    assert value(judge, mesh, other) == pytest.approx(value(judge, other, mesh), rel=1e-12)


def test_the_same_surface_in_other_triangles_is_at_the_distance_of_its_gaps():
    finer = mesh_of(trimesh.Trimesh(*ball(), process=False).subdivide())
    assert value(meshes.Chamfer, ball(), finer) == pytest.approx(0.012, abs=0.001)


def test_hausdorff_sees_a_spike_that_the_mean_hardly_does():
    spike = trimesh.util.concatenate(
        [trimesh.creation.box((1, 1, 1)), trimesh.creation.box((0.1, 0.1, 2))]
    )
    assert value(meshes.Hausdorff, box(), mesh_of(spike)) == pytest.approx(0.5, abs=0.03)
    assert value(meshes.Chamfer, box(), mesh_of(spike)) < 0.05


def test_the_chamfer_distance_is_near_the_distance_to_the_surface_of_trimesh():
    """Points have gaps, a surface has none: the distance to points is slightly larger."""
    one, other = ball(), box(0.4, 0.4, 0.4)
    ways = []
    for a, b in ((one, other), (other, one)):
        points = meshes.sample(a, 400).positions.numpy()
        shape = trimesh.Trimesh(*b, process=False)
        ways.append(trimesh.proximity.closest_point_naive(shape, points)[1].mean())
    assert value(meshes.Chamfer, one, other) == pytest.approx(sum(ways) / 2, rel=0.03)


def test_normals_of_a_mesh_agree_with_themselves_whatever_their_orientation():
    mesh = ball()
    inside_out = Mesh(mesh.vertices, mesh.faces[:, ::-1])
    assert value(meshes.NormalConsistency, mesh, mesh) == pytest.approx(1)
    assert value(meshes.NormalConsistency, mesh, inside_out) > 0.98
    upright = Mesh(SQUARE.vertices[:, [2, 0, 1]], SQUARE.faces)
    assert value(meshes.NormalConsistency, SQUARE, upright) == pytest.approx(0, abs=1e-12)


def test_normals_agree_less_the_rougher_the_surface(fewer_points):
    mesh = ball()
    values = [
        value(meshes.NormalConsistency, mesh, rough(mesh, size)) for size in (0, 0.005, 0.02, 0.1)
    ]
    assert values == sorted(values, reverse=True)


def test_edges_are_counted_of_the_output_alone():
    closed, cube = trimesh.creation.icosphere(subdivisions=2), box()
    assert closed.is_watertight
    assert value(meshes.ClosedEdges, SQUARE, mesh_of(closed)) == 1
    open_cube = Mesh(cube.vertices, cube.faces[1:])
    assert value(meshes.ClosedEdges, cube, open_cube) == pytest.approx(15 / 18)
    assert value(meshes.ClosedEdges, cube, SQUARE) == pytest.approx(1 / 5)


# -- sets -----------------------------------------------------------------------------------


@pytest.fixture
def few_points(monkeypatch):
    monkeypatch.setattr(meshes, "SET_POINTS", 256)


def shapes(count, shift=0.0):
    return [box(1, 0.3 + 0.6 * i / count + shift, 0.5) for i in range(count)]


def set_value(judge, references, outputs):
    one = judge()
    return one.distance(one.features(references), one.features(outputs))


def test_squared_chamfer_is_that_of_the_nearest_points():
    a, b = (np.random.default_rng(i).random((3, 60, 3)) for i in range(2))
    table = np.square(a[:, None, :, None] - b[None, :, None]).sum(-1)
    expected = table.min(3).mean(2) + table.min(2).mean(2)
    np.testing.assert_allclose(meshes.squared_chamfer(a, b), expected, atol=1e-14)
    assert meshes.squared_chamfer(a, a).diagonal().max() < 1e-14


def test_a_set_covers_and_matches_itself(few_points):
    own = shapes(6)
    assert set_value(meshes.Coverage, own, own) == 1
    assert set_value(meshes.MinimumMatching, own, own) < 1e-14
    assert set_value(meshes.NearestNeighbour, own, own) == 0  # each finds its copy


def test_one_shape_repeated_covers_one_reference(few_points):
    own = shapes(5)
    repeated = [own[2]] * 5
    assert set_value(meshes.Coverage, own, repeated) == 1 / 5
    assert set_value(meshes.MinimumMatching, own, repeated) > 1e-4


def test_other_shapes_are_told_apart_and_match_worse(few_points):
    own, others = shapes(6), [ball(0.4 + 0.01 * i) for i in range(6)]
    assert set_value(meshes.NearestNeighbour, own, others) == 1
    near = [rough(mesh, 0.01) for mesh in own]
    far = [rough(mesh, 0.1) for mesh in own]
    matching = [set_value(meshes.MinimumMatching, own, each) for each in (near, far, others)]
    assert matching == sorted(matching)


def test_shapes_in_between_are_as_near_to_either_set(few_points):
    """References and outputs alternate along a line: the nearest is of the other set."""
    assert set_value(meshes.NearestNeighbour, shapes(8), shapes(8, 0.6 / 16)) < 0.5


def test_sets_of_unequal_size_are_refused_where_that_decides(few_points):
    with pytest.raises(RunError, match="3 references and 2 outputs"):
        set_value(meshes.NearestNeighbour, shapes(3), shapes(2))


@pytest.mark.parametrize("judge", SETS)
def test_intervals_of_sets_are_over_shapes(few_points, judge):
    first, second = judge().features(shapes(8)), judge().features(shapes(8, 0.31))
    receipt = Receipt(judge.name, judge().facts(), "", meshes.preparation(), 8)
    same, other = (of_sets(judge(), first, features, receipt) for features in (first, second))
    assert same.low == pytest.approx(same.value) == same.high
    assert other.low < other.value < other.high


# -- files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".stl", ".glb"])
def test_a_mesh_is_the_same_in_every_format_at_any_place_and_scale(tmp_path, suffix):
    mesh = box(1, 0.5, 0.25)
    write_mesh(tmp_path / f"a{suffix}", mesh.vertices * 8 + [3, -2, 40], mesh.faces)
    read = meshes.read(tmp_path / f"a{suffix}")
    assert len(read.vertices) == 8
    np.testing.assert_allclose(np.abs(read.vertices).max(0), [0.5, 0.25, 0.125], atol=1e-6)
    assert value(meshes.ClosedEdges, mesh, read) == 1
    assert value(meshes.Hausdorff, mesh, read) < 0.1


def test_equal_vertices_are_one_and_faces_that_vanish_are_dropped(tmp_path):
    mesh = box()
    vertices = np.concatenate([mesh.vertices, mesh.vertices[:1]])
    faces = np.concatenate([mesh.faces, [[0, 1, 8]]])
    write_mesh(tmp_path / "a.ply", vertices, faces)
    read = meshes.read(tmp_path / "a.ply")
    assert (len(read.vertices), len(read.faces)) == (8, 12)
    assert value(meshes.ClosedEdges, mesh, read) == 1


def test_a_surface_without_area_is_refused(tmp_path):
    write_mesh(tmp_path / "line.obj", [[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1, 2]])
    with pytest.raises(BadFile, match="without area"):
        meshes.read(tmp_path / "line.obj")


@pytest.mark.parametrize("judge", meshes.JUDGES)
def test_every_judge_works_here_and_names_its_conventions(judge):
    one = judge()
    assert one.problem() is None
    assert one.medium == "mesh"
    assert one.about.endswith(".")
    assert all(isinstance(text, str) and text for text in one.facts().values())
