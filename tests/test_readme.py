"""README.md and docs/start.md: their commands are run and their code is executed, at small sizes.
ARCHITECTURE.md: the paths, names and tree are those of the source.

All commands run in one process in the order of the pages, because later ones use the output of
earlier ones and because importing torch for each would cost more than the commands do. A command
that both pages show runs once.
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

from examples.scripts import run_script
from quintet.media.audio import write_wav
from quintet.music.tunes import compose, play

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
START = (ROOT / "docs/start.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

SMALL = "--steps 4 --workers 0 --batch-size 4 --images.valid-limit 8 --evaluate-every 0"
MESHES = (
    "--steps 2 --workers 0 --batch-size 4 --evaluate-every 0 --device cpu"
    " --meshes.valid-limit 2 --meshes.builtin-count 16 --meshes.max-faces 12 --model.dim 32"
)
CLIPS = (
    "--steps 2 --workers 0 --batch-size 2 --evaluate-every 0 --device cpu"
    " --videos.valid-limit 2 --videos.builtin-count 16 --videos.frames 5"
    " --model.init-dim 16 --model.max-dim 32"
)
SOUNDS = (
    "--steps 2 --workers 0 --batch-size 4 --evaluate-every 0 --device cpu"
    " --sounds.valid-limit 4 --sounds.builtin-count 16 --model.dim 32 --model.layers 1"
)
VOICES = (
    "--steps 2 --workers 0 --batch-size 2 --evaluate-every 0 --device cpu"
    " --recordings.valid-limit 2 --recordings.builtin-count 16 --sampling.count 1"
    " --recordings.max-seconds 1.5 --sampling.steps 2"
    " --recordings.sample-rate 8000 --model.sample-rate 8000 --model.n-fft 256"
    " --model.hop-length 128 --model.n-mels 20 --model.dim 32 --model.depth 2 --model.heads 1"
)
NARROW = (
    "--model.dim 16 --model.patch-size 8 --model.channel-multipliers 1 --model.num-res-blocks 1"
    " --model.attention-layers 0 --discriminator.dim 8 --images.size 32 32"
)

# Commands that would take long: their prefix, and the arguments appended to them.
APPENDED = {
    "quintet train image/vqgan_tiny --run": f"{SMALL} {NARROW}",
    "quintet train image/vqgan photos --run": f"{SMALL} {NARROW}",
    "quintet train image/vqgan packed --run": f"{SMALL} {NARROW}",
    "quintet doctor image/vqgan photos": f"{SMALL} {NARROW} --device cpu",
    "quintet train mesh/autoencoder_tiny --run": MESHES,
    "quintet train mesh/transformer_tiny --auto": (
        f"{MESHES} --model.layers 1 --model.text-layers 1 --generation.count 1"
        " --generation.reference-count 8"
    ),
    "quintet train video/tokenizer_tiny --run": CLIPS,
    "quintet train music/mulan_tiny --run": SOUNDS,
    "quintet train speech/voicebox_tiny --run": VOICES,
    "quintet sample runs/voice": "--steps 2",
    "quintet sample runs/writer": "--max-faces 8",
    "quintet sample ready/mesh": "--count 1 --max-faces 8",
    "quintet train image/autoencoder_tiny photos": SMALL,
}
# Values that would take long: as on the page, and as run.
REPLACED = {
    "resume runs/photos --steps 20000": "resume runs/photos --steps 6 --workers 0",
    "resume runs/first --steps 1700": "resume runs/first --steps 6 --workers 0",
    "dim=64, patch_size=2, channel_multipliers=(1, 2, 4)": (
        "dim=16, patch_size=4, channel_multipliers=(1, 2)"
    ),
    "size=128": "size=32",
    "steps=10_000": "steps=2, workers=0",
    "batch_size=32": "batch_size=4",
    "steps=300": "steps=20, workers=0",
}
PROCESSES = {"--nproc-per-node 8": "--nproc-per-node 2"}

# Reads the pieces as JSON, runs them in the given folder and records status and output of each.
DRIVER = """
import contextlib, io, json, os, pathlib, sys, traceback
from quintet.cli import main
from quintet.cli.doctor import command

def outcome(kind, text, arguments):
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(arguments) if kind == "quintet" else exec(compile(text, "README", "exec"), {})
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
    return status, output.getvalue()

if __name__ == "__main__":  # some commands start processes, which import this
    pieces, environment = json.loads(pathlib.Path("pieces.json").read_text())
    os.environ.update(environment)
    os.chdir(sys.argv[1])
    command.START = "fork"  # a new process would import torch again
    outcomes = [outcome(*piece) for piece in pieces]
    pathlib.Path("outcomes.json").write_text(json.dumps(outcomes))
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def pieces() -> list[tuple[str, str]]:
    """Shell commands by their first word, and whole blocks of Python, in the order of the pages;
    each once."""
    pieces: list[tuple[str, str]] = []
    for language, text in blocks(PAGE) + blocks(START):
        if language == "python":
            pieces.append(("python", text))
        elif language == "bash":
            pieces += [(line.split()[0], line) for line in text.splitlines() if line.strip()]
    return list(dict.fromkeys(pieces))


def of_kind(*kinds: str) -> list[str]:
    return [text for kind, text in pieces() if kind in kinds]


def shrunk(text: str) -> str:
    for prefix, arguments in APPENDED.items():
        if text.startswith(prefix) and "--help" not in text:
            text = f"{text} {arguments}"
    for shown, small in REPLACED.items():
        text = text.replace(shown, small)
    return text


TRACED = "quintet export runs/first graphs --format torch-export"
"""It takes a fifth of the time of all commands, and runs in a slow test of its own."""
SHOWN = [p for p in pieces() if p[0] in ("quintet", "python") and p[1] != TRACED]
RUN = [(kind, shrunk(text)) for kind, text in SHOWN]


PLAIN = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}


def write_photos(folder: Path, first: int = 0) -> None:
    folder.mkdir()
    for index, name in enumerate("abcdefghijkl", first):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.jpg")


def write_songs(folder: Path) -> None:
    folder.mkdir()
    for number in range(6):
        write_wav(folder / f"{number}.wav", play(compose(number), 2.0, 8000), 8000)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def outcomes(workdir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    write_photos(workdir / "photos")
    write_photos(workdir / "holiday", first=20)
    write_songs(workdir / "songs")
    return driven(RUN, workdir, tmp_path_factory.mktemp("driver"))


def driven(pieces: list[tuple[str, str]], workdir: Path, folder: Path) -> list[tuple[int, str]]:
    lines = [
        (kind, text, shlex.split(text)[1:] if kind == "quintet" else []) for kind, text in pieces
    ]
    (folder / "pieces.json").write_text(json.dumps([lines, PLAIN]))
    (folder / "driver.py").write_text(DRIVER)
    said = run_script(folder / "driver.py", workdir, folder=folder)
    assert said.status == 0, said.out + said.err
    assert not said.err, said.err
    return [tuple(pair) for pair in json.loads((workdir / "outcomes.json").read_text())]


@pytest.mark.parametrize("index", range(len(RUN)), ids=lambda i: SHOWN[i][1].split("\n")[0])
def test_every_command_and_code_block_runs(index, outcomes):
    status, output = outcomes[index]
    assert status == 0, f"{RUN[index][1]}\n{output}"
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_graph_is_exported_as_shown(outcomes, workdir, tmp_path):
    ((status, output),) = driven([("quintet", TRACED)], workdir, tmp_path)
    assert status == 0, output
    assert TRACED in of_kind("quintet")


@pytest.mark.parametrize(
    "path",
    [
        "runs/first/checkpoints/step-00000006/state.json",
        "runs/first/report.html",
        "runs/first/best.json",
        "runs/photos/config.json",
        "runs/python/metrics.jsonl",
        "runs/line/metrics.jsonl",
        "runs/plain/config.json",
        "runs/packed/config.json",
        "out/validation-000.reconstruction.png",
        "both.html",
        "out/a.reconstruction.png",
        "exported/model.safetensors",
        "exported/README.md",
    ],
)
def test_the_commands_write_their_files(path, outcomes, workdir):
    assert (workdir / path).is_file()


def test_no_metrics_are_of_data_that_was_trained_on(outcomes):
    evaluations = [o for (_, o), (_, text) in zip(outcomes, SHOWN) if "quintet evaluate" in text]
    assert len(evaluations) == 3
    assert not any("were trained on" in output for output in evaluations)


@pytest.mark.parametrize("command", of_kind("make"))
def test_make_targets_exist(command):
    words = shlex.split(command)
    ended = subprocess.run(
        [words[0], "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow  # two processes that import everything; contract/ trains so by default
@pytest.mark.parametrize("command", of_kind("torchrun"))
def test_several_processes_train_as_shown(command, tmp_path):
    for shown, small in PROCESSES.items():
        assert shown in command
        command = command.replace(shown, small)
    words = shlex.split(f"{command} {SMALL} {NARROW} --device cpu")
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words[1:]],
        cwd=tmp_path,
        env={**os.environ, **PLAIN},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    about = json.loads((tmp_path / words[words.index("--run") + 1] / "config.json").read_text())
    assert (about["processes"], about["global_batch"]) == (2, 8)


def test_installation_names_existing_files_and_extras():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = ("video", "audio", "tensorboard", "wandb", "trackio", "hub", "text", "onnx", "shards")
    for extra in extras:
        assert f"\n{extra} = [" in project
        assert f"`{extra}`" in PAGE
    assert (ROOT / "constraints.txt").is_file()
    assert of_kind("python3", ".venv/bin/pip", ".") == [
        "python3 -m venv .venv",
        ".venv/bin/pip install -c constraints.txt -e '.[video,audio]'",
        ". .venv/bin/activate",
    ]


def test_every_block_of_the_pages_is_checked():
    assert {language for language, _ in blocks(PAGE)} == {"bash", "python"}
    assert {language for language, _ in blocks(START)} == {"bash", "python", "text"}
    known = {"quintet", "python", "make", "torchrun", "python3", ".venv/bin/pip", ".", "uv"}
    assert {kind for kind, _ in pieces()} <= known


def test_every_substitution_still_applies():
    """A stale one would hide that a page has changed."""
    commands = of_kind("quintet")
    for prefix in APPENDED:
        assert any(command.startswith(prefix) for command in commands), prefix
    for shown in REPLACED:
        assert shown in PAGE + START, shown


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 150


LINKED = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md"]


@pytest.mark.parametrize("page", LINKED)
def test_every_link_and_picture_leads_to_a_file(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\[[^\]]+\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


# -- ARCHITECTURE.md, CONTRIBUTING.md and AGENTS.md -----------------------------------------------


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md"])
def test_every_path_exists_and_defines_the_names_given_with_it(page):
    """Paths with a folder, from the root or from src/quintet; names follow as `path`: `name`."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("ROOM", "image")
    roots = (ROOT, ROOT / "src", ROOT / "src/quintet")
    for path, names in re.findall(r"`([\w./]+/[\w.]+\.py)`((?:[:,] `\w+`)*)", text):
        files = [root / path for root in roots if (root / path).is_file()]
        assert files, path
        for name in re.findall(r"\w+", names):
            source = files[0].read_text(encoding="utf-8")
            assert re.search(rf"\b{name}\b", source), f"{path}: {name}"


def tree() -> list[str]:
    """Paths of the source tree on the page: nested by two spaces, described after two."""
    block = ARCHITECTURE.split("## Source tree\n\n")[1].split("\n\n")[0]
    parents: list[str] = []
    paths: list[str] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip()) - 4) // 2
        names = [name for name in line.strip().split("  ") if re.fullmatch(r"[\w/]+(\.py|/)", name)]
        assert names, line
        prefix = "".join(parents[:depth])
        paths += [prefix + name for name in names]
        parents[depth:] = [names[-1]]
    return paths


def test_the_tree_names_existing_files_and_folders():
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_the_tree_names_every_folder_of_the_source():
    source = ROOT / "src/quintet"
    folders = {path.parent.relative_to(ROOT).as_posix() for path in source.rglob("__init__.py")}
    assert sorted(folders - {path.rstrip("/") for path in tree()}) == []
