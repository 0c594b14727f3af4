"""The demo: the stages of all rooms in turn, one page, and safe interruption."""

import base64
import contextlib
import dataclasses
import io
import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import Quintet
from rich.console import Console

from adopting import adopts
from campaign.subjects import OF_ROOM, replaced
from harness import assert_same, tensors
from quintet import rooms
from quintet.cli import main
from quintet.cli.demo import stages
from quintet.cli.demo.display import Display
from quintet.cli.demo.page import sample_command
from quintet.cli.demo.stages import FEWEST, all_stages, fitting_settings, seconds_of, settings_of
from quintet.shared.demo import Stage

STAGES = all_stages()
FOLDERS = [stage.folder for stage in STAGES]


@pytest.fixture(scope="module", autouse=True)
def _narrow() -> Iterator[None]:
    """Narrow networks in this process. The slow tests start the demo as it is."""

    def settings(stage: Stage, *how: Any) -> Any:
        return replaced(settings_of(stage, *how), OF_ROOM.get(stage.recipe.split("/")[0], {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "settings_of", settings)
        yield


class Finished(NamedTuple):
    path: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A demo of one step per stage. Read-only."""
    path = tmp_path_factory.mktemp("shown") / "demo"
    out, err = io.StringIO(), io.StringIO()
    quiet = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with quiet[0], quiet[1], pytest.raises(SystemExit) as ended:
        main(["demo", "--run", str(path), "--steps", "1"])
    assert not ended.value.code, err.getvalue()
    return Finished(path, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def page(finished: Finished) -> str:
    return (finished.path / "index.html").read_text(encoding="utf-8")


def training_files(demo: Path) -> dict[str, bytes]:
    """Files written by training, without pages and samples."""
    files = (p for name in FOLDERS for p in sorted((demo / name).rglob("*")) if p.is_file())
    state = (p for p in files if p.suffix in (".safetensors", ".jsonl", ".json"))
    return {str(p.relative_to(demo)): p.read_bytes() for p in state}


# -- results ---------------------------------------------------------------------------------


LEFT_OUT = {
    "mesh/autoencoder_compact_tiny",
    "speech/vocoder_tiny",
    "video/maskgit_tiny",
}
"""Sixteen minutes are too short for these as well."""


def test_the_demo_trains_every_tiny_recipe(finished: Finished) -> None:
    names = (name for name in rooms.names() if name.endswith("_tiny"))
    tiny = {name for name in names if not adopts(rooms.recipe_function(name)())}
    assert {stage.recipe for stage in STAGES} == tiny - LEFT_OUT
    for stage in STAGES:
        about = json.loads((finished.path / stage.folder / "config.json").read_text())
        assert about["recipe"] == stage.recipe
        assert (finished.path / stage.folder / "checkpoints/step-00000001/state.json").is_file()
        assert list((finished.path / stage.folder / "exhibits").rglob("*.png"))
        assert (finished.path / stage.folder / "report.html").is_file()


def test_the_transformer_uses_the_autoencoder_of_the_demo(finished: Finished) -> None:
    about = json.loads((finished.path / "transformer/config.json").read_text())
    assert about["settings"]["autoencoder"] == str((finished.path / "autoencoder").resolve())
    assert list((finished.path / "transformer/frozen/autoencoder").glob("*.safetensors"))


def test_the_image_generator_learns_the_pictures_of_its_tokenizer(finished: Finished) -> None:
    image, pictures = (
        json.loads((finished.path / name / "config.json").read_text())["settings"]
        for name in ("image", "pictures")
    )
    assert pictures["tokenizer"] == str((finished.path / "image").resolve())
    assert pictures["images"]["builtin"] == image["images"]["builtin"] == "figure"
    assert math.prod(image["model"]["levels"]) == 256


def test_the_page_shows_pictures_for_captions_and_their_nearest_training_picture(
    page: str, finished: Finished
) -> None:
    section = page.split("<h3>Text to image ")[1].split("<h3>")[0]
    assert "the training picture nearest to the first generated one" in section
    (sheet,) = (finished.path / "pictures/exhibits").glob("step-*/generated.png")
    assert base64.b64encode(sheet.read_bytes()).decode() in section


def test_without_a_terminal_one_line_is_printed_per_stage(finished: Finished) -> None:
    started = re.findall(r"^(.+) \((\d) of \d\): (\S+), 1 steps$", finished.err, re.MULTILINE)
    assert started == [(s.title, str(i), s.recipe) for i, s in enumerate(STAGES, 1)]
    for stage in STAGES:
        assert re.search(rf"^{stage.title}: done; .*\d", finished.err, re.MULTILINE)
    assert "\x1b" not in finished.err


def test_the_page_describes_each_stage_and_its_metrics(page: str, finished: Finished) -> None:
    for stage in STAGES:
        assert stage.description.split(":")[0] in page
        (line,) = [row for row in finished.out.splitlines() if row.startswith(stage.title + " ")]
        metrics = line.removeprefix(stage.title).strip().replace("'", "&#x27;")
        assert re.search(r"\d", metrics)
        assert metrics[1:] in page.replace("&#39;", "&#x27;")
    assert "mean colour" in page
    assert "chance: " in page


def test_the_page_shows_samples_with_their_prompts(page: str) -> None:
    for text in ("“ba do ki”", "“a slow minor melody on strings”, similarity", "a tall cone"):
        assert text in page
    assert page.count("data:audio/wav") >= 8
    assert "Next steps" in page
    assert "quintet sample " in page


def test_the_page_opens_with_something_of_every_stage(page: str) -> None:
    sections = [page.split(f"<h3>{stage.title} ")[1].split("<h3>")[0] for stage in STAGES]
    for stage, section in zip(STAGES, sections):
        kinds = ("<img", "<audio")
        assert any(kind in section.split("<section")[0] for kind in kinds), stage.title
    assert "data:image/gif" in sections[FOLDERS.index("video")]  # clips move


def test_the_page_needs_no_network(page: str) -> None:
    own = page[: page.index("</main>")]
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", own) == []


def test_the_demo_ends_by_naming_the_page_and_next_commands(finished: Finished) -> None:
    assert f"Results: {finished.path / 'index.html'}" in finished.out
    assert "Next: quintet sample" in finished.out


@pytest.mark.parametrize("stage", [s for s in STAGES if s.next_arguments], ids=lambda s: s.folder)
def test_the_sample_commands_of_the_page_run_as_printed(
    stage: Stage, finished: Finished, tmp_path: Path, quintet: Quintet, monkeypatch
) -> None:
    demo = tmp_path / "Ann's demo"
    demo.symlink_to(finished.path)
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(sample_command(stage, demo))
    assert name == "quintet"
    said = quintet(*words)
    assert said.status == 0, said.err


# -- interruption --------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["--resume"], pytest.param([], marks=pytest.mark.slow)])
def test_finished_stages_are_not_trained_again(
    flags: list[str], finished: Finished, tmp_path: Path, quintet: Quintet
) -> None:
    demo = Path(shutil.copytree(finished.path, tmp_path / "demo"))
    (demo / "index.html").unlink()
    before = training_files(demo)
    result = quintet("demo", "--run", demo, *flags)
    assert result.status == 0
    assert "Resuming the demo" in result.out
    assert result.err.count("already done") == len(STAGES)
    assert training_files(demo) == before
    assert (demo / "index.html").is_file()


def start(demo: Path, steps: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "quintet", "demo", "--run", str(demo), "--steps", str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> None:
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err


def wait_for(process: "subprocess.Popen[str]", path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.01)


@pytest.mark.slow
def test_an_interrupt_saves_progress_and_names_the_command_to_resume(tmp_path: Path) -> None:
    process = start(tmp_path / "demo", 1000)
    wait_for(process, tmp_path / "demo/image/metrics.jsonl")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert f"Resume with: quintet demo --run {tmp_path / 'demo'}" in err.splitlines()[-1]
    assert list((tmp_path / "demo/image/checkpoints").glob("step-*/state.json"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["autoencoder", "transformer", "speech"])
def test_a_killed_demo_resumes_bit_for_bit(stage: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(whole, 4))
    process = start(broken, 4)
    wait_for(process, broken / stage / "metrics.jsonl")
    process.kill()
    process.communicate()
    done = [name for name in FOLDERS[: FOLDERS.index(stage)] if (broken / name).exists()]
    before = {name: (broken / name / "metrics.jsonl").read_bytes() for name in done}
    finish(start(broken, 4))
    for name in FOLDERS:
        assert_same(tensors(whole / name, 4), tensors(broken / name, 4))
    assert {n: (broken / n / "metrics.jsonl").read_bytes() for n in done} == before


# -- invalid requests ------------------------------------------------------------------------------


def test_another_length_is_rejected_and_changes_nothing(
    finished: Finished, quintet: Quintet
) -> None:
    before = training_files(finished.path)
    for flags in (["--quick"], ["--steps", 2]):
        result = quintet("demo", "--run", finished.path, *flags)
        assert result.status == 2
        assert "another length (1 steps per stage)" in result.err
    assert training_files(finished.path) == before


def test_a_folder_that_is_not_a_demo_is_rejected(tmp_path: Path, quintet: Quintet) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years")
    for path in (tmp_path / "mine", tmp_path / "mine/thesis.txt"):
        result = quintet("demo", "--run", path, "--quick")
        assert result.status == 2
        assert "not a demo folder" in result.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("content", ["{", "[]", '{"length": "long"}', '{"length": true}', "{}"])
def test_a_damaged_demo_json_is_rejected_by_name(
    content: str, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "demo.json").write_text(content)
    result = quintet("demo", "--run", tmp_path)
    assert result.status == 2
    assert "demo.json" in result.err


def test_zero_steps_are_rejected(tmp_path: Path, quintet: Quintet) -> None:
    assert "--steps" in quintet("demo", "--run", tmp_path / "demo", "--steps", 0).err
    assert not (tmp_path / "demo").exists()


# -- duration and display -----------------------------------------------------


@pytest.mark.parametrize(("length", "minutes"), [("full", 16), ("quick", 4)])
def test_the_planned_time_leaves_a_margin_of_a_fifth(length: str, minutes: int) -> None:
    pages = 15  # seconds of loading torch, of sampling and of writing the page
    planned = sum(seconds_of(stage, length) for stage in STAGES) + pages  # type: ignore[arg-type]
    assert planned <= 0.8 * 60 * minutes


@pytest.mark.parametrize("length", ["full", "quick", 3])
@pytest.mark.parametrize("stage", STAGES, ids=FOLDERS)
def test_a_schedule_is_as_long_as_its_stage(stage, length, tmp_path: Path) -> None:
    settings = settings_of(stage, length, tmp_path)
    assert settings.schedule_steps is None  # follows the steps
    assert settings.steps == (length if length == 3 else stage.steps[length])
    assert settings.device == "cpu"
    assert settings.save_every <= max(1, settings.steps // 3)


def test_a_terminal_shows_state_step_metric_and_time_left_per_stage() -> None:
    display = Display(STAGES, "full")
    display.skip(STAGES[0], 500, f"PSNR 20.1 dB {'and so on ' * 9}; baseline: 14.0")
    stage = STAGES[FOLDERS.index("autoencoder")]
    display.start(stage, 200, 0)
    display.report(stage, {"step": 50, "autoencoder/loss": 0.5, "samples_per_second": 9.0})
    display.report(stage, {"step": 50, "val/loss": 0.4})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(display.table())
    lines = console.export_text().rstrip().splitlines()
    assert len(lines) == len(STAGES) + 1
    assert re.search(r"Images +already done +500/500 .*20\.1 dB", lines[0])
    assert re.search(r"Mesh autoencoder +training +50/200 .*left +loss 0\.5", lines[2])
    assert re.search(r"Text to mesh +waiting +0/800", lines[3])
    assert re.search(r"\d:\d\d left in total", lines[-1])


@pytest.mark.parametrize(("seconds", "fewer"), [(1, True), (100_000, False)])
def test_a_slow_machine_takes_fewer_steps_and_says_so(
    seconds: int, fewer: bool, tmp_path: Path
) -> None:
    """Slow by the stage's own statement: a second is not enough anywhere."""
    stage = next(stage for stage in all_stages() if stage.recipe == "mesh/autoencoder_tiny")
    stage = dataclasses.replace(stage, seconds={"full": seconds, "quick": seconds})
    settings, sentence = fitting_settings(stage, "full", tmp_path)
    assert (settings.steps < stage.steps["full"]) == fewer
    assert settings.steps >= FEWEST
    if fewer:
        assert sentence is not None
        assert f"{settings.steps} steps instead of {stage.steps['full']}" in sentence
    else:
        assert sentence is None
    assert not list(tmp_path.iterdir())  # measured elsewhere
