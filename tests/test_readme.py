"""What the README says works: its commands are run and its code is executed, at small sizes.

All of it runs in one process in the order of the page, because later lines use what earlier ones
made, and because importing torch anew for each would cost more than the commands do.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quintet.media.audio import write_wav
from quintet.media.tunes import compose, play

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")

SMALL = "--steps 4 --workers 0 --batch-size 4 --images.valid-limit 8 --evaluate-every 0"
MESHES = (
    "--steps 2 --workers 0 --batch-size 4 --evaluate-every 0 --device cpu"
    " --meshes.valid-limit 4 --meshes.builtin-count 16 --meshes.max-faces 12"
)
CLIPS = (
    "--steps 2 --workers 0 --batch-size 2 --evaluate-every 0 --device cpu"
    " --videos.valid-limit 2 --videos.builtin-count 16"
)
SOUNDS = (
    "--steps 2 --workers 0 --batch-size 4 --evaluate-every 0 --device cpu"
    " --sounds.valid-limit 4 --sounds.builtin-count 16"
)
VOICES = (
    "--steps 2 --workers 0 --batch-size 2 --evaluate-every 0 --device cpu"
    " --recordings.valid-limit 2 --recordings.builtin-count 16 --speaking.count 1"
    " --recordings.max-seconds 1.5 --speaking.steps 2"
)
NARROW = "--model.dim 16 --discriminator.dim 8 --images.size 32 32"

# Commands that would take long: what they begin with, and what is put after them.
APPENDED = {
    "quintet train image/vqgan_tiny --run": f"{SMALL} {NARROW}",
    "quintet train image/vqgan photos --run": f"{SMALL} {NARROW}",
    "quintet train image/vqgan packed --run": f"{SMALL} {NARROW}",
    "quintet doctor image/vqgan_tiny": f"{SMALL} {NARROW} --device cpu",
    "quintet sample runs/first": "--count 2",
    "quintet train mesh/autoencoder_tiny --run": MESHES,
    "quintet train mesh/transformer_tiny --auto": f"{MESHES} --writing.count 2",
    "quintet train video/tokenizer_tiny --run": CLIPS,
    "quintet train music/mulan_tiny --run": SOUNDS,
    "quintet train speech/voicebox_tiny --run": VOICES,
    "quintet sample runs/voice": "--steps 2",
    "quintet sample runs/writer": "--max-faces 8",
}
# Numbers that would take long: what the page says, and what is run.
REPLACED = {
    "resume runs/first --steps 1000": "resume runs/first --steps 6 --workers 0",
    "dim=64, patch=2, multipliers=(1, 2, 4)": "dim=16, patch=4, multipliers=(1, 2)",
    "image_size=128": "image_size=32",
    "num_train_steps=10_000": "num_train_steps=2, num_workers=0",
    "batch_size=32": "batch_size=4",
    "num_train_steps=300": "num_train_steps=20, num_workers=0",
}
PROCESSES = {"--nproc-per-node 8": "--nproc-per-node 2"}

# Run in the temporary folder; reads the lines as JSON and says what came of each.
DRIVER = """
import contextlib, io, json, pathlib, sys, traceback
from quintet.cli import main

found = []
for kind, text, words in json.load(sys.stdin):
    said, status = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words) if kind == "quintet" else exec(compile(text, "README", "exec"), {})
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
    found.append([status, said.getvalue()])
pathlib.Path("found.json").write_text(json.dumps(found))
"""


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def pieces() -> list[tuple[str, str]]:
    """Shell commands by their first word, and whole blocks of Python, in the order of the page."""
    found: list[tuple[str, str]] = []
    for language, text in blocks():
        if language == "python":
            found.append(("python", text))
        else:
            found += [(line.split()[0], line) for line in text.splitlines() if line.strip()]
    return found


def of_kind(*kinds: str) -> list[str]:
    return [text for kind, text in pieces() if kind in kinds]


def made_small(text: str) -> str:
    for begins, more in APPENDED.items():
        if text.startswith(begins) and "--help" not in text:
            text = f"{text} {more}"
    for said, run in REPLACED.items():
        text = text.replace(said, run)
    return text


SHOWN = [(kind, text) for kind, text in pieces() if kind in ("quintet", "python")]
RUN = [(kind, made_small(text)) for kind, text in SHOWN]


def environment() -> dict[str, str]:
    plain = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "error"}
    return {**os.environ, **plain, "COLUMNS": "200"}


def put_photos(folder: Path) -> None:
    folder.mkdir()
    for index, name in enumerate("abcdefghijkl"):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.jpg")


def put_songs(folder: Path) -> None:
    folder.mkdir()
    for number in range(6):
        write_wav(folder / f"{number}.wav", play(compose(number), 2.0, 8000), 8000)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def outcome(place: Path) -> list[tuple[int, str]]:
    put_photos(place / "photos")
    put_songs(place / "songs")
    lines = [(kind, text, shlex.split(text)[1:] if kind == "quintet" else []) for kind, text in RUN]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER],
        input=json.dumps(lines),
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr, ended.stderr
    return [(status, said) for status, said in json.loads((place / "found.json").read_text())]


@pytest.mark.parametrize("index", range(len(RUN)), ids=lambda i: SHOWN[i][1].split("\n")[0])
def test_what_the_page_shows_runs(index, outcome):
    status, said = outcome[index]
    assert status == 0, f"{RUN[index][1]}\n{said}"
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "made",
    [
        "runs/first/checkpoints/step-00000006/state.json",
        "runs/first/report.html",
        "runs/first/best.json",
        "runs/photos/config.json",
        "runs/python/metrics.jsonl",
        "runs/line/metrics.jsonl",
        "out/held-out-000.reconstruction.png",
        "out/a.reconstruction.png",
        "exported/model.safetensors",
        "exported/README.md",
    ],
)
def test_it_leaves_behind_what_the_page_says(made, outcome, place):
    assert (place / made).is_file()


@pytest.mark.parametrize("command", of_kind("make"))
def test_the_targets_of_make_are_there(command):
    words = shlex.split(command)
    ended = subprocess.run(
        [words[0], "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", of_kind("torchrun"))
def test_several_processes_train_as_shown(command, tmp_path):
    for said, run in PROCESSES.items():
        assert said in command
        command = command.replace(said, run)
    words = shlex.split(f"{command} {SMALL} {NARROW} --device cpu")
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words[1:]],
        cwd=tmp_path,
        env={**environment(), "PYTHONWARNINGS": "default"},  # the launcher itself warns
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    about = json.loads((tmp_path / words[words.index("--run") + 1] / "config.json").read_text())
    assert (about["processes"], about["global_batch"]) == (2, 8)


def test_what_installs_names_files_and_extras_that_are_there():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in ("video", "audio", "tensorboard", "wandb", "trackio", "hub", "text"):
        assert f"\n{extra} = [" in project
    assert (ROOT / "constraints.txt").is_file()
    assert of_kind("python3", ".venv/bin/pip", ".") == [
        "python3 -m venv .venv",
        ".venv/bin/pip install -c constraints.txt -e '.[video,audio]'",
        ". .venv/bin/activate",
    ]


def test_no_line_of_the_page_is_left_unchecked():
    assert {language for language, _ in blocks()} == {"bash", "python"}
    known = {"quintet", "python", "make", "torchrun", "python3", ".venv/bin/pip", "."}
    assert {kind for kind, _ in pieces()} <= known


def test_no_substitution_is_left_over():
    """One that fits nothing any more would hide that the page has changed."""
    commands = of_kind("quintet")
    for begins in APPENDED:
        assert any(command.startswith(begins) for command in commands), begins
    for said in REPLACED:
        assert said in PAGE, said


def test_what_the_page_links_to_is_there():
    """Pictures aside: they are made by a run."""
    links = re.findall(r"(?<!!)\[[^\]]+\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_tree_names_what_is_there():
    tree = PAGE.split("## What is where")[1]
    for name in re.findall(r"^ {8}(\w+\.py) ", tree, re.MULTILINE):
        assert (ROOT / "src/quintet/engine" / name).is_file(), name
    for name in re.findall(r"^ {6}(\w+)/ ", tree, re.MULTILINE):
        assert (ROOT / "src/quintet" / name).is_dir(), name
