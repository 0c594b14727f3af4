"""The endpoint of retopology behind a real server."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from quintet.media.meshes.files import write_mesh

pytest.importorskip("starlette", reason="needs the extra serve")
sys.path.insert(0, str(Path(__file__).parents[2] / "serve"))


def test_a_scan_is_answered_with_meshes_in_its_place(tmp_path: Path) -> None:
    from serving import export, serving

    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 3))
    cloud = io.BytesIO()
    np.save(cloud, points / np.linalg.norm(points, axis=1, keepdims=True) + 50)
    scan = ("file", "ball.npy", cloud.getvalue())
    path = "/v1/meshes/retopology"
    with serving([("clean", export("retopology", tmp_path))]) as client:
        asked = {"faces": 8, "n": 2, "seed": 3}
        files = client.files(path, asked, files=[scan])
        assert 0 < len(files) <= 2
        assert all(name.endswith(".obj") for name in files)
        corners = [
            [float(x) for x in line.split()[1:]]
            for line in files["ball.obj"].decode().splitlines()
            if line.startswith("v ")
        ]
        assert 45 < np.abs(corners).min() < np.abs(corners).max() < 55
        assert client.files(path, asked, files=[scan]) == files
        write_mesh(tmp_path / "part.ply", np.eye(3) + 49.5, np.array([[0, 1, 2]]))
        part = ("keep", "part.ply", (tmp_path / "part.ply").read_bytes())
        assert client.files(path, asked, files=[scan, part]) != files
        assert "give the scan" in client.refusal(400, path, {"faces": 8})
        assert "faces" in client.refusal(400, path, {"faces": 10**6}, files=[scan])
        said = client.refusal(400, path, asked, files=[("file", "a.npy", b"no points")])
        assert "a.npy" in said
