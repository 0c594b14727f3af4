"""`quintet train` and `quintet sample` of retopology, as a user calls them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.media.meshes.files import read_mesh, write_mesh

SMALL = [
    *("--device", "cpu", "--workers", 0, "--batch-size", 2, "--meshes.builtin-count", 8),
    *("--meshes.valid-limit", 2, "--model.dim", 32, "--model.layers", 1, "--model.heads", 2),
    *("--model.points", 64, "--model.latents", 8, "--generation.count", 1),
    *("--steps", 2, "--evaluate-every", 2, "--save-every", 2),
]

FEW = ["--faces", 12, "--format", "glb"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from quintet.cli import main

    path = tmp_path_factory.mktemp("retopology") / "run"
    words = ["train", "mesh/retopology_tiny", "--run", path, *SMALL]
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code
    return path


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    """A dense mesh, far from the origin."""
    grid = np.stack(np.meshgrid(*[np.arange(12.0)] * 2, indexing="ij"), -1).reshape(-1, 2)
    points = np.concatenate((grid, np.sin(grid[:, :1])), 1) * 3 + [500, 0, -20]
    corner = (np.arange(11)[:, None] * 12 + np.arange(11)).reshape(-1, 1)
    faces = np.concatenate((corner + np.array([0, 12, 1]), corner + np.array([1, 12, 13])))
    write_mesh(tmp_path / "scan.ply", points, faces)
    return tmp_path / "scan.ply"


def test_a_scan_becomes_a_file_in_its_place(
    run: Path, scan: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    out = tmp_path / "new/clean.obj"
    said = cli("sample", run, scan, "--faces", 20, "--count", 2, "--out", out, "--device", "cpu")
    assert said.status == 0, said.err
    written = [Path(line) for line in said.out.split()]
    assert written[0] == out
    assert out.with_name("clean.png") in written
    vertices, _ = read_mesh(out, upright=True)
    low, high = vertices.min(0), vertices.max(0)
    assert (low > [495, -5, -40]).all()
    assert (high < [540, 40, 0]).all()


def test_points_and_validation_meshes_are_taken_as_well(
    run: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 3))
    np.save(tmp_path / "ball.npy", points / np.linalg.norm(points, axis=1, keepdims=True))
    said = cli("sample", run, tmp_path / "ball.npy", *FEW, "--out", tmp_path / "a")
    assert said.status == 0, said.err
    assert (tmp_path / "a/ball.glb").is_file()
    said = cli("sample", run, *FEW, "--out", tmp_path / "b")
    assert said.status == 0, said.err
    assert (tmp_path / "b/sheet.png").is_file()


def test_a_part_is_kept(run: Path, scan: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    vertices, faces = read_mesh(scan)
    write_mesh(tmp_path / "part.obj", vertices, faces[:7])
    out = tmp_path / "clean.ply"
    said = cli("sample", run, scan, "--keep", tmp_path / "part.obj", *FEW, "--out", out)
    assert said.status == 0, said.err
    made, rows = read_mesh(out)
    side = np.ptp(vertices, axis=0).max()
    for face in faces[:7]:
        distances = np.linalg.norm(made[rows].mean(1) - vertices[face].mean(0), axis=-1)
        assert distances.min() < side / 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--faces", 2], "--faces 2 is no mesh"),
        (["--faces", 100_000], "100000 faces are wished; give 4 to 384"),
        (["--keep", "nowhere.obj"], "nowhere.obj"),
    ],
)
def test_a_wish_that_cannot_be_met_gets_a_sentence(
    run: Path, scan: Path, tmp_path: Path, cli: Callable[..., Any], words: list[Any], said: str
) -> None:
    ended = cli("sample", run, scan, *words, "--out", tmp_path / "out")
    assert ended.status == 2
    assert said in ended.err


def test_several_inputs_need_a_folder(
    run: Path, scan: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    other = scan.with_name("other.ply")
    other.write_bytes(scan.read_bytes())
    ended = cli("sample", run, scan, other, "--out", tmp_path / "clean.obj")
    assert ended.status == 2
    assert "2 inputs do not fit into" in ended.err


@pytest.mark.slow
def test_the_benchmark_measures_a_run_beside_baselines(
    run: Path,
    scan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    from retopology import main  # type: ignore[import-not-found]

    few = [
        str(run),
        *["--count", "1", "--tries", "1", "--training", "3", "--dense", "800", "--faces", "8"],
    ]
    picture = ["--picture", str(tmp_path / "picture")]
    bars = ["--above", "aspect=2", "--below", "seconds=1e9", "loss=9*guess"]
    assert main([*few, "--clean", "--missing", "0.1", *picture, *bars]) == 1
    assert (tmp_path / "picture" / "retopology.png").exists()
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    systems = ["model", "decimation", "nearest", "clean", "original"]
    assert [row["system"] for row in rows] == systems
    for row in rows:
        assert row["meshes"] == 1
        assert 0 <= row["exact"] <= 1
        assert 0 < row["chamfer"] <= row["hausdorff"]
    assert rows[4]["equal"] == 1
    assert rows[1]["chamfer"] < 0.1
    assert "missed: aspect is" in said
    assert "missed: seconds" not in said
    assert "missed: loss" not in said
    assert main([*few, "--scans", str(scan.parent)]) == 0
    assert "exact" not in capsys.readouterr().out
