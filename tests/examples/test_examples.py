"""The examples run, at a few steps; what they print and what they leave behind is there."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import quintet
from examples.scripts import run_script
from harness import lines
from quintet.media.audio import read_audio

EXAMPLES = Path(__file__).parents[2] / "examples"

# Where each leaves its runs, and what it says of them.
DISCS = r"(a \w+ disc: its middle is \d\.\d\d red, \d\.\d\d green, \d\.\d\d blue\n){3}"
BALLS = r"(a ball flies (left|right): [+-]\d\.\d\d to the right\n){2}"
SAYS = {
    "decoder": (
        [""],
        r"latents are equal\nmean error of a pixel: 0\.\d+ before, 0\.\d+ after\n",
    ),
    "flow": (["autoencoder", "painter", "quick"], DISCS),
    "maskgit": (["tokenizer", "painter"], DISCS),
    "mesh_autoencoder": (
        [""],
        r"a box of 12 faces is 72 codes, such as \[(\d+, ){5}\d+\]\n"
        r"its corners come back within 0\.\d+; a bin is 0\.0156\n",
    ),
    "mesh_transformer": (
        ["autoencoder", "transformer"],
        r"a flat box: \d+ faces, [\d.]+ x [\d.]+, [\d.]+ high\na tall box: \d+ faces, .*\n",
    ),
    "mulan": ([""], r"('a \w+ \w+ tone' finds 'a \w+ \w+ tone' at -?\d\.\d\d\n){9}"),
    "music_flow": (["codec", "composer"], r"(a (low|high) tone: \d+ Hz for 2\.0 s\n){2}"),
    "own_model": ([""], r"\d+\.\d% of new points are told apart\n"),
    "retopology": (
        [""],
        r"a scan of 3000 points: \d+ faces asked for 12, \d+ vertices\n"
        r"mean distance of its corners to the scan: \d+\.\d\d % of its longest side\n",
    ),
    "video_flow": (["autoencoder", "director", "quick"], BALLS),
    "video_maskgit": (["tokenizer", "director"], BALLS),
    "video_tokenizer": (
        [""],
        r"a clip of 21 frames is 11 x 8 x 8 ids\n"
        r"mean error of a pixel: 0\.\d+; of the clip's mean colour: 0\.\d+\n",
    ),
    "codec": ([""], r"a copy of 0\.60 seconds by 12 x 8 numbers, error of log-mels \d+\.\d\d\n"),
    "vocoder": ([""], r"a copy of 1\.00 seconds, loudness \d\.\d\d\n"),
    "voicebox": ([""], r"said\.wav says 'aiueo' in \d\.\d\d seconds\n"),
    "vqgan": (
        [""],
        r"a picture is 16 ids below 320: \[\d+, \d+, \d+, \d+\] …\n"
        r"mean error of a pixel: 0\.\d+; of the picture's mean colour: 0\.\d+\n",
    ),
}
# Stages with a quarter of the steps.
STEPS = {
    ("mesh_transformer", "autoencoder"): 1,
    ("flow", "quick"): 1,
    ("video_flow", "quick"): 1,
}


def test_each_trainer_has_an_example():
    named = {path.stem for path in EXAMPLES.glob("*.py")}
    assert named == set(SAYS)
    trainers = {name for name in quintet.__all__ if name.endswith("Trainer")}
    shown = {
        node.func.id
        for path in EXAMPLES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert trainers <= shown


LONG = ["codec", "flow", "maskgit", "mesh_autoencoder", "mesh_transformer", "mulan", "music_flow"]
LONG += ["retopology", "video_flow", "video_maskgit", "video_tokenizer", "vocoder", "voicebox"]
NAMES = [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in sorted(SAYS)]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_it_found_and_leaves_a_run(name: str, tmp_path: Path):
    runs, says = SAYS[name]
    said = run_script(
        EXAMPLES / f"{name}.py", "--steps", 3, "--run", tmp_path / "run", folder=tmp_path
    )
    assert said.status == 0, said.err
    assert re.fullmatch(says, said.out), said.out
    for run in runs:
        steps = STEPS.get((name, run), 3)
        assert lines(tmp_path / "run" / run)[-1]["step"] == steps
        assert (tmp_path / "run" / run / f"checkpoints/step-{steps:08d}/state.json").is_file()
    if name == "voicebox":
        assert len(read_audio(tmp_path / "said.wav", rate=16_000)) > 1000


def test_an_example_ends_at_once_where_it_is_done(tmp_path: Path):
    script, words = EXAMPLES / "own_model.py", ["--steps", "2", "--run", "runs/own"]
    first = run_script(script, *words, folder=tmp_path)
    assert first.status == 0, first.err
    before = lines(tmp_path / "runs/own")
    again = run_script(script, *words, folder=tmp_path)
    assert (again.status, again.out) == (0, first.out), again.err
    assert lines(tmp_path / "runs/own") == before


@pytest.mark.slow  # a new process imports torch again
def test_an_example_starts_from_a_bare_command_line_and_ends_at_once_where_it_is_done(
    tmp_path: Path,
):
    script, words = EXAMPLES / "own_model.py", ["--steps", "2", "--run", "runs/own"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", script, *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    before = lines(tmp_path / "runs/own")
    again = run_script(script, *words, folder=tmp_path)
    assert (again.status, again.out) == (0, ended.stdout), again.err
    assert lines(tmp_path / "runs/own") == before
