"""Commands that Quintet suggests run as printed, also where paths have spaces and quotes."""

import ast
import json
import re
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import TINY, Quintet, picture, with_nan

import adopting
import quintet as library
from quintet import cli, rooms, suggest
from quintet.cli.common import parse
from quintet.cli.demo import command as demo
from quintet.cli.demo.full import print_summary
from quintet.cli.demo.page import next_steps
from quintet.cli.train import best_exhibit, flags_of
from quintet.engine.errors import RunError, Stopped
from quintet.engine.launch import start
from quintet.engine.models.pretrained import copy_card
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import settings_of
from quintet.engine.tools import auto_batch
from quintet.judges.choosing import chosen
from quintet.report import page
from quintet.report.source import load as load_source

PACKAGE = Path(library.__file__).parent

FEW = "--workers 0 --device cpu --precision fp32 --trackers --log-every 1 --steps 1"
MESHES = f"{FEW} --batch-size 4 --meshes.max-faces 12 --meshes.valid-limit 2"
MESHES += " --meshes.builtin-count 16 --model.dim 32"
SPEECH = f"speech/voicebox_tiny {FEW} --batch-size 2 --recordings.valid-limit 2 --sampling.count 1"
SPEECH += " --recordings.max-seconds 1.5 --sampling.steps 2"
SPEECH += " --recordings.builtin-count 16 --model.dim 32 --model.depth 1 --model.heads 1"
AUTOENCODER = f"mesh/autoencoder_tiny {MESHES} --model.message-dim 16"
TRANSFORMER = f"mesh/transformer_tiny {MESHES} --model.layers 1 --model.text-layers 1"
TRANSFORMER += " --generation.count 1 --generation.reference-count 8"
GENERATOR = f"{FEW} --batch-size 4 --model.dim 32 --model.layers 1 --generation.count 1"
GENERATOR += " --generation.reference-count 4 --generation.sampling-steps 2"
RECIPES = {
    "image": f"image/vqgan_tiny {' '.join(TINY)}",
    "video": f"video/tokenizer_tiny {FEW} --batch-size 2 --videos.frames 5 --videos.size 16 16"
    " --videos.valid-limit 2 --model.init-dim 16 --model.max-dim 16 --losses.adversarial none",
    "image generator": f"image/maskgit_tiny {GENERATOR} --images.builtin-count 8"
    " --images.valid-limit 2 --images.size 32 32",
    "video generator": f"video/maskgit_tiny {GENERATOR} --videos.builtin-count 8"
    " --videos.valid-limit 2 --videos.size 16 16 --videos.frames 5",
    "mesh autoencoder": AUTOENCODER,
    "mesh transformer": TRANSFORMER,
    "mesh transformer without text": f"{TRANSFORMER} --model.text none",
    "music": f"music/mulan_tiny {FEW} --batch-size 4 --sounds.valid-limit 4 --model.dim 32"
    " --sounds.builtin-count 16 --model.layers 1 --model.heads 1 --model.text-dim 32"
    " --model.text-layers 1 --model.text-heads 1",
    "speech": SPEECH,
    "speech without text": f"{SPEECH} --model.text none",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a person who puts spaces and quotes into names."""
    path = tmp_path / 'Ann\'s "work"'
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from quintet.cli import main

    path = tmp_path_factory.mktemp("codes") / "run"
    with pytest.raises(SystemExit) as ended:
        main(["train", *AUTOENCODER.split(), "--run", str(path)])
    assert not ended.value.code
    return path


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    image = library.VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), levels=(8, 5))
    layers = ("residual", "compress_time")
    video = library.VideoTokenizer(init_dim=16, max_dim=16, patch_size=4, layers=layers)
    models = {"image": image, "video": video}
    return {n: m.save_pretrained(tmp_path_factory.mktemp(n)) for n, m in models.items()}


@pytest.fixture
def follow(quintet: Quintet) -> Callable[..., str]:
    """Runs a command as printed, with further arguments to make it short."""

    def call(command: str, *more: object) -> str:
        name, *words = shlex.split(command)
        assert name == "quintet"
        said = quintet(*words, *more)
        assert said.status == 0, f"{command}\n{said.err}"
        assert "stopped at step" not in said.err
        return said.out

    return call


def next_commands(out: str) -> list[str]:
    return [line.strip() for line in out.partition("Next:\n")[2].splitlines()]


# Each with the commands of another, less or more one flag; test_readme.py samples from meshes.
SLOW = {"mesh transformer", "mesh transformer without text", "speech without text"}
SLOW |= {"video generator"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in RECIPES]
)
def test_the_commands_after_training_run_as_printed(
    name: str,
    folder: Path,
    autoencoder: Path,
    tokenizers: dict[str, Path],
    quintet: Quintet,
    follow: Callable[..., str],
) -> None:
    run = "Ann's run"
    stage: list[object] = ["--autoencoder", autoencoder] if "transformer" in name else []
    if "generator" in name:
        stage = ["--tokenizer", tokenizers[name.split()[0]]]
    said = quintet("train", *RECIPES[name].split(), *stage, "--run", run)
    assert said.status == 0, said.err
    shown = re.search(r"^Look at (.*)$", said.out, re.MULTILINE)
    assert shown
    assert Path(shown[1]).suffix == ".png"
    sample, export = next_commands(said.out)
    assert any(Path(line).is_file() for line in follow(sample).splitlines())
    assert json.loads(exported(follow(export)))["model"] == library.load(run).label()


def exported(out: str) -> str:
    """config.json of an export, found by the Python line that it prints."""
    line = next(line for line in out.splitlines() if line.startswith("load it with "))
    model = eval(line.removeprefix("load it with "), {"quintet": library})
    assert not model.training
    return Path("model/config.json").read_text()


def test_a_run_without_validation_data_suggests_what_works(
    folder: Path, quintet: Quintet, follow: Callable[..., str]
) -> None:
    picture(folder / "photos/only.png", 1)
    words = ["photos", "--run", "run", *TINY, "--batch-size", 1, "--steps", 1]
    said = quintet("train", "image/vqgan_tiny", *words)
    sample, export = next_commands(said.out)
    assert "photos/only.png" in sample
    assert any(Path(line).is_file() for line in follow(sample).splitlines())
    follow(export)


CLIPS = "--videos.size 32 32 --videos.frames 5 --videos.valid-limit 2"
SOUNDS = "--sounds.valid-limit 2 --sounds.builtin-count 8"
ADOPTED = {
    "video/adopt_tiny": ("AutoencoderKLWan", CLIPS),
    "music/adopt_tiny": ("DacModel", SOUNDS),
    "music/clap_tiny": (
        "ClapModel",
        f"{SOUNDS} --sounds.sample-rate 8000 --sounds.seconds 1 --sounds.min-seconds 1",
    ),
}


@pytest.mark.by_default("music/clap_tiny")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "video" in n else ()) for n in ADOPTED]
)
def test_runs_of_adopted_models_suggest_how_to_sample(
    name: str, folder: Path, quintet: Quintet, follow: Callable[..., str]
) -> None:
    model, flags = ADOPTED[name]
    words = [*FEW.split(), *flags.split(), "--batch-size", 2, "--run", "run"]
    said = quintet("train", name, "--from", adopting.folder(model), *words)
    sample, _ = next_commands(said.out)
    assert any(Path(line).is_file() for line in follow(sample).splitlines())


def test_a_run_below_its_baselines_and_one_that_is_never_flat_say_so(
    folder: Path, quintet: Quintet
) -> None:
    words = [*TINY, "--evaluate-every", 0, "--stop-when-flat", 2, "--steps", 2]
    said = quintet("train", "image/vqgan_tiny", *words, "--run", "run")
    assert "stop_when_flat 2 cannot stop this run: it is evaluated 0 times before" in said.err
    assert re.search(r"the run ends with psnr \S+, no better than psnr_mean_colour", said.err)


def test_a_picture_is_shown_before_clips_sounds_meshes_and_texts(tmp_path: Path) -> None:
    assert best_exhibit(tmp_path) is None
    old, new = (tmp_path / "exhibits" / f"step-0000000{step}" for step in (1, 2))
    for path in (old, new):
        path.mkdir(parents=True)
    (old / "a.png").touch()
    for name in ("z.txt", "a.glb", "b.wav", "c.gif", "d.png"):
        (new / name).touch()
        assert best_exhibit(tmp_path) == new / name


# -- every command that a message suggests --------------------------------------------------------


def sites() -> set[str]:
    """The functions that call `suggest.command`, as FILE:FUNCTION."""
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        functions = ast.walk(ast.parse(text)) if "suggest import" in text else ()
        for node in functions:
            if isinstance(node, ast.FunctionDef) and "command" in called_in(node):
                found.add(f"{path.relative_to(PACKAGE).as_posix()}:{node.name}")
    return found


def called_in(function: ast.FunctionDef) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.id for call in calls if isinstance(call, ast.Name)}


@dataclass(frozen=True)
class Desk:
    """What a case needs to bring about a message."""

    quintet: Quintet
    folder: Path
    """The working folder."""
    run: Path
    """A run of six steps on built-in data."""
    photos: Path
    monkeypatch: pytest.MonkeyPatch

    def call(self, *words: object) -> None:
        self.quintet(*words)

    def train(self, *words: object) -> None:
        self.quintet("train", "image/vqgan_tiny", *TINY, "--steps", 2, "--save-every", 1, *words)

    def move(self) -> None:
        """A run of two steps, whose data is elsewhere since."""
        shutil.copytree(self.photos, "before")
        self.train("before", "--run", "moved")
        Path("before").rename("after")


def failing(sentence: str, call: Callable[[], object]) -> None:
    with pytest.raises((RunError, Stopped), match=sentence):
        call()


def gpu_failure(desk: Desk) -> None:
    def fail(arguments: list[str]) -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with desk.monkeypatch.context() as patch:
        patch.setattr(cli, "run_command", fail)
        assert desk.quintet("train").status == 2


def interrupted_demo(desk: Desk) -> None:
    def stop() -> None:
        with demo.report_interrupts(desk.folder / "demo"):
            raise Stopped("stopped by an interrupt", 130)

    failing("progress is saved", stop)


def without_plotly(desk: Desk) -> None:
    desk.monkeypatch.setattr(page.script, "plotly", lambda: "")
    page.plotly_note(load_source([desk.run]))


def damaged_folder(desk: Desk) -> Path:
    for photo in sorted(desk.photos.rglob("*"))[4:]:
        if photo.is_file():
            photo.write_text(f"{photo.name} is no picture")
    return desk.photos


def damaged_metrics(desk: Desk) -> None:
    with (desk.run / "metrics.jsonl").open("a") as file:
        file.write("{")
    desk.call("doctor", desk.run)


def out_of_memory(desk: Desk) -> None:
    recipe = rooms.recorded(RunFolder.open(desk.run).about, desk.run)[1]
    names = SimpleNamespace
    run: Any = names(step=3, folder=names(path=desk.run), compiler=names(start=None))
    run.parts = names(focus=None)
    world: Any = names(precision="fp32", device=names(type="cuda"))
    auto_batch.explained(recipe, world, run, MemoryError())


def python_judges(desk: Desk) -> None:
    recipe = replace(rooms.recipe_function("image/vqgan_tiny")(), judges=("all",))
    failing("judge the run", lambda: start(rooms.build, recipe, desk.run, name=None))


def scores_of_nothing(desk: Desk) -> None:
    Path("scores.json").write_text("nothing")
    desk.call("compare", "scores.json")


CASES: dict[str, Callable[[Desk], object]] = {
    "cli/__init__.py:answered": gpu_failure,
    "cli/compare.py:compare": lambda desk: desk.call("compare", desk.photos),
    "cli/demo/command.py:report_interrupts": interrupted_demo,
    "cli/demo/full.py:print_summary": lambda desk: print_summary({}, Path("index.html")),
    "cli/demo/page.py:next_steps": lambda desk: next_steps({}),
    "cli/doctor/command.py:unknown": lambda desk: [
        desk.call("doctor", word) for word in ("image", "nothing", desk.photos)
    ],
    "cli/evaluate.py:evaluate": lambda desk: (desk.move(), desk.call("evaluate", "moved")),
    "cli/evaluate.py:warn": lambda desk: (
        desk.train(desk.photos, "--run", "own"),
        desk.call("evaluate", "own", desk.photos),
    ),
    "cli/judges.py:read_scores": scores_of_nothing,
    "cli/judges.py:say_silent": lambda desk: desk.call(
        *("evaluate", "--pair", desk.photos, desk.photos)
    ),
    "cli/launch/command.py:launch": lambda desk: desk.call("launch", "--help"),
    "cli/encode.py:show": lambda desk: desk.call(
        *("encode", desk.run, desk.photos, "--out", "coded", "--device", "cpu")
    ),
    "cli/pack.py:pack_folder": lambda desk: desk.call("pack", damaged_folder(desk), "my shards"),
    "cli/replay.py:replay": lambda desk: (desk.move(), desk.call("replay", "moved", "--step", 2)),
    "cli/report.py:report": lambda desk: desk.call("report"),
    "cli/resume.py:new_run": lambda desk: desk.call(
        *("resume", desk.run, "--images.size", 16, 16, "--steps", 7)
    ),
    "cli/resume.py:resume": lambda desk: (desk.move(), desk.call("resume", "moved")),
    "cli/resume.py:resume_help": lambda desk: desk.call("resume", desk.run, "--help"),
    "cli/sample.py:sample": lambda desk: desk.call("sample", "--help"),
    "cli/train.py:next_commands": lambda desk: desk.train("--run", "new"),
    "cli/train.py:recipe_examples": lambda desk: desk.call("train", "image/vqgan_tiny", "--help"),
    "cli/train.py:recipe_help": lambda desk: desk.call("train", "image/vqgan_tiny", "--help"),
    "cli/train.py:train": lambda desk: desk.call("train", "--help"),
    "engine/models/ready.py:found": lambda desk: desk.call("evaluate", "ready/nothing"),
    "engine/models/export.py:require_usable": lambda desk: desk.call(
        *("export", with_nan(desk.run, steps=(6,)), "model")
    ),
    "engine/launch.py:start": python_judges,
    "engine/models/pretrained.py:copy_card": lambda desk: failing(
        "holds no README", lambda: copy_card(desk.folder, desk.folder / "card")
    ),
    "engine/run.py:_listing_damaged": lambda desk: desk.train(damaged_folder(desk), "--run", "bad"),
    "engine/run.py:stop_if_asked": lambda desk: (
        desk.train("--run", "late", "--minutes", 1e-9),
        desk.train(
            *("--run", "flat", "--stop-when-flat", 1, "--evaluate-every", 1),
            *("--steps", 5, "--optim.learning-rate", 1e-30),
        ),
    ),
    "engine/runs/folder.py:create": lambda desk: desk.train("--run", desk.run),
    "engine/runs/frozen.py:_remedy": lambda desk: desk.call("train", "mesh/transformer_tiny"),
    "engine/runs/verify.py:resume_command": damaged_metrics,
    "engine/tools/auto_batch.py:explained": out_of_memory,
    "judges/choosing.py:chosen": lambda desk: failing(
        "no judge of sets works here", lambda: chosen("image", (), "sets")
    ),
    "report/page.py:plotly_note": without_plotly,
    "rooms.py:recipe_function": lambda desk: desk.call("train", "image/vqgn"),
}
"""How each function that suggests a command is made to."""
ELSEWHERE = {
    "cli/launch/job.py:header",  # tests/cli/launch/test_launch.py: it repeats the command
    "cli/demo/page.py:sample_command",  # test_demo.py, which has the runs
    "cli/stored_runs.py:with_mirrors",  # tests/engine/runs/remote: its recipe is not known
    "cli/serve.py:serve",  # tests/serve/test_command.py: it runs until a signal
}


def test_every_suggestion_has_a_case() -> None:
    assert set(CASES) | ELSEWHERE == sites()


@pytest.mark.by_default(
    "image/vqgan_tiny",
    "mesh/transformer_tiny",
    "music/adopt_tiny",
    "speech/voicebox_tiny",
    "video/maskgit_tiny",
)
@pytest.mark.parametrize("name", [n for n in rooms.names() if n.endswith("_tiny")])
def test_settings_are_typed_as_they_are_read(name: str) -> None:
    default = rooms.recipe_function(name.removesuffix("_tiny"))()
    recipe = rooms.recipe_function(name)()
    before = {setting.name: setting.default for setting in settings_of(default)}
    changed = [s for s in settings_of(recipe) if s.default != before[s.name]]
    words = [word for setting in changed for word in setting.words]
    assert parse(flags_of(name, default), words, "train").settings == recipe


@pytest.fixture
def suggested(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The commands that were suggested, by the function that did."""
    commands: dict[str, set[str]] = defaultdict(set)

    def words(*values: object) -> str:
        text, caller = shlex.join(map(str, values)), sys._getframe(2).f_code
        file = Path(caller.co_filename)
        if values[0] == "quintet":
            commands[f"{file.relative_to(PACKAGE).as_posix()}:{caller.co_name}"].add(text)
        return text

    monkeypatch.setattr(suggest, "words", words)
    return commands


# Data that has moved and a run that has ended, which others of them and a test above bring about.
ALIKE = {"cli/evaluate.py:evaluate", "cli/replay.py:replay", "cli/train.py:next_commands"}


@pytest.mark.parametrize(
    "site", [pytest.param(s, marks=pytest.mark.slow if s in ALIKE else ()) for s in CASES]
)
def test_a_suggested_command_runs_as_printed(
    site: str,
    folder: Path,
    copied: Path,
    photos: Path,
    quintet: Quintet,
    follow: Callable[..., str],
    suggested: dict[str, set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, own_photos = copied.rename(folder / "it's mine"), photos.rename(folder / "my photos")
    monkeypatch.setenv("QUINTET_JUDGES", str(folder / "nowhere"))
    CASES[site](Desk(quintet, folder, run, own_photos, monkeypatch))
    assert suggested[site]
    if site == "engine/run.py:stop_if_asked":
        assert any("flat --stop-when-flat 0" in command for command in suggested[site])
    for index, command in enumerate(sorted(suggested[site])):
        follow(filled(command, run, folder, f"new {index}"), *shortened(command))


def filled(command: str, run: Path, folder: Path, new: str) -> str:
    """With things of the user's in the place of words in capitals."""
    photos = folder / ("after" if (folder / "after").is_dir() else "my photos")
    mine: dict[str, object] = {"RUN": run, "FOLDER": photos, "PHOTOS": photos}
    mine |= {"RECIPE": "image/vqgan_tiny", "DATA": photos}
    words = [str(mine.get(word, word)) for word in shlex.split(command)]
    if words[1] == "export":
        words[3] = new
    return shlex.join(words)


def shortened(command: str) -> list[object]:
    """What makes a command of hours one of seconds."""
    _, verb, *words = shlex.split(command)
    if "--init-from" in words or {"--help", "--help-all"} & {*words}:
        return []
    if verb == "train" and words[0].startswith("image/vqgan"):
        return [*TINY, "--steps", 1, "--max-damaged", 1]
    return ["--help"] if verb in ("train", "demo") else []
