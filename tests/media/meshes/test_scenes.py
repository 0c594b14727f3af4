"""Collada and 3MF through the extra `meshes`, against the program that wrote the files."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import trimesh

from quintet.media.errors import BadFile, OutOfRange
from quintet.media.meshes import scenes
from quintet.media.meshes.files import count_faces, read_mesh
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import MeshFolder


@pytest.fixture(params=scenes.SUFFIXES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"box{request.param}"
    path.write_bytes(_box().export(file_type=request.param[1:]))
    return path


def _box() -> trimesh.Trimesh:
    return trimesh.creation.box(extents=(1, 2, 4))


def test_the_mesh_is_the_one_that_was_written(file: Path) -> None:
    mesh = read_mesh(file)
    np.testing.assert_allclose(np.ptp(mesh.vertices, axis=0), (1, 2, 4))
    assert len(mesh.faces) == 12
    assert count_faces(file, 100) == 12


def test_a_truncated_file_is_damaged_and_one_over_the_limit_is_not(file: Path) -> None:
    with pytest.raises(OutOfRange, match="max_file_faces = 11"):
        read_mesh(file, max_faces=11)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadFile, match="box") as raised:
        read_mesh(file)
    assert not isinstance(raised.value, OutOfRange)


@pytest.mark.parametrize(("axis", "extents"), [("Y_UP", (1, 4, 2)), ("Z_UP", (1, 2, 4))])
def test_collada_names_its_up_axis(tmp_path: Path, axis: str, extents: tuple[int, ...]) -> None:
    path = tmp_path / "box.dae"
    text = _box().export(file_type="dae").replace(b"Y_UP", axis.encode())
    assert axis.encode() in text
    path.write_bytes(text)
    np.testing.assert_allclose(np.ptp(read_mesh(path, upright=True).vertices, axis=0), extents)


def test_entities_are_refused_before_the_parser_expands_them(tmp_path: Path) -> None:
    path = tmp_path / "laughs.dae"
    path.write_bytes(b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><COLLADA>&b;</COLLADA>')
    with pytest.raises(BadFile, match="entities"):
        read_mesh(path)


def test_an_archive_is_measured_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "MAX_UNPACKED", 1_000_000)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("3D/3dmodel.model", bytes(2_000_000))
    path = tmp_path / "bomb.3mf"
    path.write_bytes(stream.getvalue())
    with pytest.raises(OutOfRange, match="unpacks to 2,000,000 bytes"):
        read_mesh(path)


def test_a_folder_takes_them_in(file: Path) -> None:
    assert len(MeshFolder(file.parent, MeshDataConfig(), "train", 0)) == 1
