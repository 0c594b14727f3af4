"""Scans of clean meshes, and pairs of a user."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.media.meshes.files import write_mesh
from quintet.mesh import recipes
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import open_data
from quintet.mesh.geometry import undiscretise
from quintet.mesh.retopology.config import RetopologyRecipe
from quintet.mesh.retopology.data import boxed, open_scans
from quintet.mesh.retopology.scan_config import ScanConfig

CLEAN = ScanConfig(remesh=0, noise=0, holes=0)


def recipe(**changes: Any) -> RetopologyRecipe:
    base = recipes.retopology_tiny()
    model = dataclasses.replace(base.model, bins=128)
    return dataclasses.replace(base, model=model, scans=CLEAN, **changes)


def gap(item: dict[str, Any]) -> float:
    """The largest distance of a corner to the points of its item."""
    corners = undiscretise(item["codes"].long().view(-1, 3).flip(-1), 128)
    return float(torch.cdist(corners, item["points"][:, :3]).min(1).values.max())


def test_points_lie_on_the_mesh_whatever_the_augmentation() -> None:
    meshes = MeshDataConfig(max_faces=32, builtin_count=8, rotation=180, scale=0.3, shift=0.04)
    scans = open_scans(recipe(meshes=meshes), "train")
    seen = [scans.keyed(3, key) for key in (None, Key(0, 0, 3), Key(0, 1, 3), Key(0, 0, 3))]
    assert all(gap(item) < 0.25 for item in seen)  # between samples of a surface
    assert torch.equal(seen[1]["points"], seen[3]["points"])
    assert not torch.equal(seen[1]["points"], seen[2]["points"])
    for item in seen:
        points, normals = item["points"].split(3, 1)
        assert torch.allclose(normals.norm(dim=1), torch.ones(len(normals)), atol=1e-4)
        # Outward, also when mirrored: faces and normals turn together.
        corners = undiscretise(item["codes"].long().view(-1, 3, 3).flip(-1), 128)
        volume = torch.linalg.det(corners).sum()
        assert volume > 0
        assert ((points - points.mean(0)) * normals).sum() > 0


def test_a_long_mesh_is_a_window_of_its_faces() -> None:
    base = recipe()
    long = dataclasses.replace(base, model=dataclasses.replace(base.model, max_faces=6))
    whole, cut = open_scans(base, "train"), open_scans(long, "train")
    index = next(i for i in range(20) if whole.keyed(i, None)["faces"] > 10)
    codes = whole.keyed(index, None)["codes"]
    first = cut.keyed(index, None)
    assert torch.equal(first["codes"], codes[:6])
    starts = set()
    for epoch in range(30):
        key = Key(0, epoch, index)
        item, codes = cut.keyed(index, key), whole.keyed(index, key)["codes"]
        assert item["faces"] == len(codes)
        assert torch.equal(item["codes"], codes[item["first"] : item["first"] + 6])
        starts.add(item["first"] + len(item["codes"]) == len(codes))
    assert starts == {True, False}  # with the end of the mesh, and without


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Clean meshes in a place and size of their own, and their points far denser."""
    rng = np.random.default_rng(0)
    source = open_data(None, MeshDataConfig(max_faces=32, builtin_count=4), "train", 0)
    for index in range(4):
        item = source.keyed(index, None)
        vertices = item["vertices"].numpy().astype(np.float64) * 7 + [10, 20, 30]
        faces = item["faces"].numpy()
        (tmp_path / "clean/a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dense/a").mkdir(parents=True, exist_ok=True)
        write_mesh(tmp_path / f"clean/a/{index}.ply", vertices, faces)
        corners = vertices[faces[rng.integers(len(faces), size=2000)]]
        weights = rng.dirichlet(np.ones(3), 2000)
        np.save(tmp_path / f"dense/a/{index}.npy", (corners * weights[..., None]).sum(1))
    return tmp_path


def test_pairs_of_a_user_are_read_in_the_place_of_the_clean_mesh(pairs: Path) -> None:
    meshes = MeshDataConfig(max_faces=32, rotation=180, valid_fraction=0.25)
    scans = open_scans(recipe(data=str(pairs), meshes=meshes), "train")
    assert len(scans) >= 2
    for index in range(len(scans)):
        for key in (None, Key(0, 0, index)):
            item = scans.keyed(index, key)
            assert item["points"].shape == (512, 6)
            assert gap(item) < 0.4


def test_a_clean_mesh_without_its_scan_is_named(pairs: Path) -> None:
    for path in (pairs / "dense/a").iterdir():
        path.unlink()
    meshes = MeshDataConfig(max_faces=32, valid_fraction=0.25)
    scans = open_scans(recipe(data=str(pairs), meshes=meshes), "train")
    with pytest.raises(ValueError, match=r"a.\d\.ply has no file of its name in dense"):
        scans.keyed(0, None)
    (pairs / "dense/a").rmdir()
    (pairs / "dense").rmdir()
    with pytest.raises(RunError, match="none named dense"):
        open_scans(recipe(data=str(pairs), meshes=meshes), "train")


def test_validation_meshes_have_clean_samples_in_the_box_of_the_mesh() -> None:
    noisy = dataclasses.replace(recipe(), scans=ScanConfig(clean=0, noise=0.2, holes=0, remesh=0))
    source = open_data(None, noisy.meshes, "valid", 0)
    for index in range(5):
        item = open_scans(noisy, "valid").keyed(index, None)
        points = item["points"][:, :3]
        assert torch.equal(points.abs().amax(), torch.tensor(0.95))
        vertices = source.keyed(index, None)["vertices"]
        sides = vertices.amax(0) - vertices.amin(0)
        torch.testing.assert_close(points.amax(0) - points.amin(0), sides, atol=1e-5, rtol=0)
        item = open_scans(noisy, "train").keyed(index, Key(0, 0, index))
        assert gap(item) > 0.1


def test_what_is_cut_off_moves_the_box() -> None:
    points = np.array([[0, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 1.0]])
    moved, vertices = boxed(points, np.array([[1.0, 0, 0], [3, 0, 0]]))
    assert np.allclose(moved[:, 0], [-0.95, 0.95])
    assert np.allclose(vertices[:, 0], [0, 1.9])
