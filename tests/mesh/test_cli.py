"""The mesh room from the command line: what is asked, what is written, and what is refused."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import lines
from quintet.media.meshes.files import read_mesh, write_mesh
from quintet.media.pixels import read_image

FEW = ["--batch-size", 4, "--workers", 0, "--device", "cpu", "--precision", "fp32", "--trackers"]
FEW += ["--log-every", 1, "--meshes.max-faces", 12]
AUTOENCODER = ["train", "mesh/autoencoder_tiny", *FEW, "--model.dim", 32, "--model.message-dim", 16]
TRANSFORMER = ["train", "mesh/transformer_tiny", *FEW, "--model.dim", 32, "--model.layers", 1]
TRANSFORMER += [
    "--generation.count",
    1,
    "--generation.reference-count",
    8,
    "--model.text-layers",
    1,
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))


def sides(path: Path) -> np.ndarray:
    """The box around a mesh as the file has it, largest side 1."""
    vertices, faces = read_mesh(path)
    reach = np.ptp(vertices[np.unique(faces)], axis=0)
    return reach / reach.max()


# -- train and doctor -------------------------------------------------------------------------


def test_a_folder_of_meshes_trains_and_is_used(chairs: Path, tmp_path: Path, cli: Callable) -> None:
    run = tmp_path / "run"
    result = cli(*AUTOENCODER, chairs, "--run", run, "--steps", 2)
    assert result.status == 0, result.err
    assert "run is at step 2" in result.out
    assert json.loads((run / "config.json").read_text())["settings"]["data"] == str(chairs)
    assert lines(run)[0]["data/damaged"] == 0
    assert (run / "report.html").stat().st_size > 1000
    result = cli("sample", run, "--count", 1, "--out", tmp_path / "out", "--format", "ply")
    assert result.status == 0, result.err
    assert names(tmp_path / "out") == [
        "sheet.png",
        "validation-000.original.ply",
        "validation-000.reconstruction.ply",
    ]
    measured = json.loads(cli("evaluate", run, chairs).out.splitlines()[-1])
    assert measured["samples"] == 16
    assert 12 <= measured["trained_on"] < 16  # some are held out


def test_a_folder_goes_through_both_stages(
    chairs: Path, autoencoder_model: Path, tmp_path: Path, cli: Callable
) -> None:
    """Captions by the names of sub-folders."""
    run = tmp_path / "run"
    arguments = ["--autoencoder", autoencoder_model, "--run", run, "--steps", 1]
    result = cli(*TRANSFORMER, chairs, *arguments)
    assert result.status == 0, result.err
    last = [r for r in lines(run) if "val/loss" in r][-1]
    assert "val/valid" in last
    assert "val/agrees" not in last  # nobody knows what a folder's captions promise
    measured = json.loads(cli("evaluate", run, chairs).out.splitlines()[-1])
    assert measured["samples"] == 16
    assert 12 <= measured["trained_on"] < 16  # some are held out


def test_the_doctor_reads_every_mesh(chairs: Path, cli: Callable) -> None:
    assert "16 files, 16 usable, 0" in cli("doctor", "mesh", chairs).out
    (chairs / "box/broken.ply").write_text("ply, so to speak")
    result = cli("doctor", "mesh", chairs)
    assert result.status == 0
    assert "17 files, 16 usable, 1" in result.out
    assert "broken.ply" in result.out


def test_many_large_meshes_are_no_damage_and_one_line(
    chairs: Path, tmp_path: Path, cli: Callable
) -> None:
    x, y = np.meshgrid(np.arange(22), np.arange(22))
    first = (22 * y + x)[:-1, :-1].reshape(-1)
    faces = np.stack([first, first + 1, first + 22, first + 1, first + 23, first + 22], 1)
    for number in range(8):
        hills = np.stack([x, y, np.sin(x + number)], -1).reshape(-1, 3)
        write_mesh(chairs / f"box/large{number}.ply", hills, faces.reshape(-1, 3))
    run = tmp_path / "run"
    result = cli(*AUTOENCODER, chairs, "--run", run, "--steps", 8)
    assert result.status == 0, result.err
    assert "8 of 24 meshes left out: more than max_faces = " in result.err
    assert not skipped(run)
    result = cli("doctor", "mesh", chairs)
    assert "24 files, 16 usable, 8 skipped by training" in result.out
    assert result.out.count("left out: more than max_faces = 800") == 1
    assert "box/large" not in result.out, "one line for all of them"
    assert "held out: 4 of 16 files" in result.out


# -- sample -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["obj", "glb", "ply", "stl"])
def test_a_file_comes_back_through_its_codes(
    suffix: str,
    autoencoder_run: Path,
    tmp_path: Path,
    cli: Callable,
    tetrahedron: tuple[np.ndarray, np.ndarray],
) -> None:
    points, faces = tetrahedron
    source = tmp_path / f"tall one.{suffix}"
    write_mesh(source, points * [0.3, 0.6, 1.0] * 7 + 20, faces)
    result = cli("sample", autoencoder_run, source, "--out", tmp_path / "out", "--format", suffix)
    assert result.status == 0, result.err
    output = [f"tall one.{kind}.{suffix}" for kind in ("original", "reconstruction")]
    assert names(tmp_path / "out") == sorted([*output, "sheet.png"])
    assert [Path(line).name for line in result.out.splitlines()] == [*output, "sheet.png"]
    assert read_image(tmp_path / "out/sheet.png").std() > 0
    for name in output:
        back = tmp_path / "out" / name
        assert len(read_mesh(back).faces) == 4
        assert sides(back) == pytest.approx(sides(source), abs=0.04)


def test_a_folder_of_meshes_keeps_its_structure(
    autoencoder_run: Path, chairs: Path, tmp_path: Path, cli: Callable
) -> None:
    shutil.copy(chairs / "box/08.glb", chairs / "tall_box/08.glb")
    (chairs / "box/torn.obj").write_text("v 0 0 0\n")
    out = tmp_path / "out"
    result = cli("sample", autoencoder_run, chairs, "--out", out, "--format", "stl")
    assert result.status == 0, result.err
    written = [Path(line) for line in result.out.splitlines()]
    assert len(written) == len(set(written)) == 2 * 17 + 1
    assert all(path.is_file() for path in written)
    assert (out / "box/08.reconstruction.stl").is_file()
    assert (out / "tall_box/08.reconstruction.stl").is_file()
    assert "torn.obj" in result.err
    assert "1 of 18 files were skipped" in result.err


def test_held_out_meshes_come_back_where_no_file_is_given(
    autoencoder_run: Path, tmp_path: Path, cli: Callable
) -> None:
    result = cli("sample", autoencoder_run, "--count", 1, "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert len(names(tmp_path / "out")) == 3
    result = cli("sample", autoencoder_run, "--count", 99, "--out", tmp_path / "all")
    assert len(names(tmp_path / "all")) == 2 * 2 + 1


# media/meshes/test_files.py writes each format.
@pytest.mark.parametrize("suffix", ["obj", pytest.param("stl", marks=pytest.mark.slow)])
def test_meshes_are_written_from_sentences_and_the_seed_decides(
    suffix: str, transformer_run: Path, tmp_path: Path, cli: Callable
) -> None:
    def go(out: str, seed: int) -> dict[str, bytes]:
        arguments = ["--text", "A box, tall!", "a cone", "--count", 2, "--format", suffix]
        more = ["--seed", seed, "--device", "cpu", "--max-faces", 6]
        result = cli("sample", transformer_run, *arguments, *more, "--out", tmp_path / out)
        assert result.status == 0, result.err
        return {path.name: path.read_bytes() for path in (tmp_path / out).iterdir()}

    first = go("first", 5)
    meshes = [name for name in first if name.endswith(f".{suffix}")]
    assert "sheet.png" in first
    assert meshes
    known = {"00-a-box-tall-000", "00-a-box-tall-001", "01-a-cone-000", "01-a-cone-001"}
    assert {name.rpartition(".")[0] for name in meshes} <= known
    for name in meshes:
        assert len(read_mesh(tmp_path / "first" / name).faces) <= 6
    assert go("again", 5) == first
    if suffix == "obj":
        assert go("other", 6) != first


def test_a_sentence_may_be_left_away(transformer_run: Path, tmp_path: Path, cli: Callable) -> None:
    arguments = ["--count", 2, "--max-faces", 4, "--out", tmp_path / "out"]
    assert cli("sample", transformer_run, *arguments).status == 0
    assert "sheet.png" in names(tmp_path / "out")


def test_an_export_is_as_good_as_its_run(
    transformer_run: Path, tmp_path: Path, cli: Callable
) -> None:
    assert cli("export", transformer_run, tmp_path / "model").status == 0
    arguments = ["--text", "a box", "--count", 1, "--format", "ply", "--max-faces", 8]
    for source, out in ((transformer_run, "run"), (tmp_path / "model", "export")):
        result = cli("sample", source, *arguments, "--out", tmp_path / out)
        assert result.status == 0, result.err
    files = [{p.name: p.read_bytes() for p in (tmp_path / o).iterdir()} for o in ("run", "export")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", 0], "--count is 0"),
        (["--count", -3], "--count is -3"),
        (["nowhere.obj"], "nowhere.obj is not a file"),
    ],
)
def test_what_an_autoencoder_cannot_do_is_said(
    words: list[Any], said: str, autoencoder_run: Path, tmp_path: Path, cli: Callable
) -> None:
    assert said in cli("sample", autoencoder_run, *words, "--out", tmp_path / "out").sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", 0], "--count is 0"),
        (["photo.obj", "--text", "a box"], "photo.obj"),
        ([".", "--text", "a box"], "is a generator: give --text, and drop ."),
        (["--temperature", -1], "temperature"),
        (["--top-k", 0], "top_k"),
        (["--max-faces", 0], "max-faces"),
        (["--max-faces", -2], "max-faces"),
        (["--temperature", "nan"], "temperature"),
        (["--text", "a box", "--cond-scale", "nan"], "cond_scale"),
    ],
)
def test_what_a_transformer_cannot_do_is_said(
    words: list[Any], said: str, transformer_run: Path, tmp_path: Path, cli: Callable
) -> None:
    result = cli("sample", transformer_run, *words, "--out", tmp_path / "out").sentence
    assert said.replace("-", "_") in result.replace("-", "_")


def test_an_exported_autoencoder_asks_for_files(
    autoencoder_model: Path, tmp_path: Path, cli: Callable
) -> None:
    result = cli("sample", autoencoder_model, "--out", tmp_path / "out")
    assert "give files of meshes" in result.sentence


def test_two_inputs_of_one_name_are_refused(
    autoencoder_run: Path,
    tmp_path: Path,
    cli: Callable,
    tetrahedron: tuple[np.ndarray, np.ndarray],
) -> None:
    for suffix in ("obj", "ply"):
        write_mesh(tmp_path / f"chair.{suffix}", *tetrahedron)
    arguments = [tmp_path / "chair.obj", tmp_path / "chair.ply", "--out", tmp_path / "out"]
    assert "chair" in cli("sample", autoencoder_run, *arguments).sentence
    assert not (tmp_path / "out").exists()


# -- bad files among good ones ----------------------------------------------------------------

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def absurd_glb() -> bytes:
    """A header that promises four gigabytes of vertices in a file of a few bytes."""
    text = json.dumps(
        {
            "asset": {"version": "2.0"},
            "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
            "nodes": [{"mesh": 0}],
            "scenes": [{"nodes": [0]}],
            "accessors": [{"componentType": 5126, "count": 2**31, "type": "VEC3", "bufferView": 0}],
            "bufferViews": [{"buffer": 0, "byteLength": 2**35}],
            "buffers": [{"byteLength": 2**35}],
        }
    ).encode()
    text += b" " * (-len(text) & 3)
    head = b"glTF" + (2).to_bytes(4, "little") + (20 + len(text)).to_bytes(4, "little")
    return head + len(text).to_bytes(4, "little") + b"JSON" + text


def put_bad(folder: Path) -> dict[str, str]:
    """Files that cannot be used, and a word of the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nan.obj").write_text(TETRAHEDRON.replace("v 1 0 0", "v nan 0 0"))
    (folder / "faceless.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\n")
    (folder / "absurd.glb").write_bytes(absurd_glb())
    with zipfile.ZipFile(folder / "archive.ply", "w") as archive:
        archive.writestr("chair.ply", "none")
    (folder / "points.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\n"
        "property float z\nend_header\n0 0 0\n1 1 1\n"
    )
    (folder / "flat.obj").write_text("v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\nf 1 1 2\n")
    (folder / "empty.stl").write_bytes(b"")
    (folder / "outside.obj").write_text(TETRAHEDRON.replace("f 2 3 4", "f 2 3 400"))
    return {
        "nan.obj": "not finite",
        "faceless.obj": "no faces",
        "absurd.glb": "absurd.glb",
        "archive.ply": "archive.ply",
        "points.ply": "no faces",
        "flat.obj": "area",
        "empty.stl": "0 bytes",
        "outside.obj": "vertex 399",
    }


@pytest.fixture
def mixed(chairs: Path) -> dict[str, str]:
    """Bad ones, and two that only look it: they are mended, and no other file is opened."""
    (chairs / "box/material.obj").write_text(
        f"mtllib /etc/passwd\nusemtl ../../secret\n{TETRAHEDRON}"
    )
    (chairs / "box/double.obj").write_text(f"{TETRAHEDRON}f 1 3 2\nf 3 2 1\nf 2 2 3\n")
    return put_bad(chairs / "bad")


def skipped(run: Path) -> dict[str, str]:
    output = [r["message"] for r in lines(run, "events")]
    actual = [line.removeprefix("skipped ") for line in output if line.startswith("skipped bad/")]
    return {line.partition(":")[0].removeprefix("bad/"): line for line in actual}


def check_skipped(run: Path, bad: dict[str, str]) -> None:
    actual = skipped(run)
    assert actual.keys() == bad.keys()
    for name, reason in bad.items():
        assert reason in actual[name]


ALL = ["--max-damaged", 0.6, "--steps", 8]


def test_an_autoencoder_skips_bad_files_and_names_each(
    chairs: Path, mixed: dict[str, str], tmp_path: Path, cli: Callable
) -> None:
    run = tmp_path / "run"
    result = cli(*AUTOENCODER, chairs, "--run", run, *ALL)
    assert result.status == 0, result.err
    check_skipped(run, mixed)
    result = cli("doctor", "mesh", chairs)
    assert "26 files, 18 usable, 8" in result.out
    assert all(name in result.out for name in mixed)


@pytest.mark.slow
def test_a_transformer_skips_bad_files_and_names_each(
    chairs: Path, mixed: dict[str, str], autoencoder_model: Path, tmp_path: Path, cli: Callable
) -> None:
    run = tmp_path / "run"
    arguments = ["--autoencoder", autoencoder_model, "--run", run, *ALL]
    result = cli(*TRANSFORMER, chairs, *arguments)
    assert result.status == 0, result.err
    check_skipped(run, mixed)
    result = cli("resume", run, "--steps", 9)
    assert result.status == 0, result.err


def test_held_out_files_that_cannot_be_read_do_not_stop_a_sample(
    chairs: Path, mixed: dict[str, str], tmp_path: Path, cli: Callable
) -> None:
    run = tmp_path / "run"
    more = ["--meshes.valid-fraction", 0.6, "--max-damaged", 1, "--steps", 1]
    assert cli(*AUTOENCODER, chairs, "--run", run, *more).status == 0
    result = cli("sample", run, "--count", 20, "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert len(names(tmp_path / "out")) >= 3


def test_too_many_bad_files_end_the_run_with_their_number(
    chairs: Path, mixed: dict[str, str], tmp_path: Path, cli: Callable
) -> None:
    result = cli(*AUTOENCODER, chairs, "--run", tmp_path / "run", "--steps", 8)
    assert "max_damaged = 10%" in result.sentence
    assert "quintet doctor" in result.sentence


@pytest.mark.parametrize("stage", ["autoencoder", "transformer"])
def test_a_folder_of_nothing_but_bad_files_is_refused(
    stage: str, tmp_path: Path, autoencoder_model: Path, cli: Callable
) -> None:
    bad = put_bad(tmp_path / "meshes")
    run = tmp_path / "run"
    arguments = [*AUTOENCODER] if stage == "autoencoder" else [*TRANSFORMER]
    without = ["--autoencoder", autoencoder_model, "--model.text", "none"]
    more = without if stage == "transformer" else []
    result = cli(*arguments, tmp_path / "meshes", *more, "--run", run, "--max-damaged", 1)
    assert any(name in result.sentence for name in bad)
    assert not run.exists()
    result = cli("doctor", "mesh", tmp_path / "meshes")
    assert "nothing" in result.sentence


@pytest.mark.parametrize("what", ["nowhere", "empty", "a file"])
def test_a_folder_that_is_none_is_named(what: str, tmp_path: Path, cli: Callable) -> None:
    path = tmp_path / "meshes"
    if what == "empty":
        path.mkdir()
    if what == "a file":
        path.write_text("x")
    result = cli(*AUTOENCODER, path, "--run", tmp_path / "run")
    assert str(path) in result.sentence
    assert str(path) in cli("doctor", "mesh", path).sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["faceless.obj", "absurd.glb", "archive.ply", "nan.obj"])
def test_sample_names_a_file_that_cannot_be_used(
    name: str, autoencoder_run: Path, tmp_path: Path, cli: Callable
) -> None:
    put_bad(tmp_path)
    result = cli("sample", autoencoder_run, tmp_path / name, "--out", tmp_path / "out")
    assert name in result.sentence
