"""The demo: six trainings one after another, one page, and no harm in stopping it."""

import contextlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from command import Quintet
from rich.console import Console

from harness import assert_same, tensors
from quintet import rooms
from quintet.cli import main
from quintet.cli.demo_display import Display
from quintet.cli.demo_stages import STAGES, seconds_of, settings_of

FOLDERS = [stage.folder for stage in STAGES]


class Shown(NamedTuple):
    path: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A demo of one step each. Never to be written to."""
    path = tmp_path_factory.mktemp("shown") / "demo"
    out, err = io.StringIO(), io.StringIO()
    quiet = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with quiet[0], quiet[1], pytest.raises(SystemExit) as ended:
        main(["demo", "--run", str(path), "--steps", "1"])
    assert not ended.value.code, err.getvalue()
    return Shown(path, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def page(shown: Shown) -> str:
    return (shown.path / "index.html").read_text(encoding="utf-8")


def written(demo: Path) -> dict[str, bytes]:
    """What trainings leave behind: not pages, not what is sampled."""
    files = (p for name in FOLDERS for p in sorted((demo / name).rglob("*")) if p.is_file())
    kept = (p for p in files if p.suffix in (".safetensors", ".jsonl", ".json"))
    return {str(p.relative_to(demo)): p.read_bytes() for p in kept}


# -- what it does ---------------------------------------------------------------------------------


def test_it_trains_every_tiny_recipe_that_there_is(shown: Shown) -> None:
    tiny = {name for name in rooms.names() if name.endswith("_tiny")}
    assert {stage.recipe for stage in STAGES} == tiny
    for stage in STAGES:
        about = json.loads((shown.path / stage.folder / "config.json").read_text())
        assert about["recipe"] == stage.recipe
        assert (shown.path / stage.folder / "checkpoints/step-00000001/state.json").is_file()
        assert list((shown.path / stage.folder / "exhibits").rglob("*.png"))
        assert (shown.path / stage.folder / "report.html").is_file()


def test_the_transformer_stands_on_the_autoencoder_just_trained(shown: Shown) -> None:
    about = json.loads((shown.path / "writer/config.json").read_text())
    assert about["settings"]["autoencoder"] == str((shown.path / "codes").resolve())
    assert list((shown.path / "writer/frozen/autoencoder").glob("*.safetensors"))


def test_where_there_is_no_terminal_it_says_a_line_for_each_training(shown: Shown) -> None:
    begun = re.findall(r"^(.+) \((\d) of 6\): (\S+), 1 steps$", shown.err, re.MULTILINE)
    assert begun == [(s.title, str(i), s.recipe) for i, s in enumerate(STAGES, 1)]
    for stage in STAGES:
        assert re.search(rf"^{stage.title}: done; .*\d", shown.err, re.MULTILINE)
    assert "\x1b" not in shown.err


def test_the_page_says_what_each_is_and_its_numbers_in_words(page: str, shown: Shown) -> None:
    for stage in STAGES:
        assert stage.what.split(":")[0] in page
        (line,) = [row for row in shown.out.splitlines() if row.startswith(stage.title + " ")]
        numbers = line.removeprefix(stage.title).strip().replace("'", "&#x27;")
        assert re.search(r"\d", numbers)
        assert numbers[1:] in page.replace("&#39;", "&#x27;")
    assert "mean colour" in page
    assert "by chance" in page


def test_the_page_shows_what_was_generated_from_which_sentence(page: str) -> None:
    for words in ("“ba do ki”", "“a slow minor melody on strings”, similarity", "a tall cone"):
        assert words in page
    assert page.count("data:audio/wav") >= 8
    assert "What to do next" in page
    assert "quintet sample " in page


def test_the_page_needs_no_network(page: str) -> None:
    own = page[: page.index("</main>")]
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", own) == []


def test_it_ends_by_naming_the_page_and_what_is_next(shown: Shown) -> None:
    assert f"All of it on one page: {shown.path / 'index.html'}" in shown.out
    assert "Next: quintet sample" in shown.out


# -- stopped and started again --------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--continue"]])
def test_what_is_finished_is_not_trained_again(
    words: list[str], shown: Shown, tmp_path: Path, quintet: Quintet
) -> None:
    demo = Path(shutil.copytree(shown.path, tmp_path / "demo"))
    (demo / "index.html").unlink()
    before = written(demo)
    said = quintet("demo", "--run", demo, *words)
    assert said.status == 0
    assert "Going on with the demo" in said.out
    assert said.err.count("was done") == len(STAGES)
    assert written(demo) == before
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
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.01)


def test_an_interrupt_keeps_what_was_trained_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path / "demo", 1000)
    wait_for(process, tmp_path / "demo/image/metrics.jsonl")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert f"Go on with: quintet demo --run {tmp_path / 'demo'}" in err.splitlines()[-1]
    assert list((tmp_path / "demo/image/checkpoints").glob("step-*/state.json"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["codes", "writer", "voice"])
def test_killed_and_started_again_it_ends_as_if_nothing_had_happened(
    stage: str, tmp_path: Path
) -> None:
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


# -- what it refuses ------------------------------------------------------------------------------


def test_another_length_is_refused_and_changes_nothing(shown: Shown, quintet: Quintet) -> None:
    before = written(shown.path)
    for words in (["--quick"], ["--steps", 2]):
        said = quintet("demo", "--run", shown.path, *words)
        assert said.status == 2
        assert "another length (1 steps each)" in said.err
    assert written(shown.path) == before


def test_a_folder_that_is_not_a_demos_is_refused(tmp_path: Path, quintet: Quintet) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years")
    for place in (tmp_path / "mine", tmp_path / "mine/thesis.txt"):
        said = quintet("demo", "--run", place, "--quick")
        assert said.status == 2
        assert "not a demo's folder" in said.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("content", ["{", "[]", '{"length": "long"}', '{"length": true}', "{}"])
def test_a_damaged_note_of_the_demo_is_refused_by_name(
    content: str, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "demo.json").write_text(content)
    said = quintet("demo", "--run", tmp_path)
    assert said.status == 2
    assert "demo.json" in said.err


def test_no_steps_at_all_are_refused(tmp_path: Path, quintet: Quintet) -> None:
    assert "--steps" in quintet("demo", "--run", tmp_path / "demo", "--steps", 0).err
    assert not (tmp_path / "demo").exists()


# -- how long it takes, and how that is shown -----------------------------------------------------


@pytest.mark.parametrize(("length", "minutes"), [("full", 12), ("quick", 3)])
def test_the_plan_leaves_a_fifth_of_its_time(length: str, minutes: int) -> None:
    pages = 15  # seconds of loading torch, of sampling and of writing the page
    planned = sum(seconds_of(stage, length) for stage in STAGES) + pages  # type: ignore[arg-type]
    assert planned <= 0.8 * 60 * minutes


@pytest.mark.parametrize("length", ["full", "quick", 3])
@pytest.mark.parametrize("stage", STAGES, ids=FOLDERS)
def test_a_schedule_is_as_long_as_its_training(stage, length, tmp_path: Path) -> None:
    settings = settings_of(stage, length, tmp_path)
    assert settings.schedule_steps is None  # follows the steps
    assert settings.steps == (length if length == 3 else stage.steps[length])
    assert settings.device == "cpu"
    assert settings.save_every <= max(1, settings.steps // 3)


def test_a_terminal_shows_six_lines_with_state_step_number_and_time_left() -> None:
    display = Display(STAGES, "full")
    display.found(STAGES[0], 500, f"20.1 dB {'and so on ' * 9}; guessing: 14.0")
    display.start(STAGES[1], 200, 0)
    display.report(STAGES[1], {"step": 50, "autoencoder/loss": 0.5, "samples_per_second": 9.0})
    display.report(STAGES[1], {"step": 50, "val/loss": 0.4})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(display.table())
    lines = console.export_text().rstrip().splitlines()
    assert len(lines) == len(STAGES) + 1
    assert re.search(r"Pictures +was done +500/500 .*20\.1 dB", lines[0])
    assert re.search(r"Mesh codes +training +50/200 .*left +loss 0\.5", lines[1])
    assert re.search(r"Meshes from text +waiting +0/800", lines[2])
    assert re.search(r"\d:\d\d left in all", lines[-1])
