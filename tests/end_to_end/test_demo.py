"""The demo: a page with the ready models and a run that is resumed, or the stages of all rooms."""

import contextlib
import hashlib
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from command import Quintet
from rich.console import Console

from adopting import adopts
from campaign.children import Program
from campaign.subjects import OF_ROOM, replaced
from harness import assert_same, tensors
from quintet import rooms
from quintet.cli import main
from quintet.cli.demo import proof, stages
from quintet.cli.demo.display import Display
from quintet.cli.demo.page import Page, sample_command, watched
from quintet.cli.demo.short import MULTIPLE
from quintet.cli.demo.stages import FEWEST, all_stages, demos, fitting_settings, live, settings_of
from quintet.engine.models import ready
from quintet.shared.demo import Stage

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))  # for browser.py

from browser import PROGRAM, Browser

STAGES = all_stages()
FOLDERS = [stage.folder for stage in STAGES]


@pytest.fixture(scope="module", autouse=True)
def _narrow() -> Iterator[None]:
    """Narrow networks and few samples in this process. The slow tests start the demo as it is."""

    def settings(stage: Stage, *how: Any, **more: Any) -> Any:
        narrow = OF_ROOM.get(stage.recipe.split("/")[0], {})
        return replaced(settings_of(stage, *how, **more), {"sampling_steps": 2} | narrow)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "settings_of", settings)
        patch.setattr("quintet.mesh.demo.VIEWS", 2)
        patch.setattr("quintet.music.demo.CLIPS", 4)
        yield


class Finished(NamedTuple):
    path: Path
    out: str
    err: str


def finish_here(path: Path, *flags: object) -> Finished:
    out, err = io.StringIO(), io.StringIO()
    quiet = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with quiet[0], quiet[1], pytest.raises(SystemExit) as ended:
        main(["demo", "--run", str(path), *map(str, flags)])
    assert not ended.value.code, err.getvalue()
    return Finished(path, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A full demo of one step per stage. Read-only."""
    path = tmp_path_factory.mktemp("full") / "demo"
    return finish_here(path, "--full", "--steps", 1)


@pytest.fixture(scope="module")
def page(finished: Finished) -> str:
    return (finished.path / "index.html").read_text(encoding="utf-8")


READY = {"image": "pictures", "mesh": "transformer", "music": "music", "speech": "speech"}
"""Runs of the full demo that stand for ready models, which are too large for these tests."""


@pytest.fixture(scope="module")
def models(
    finished: Finished, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.MonkeyPatch]:
    folder = tmp_path_factory.mktemp("ready")
    for name, run in READY.items():
        with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main(["export", str(finished.path / run), str(folder / name)])
        lines = (finished.path / run / "metrics.jsonl").read_text().splitlines()
        values = {n: v for line in lines for n, v in json.loads(line).items() if n[:4] == "val/"}
        card = {"command": f"quintet train {name}", "seconds": 1.0, "bytes": 1, "metrics": values}
        (folder / name / ready.CARD).write_text(json.dumps(card))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready, "FOLDER", folder)
        yield patch


@pytest.fixture(scope="module")
def short(models: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A demo of twelve steps, with all versions of its page. Read-only."""
    path = tmp_path_factory.mktemp("short") / "demo"
    versions = path.parent / "versions"
    versions.mkdir()
    html = Page.html

    def kept(page: Page) -> str:
        (versions / f"{len(list(versions.iterdir())):03d}.html").write_text(html(page))
        return html(page)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Page, "html", kept)
        quick = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)
        patch.setattr(proof, "subprocess", quick)
        return finish_here(path, "--steps", 12)


class Forked(Program):
    """The command of proof.py in a process that has imported everything."""

    def __init__(self, command: list[str], stdout: Any, **_: Any):
        program, words = command[:3], command[3:]
        assert program == [sys.executable, "-m", "quintet"]
        super().__init__(words, Path(words[1]), log=Path(stdout.name))

    def poll(self) -> int | None:
        return self.children[0].exitcode

    returncode = property(poll)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)


def training_files(demo: Path) -> dict[str, bytes]:
    """Files written by training, without pages and samples."""
    files = (p for name in FOLDERS for p in sorted((demo / name).rglob("*")) if p.is_file())
    state = (p for p in files if p.suffix in (".safetensors", ".jsonl", ".json"))
    return {str(p.relative_to(demo)): p.read_bytes() for p in state}


# -- the short demo --------------------------------------------------------------------------


def test_the_page_exists_at_once_and_holds_a_row_for_each_room(short: Finished) -> None:
    versions = [p.read_text() for p in sorted((short.path.parent / "versions").iterdir())]
    rows = [demo.row for demo in demos() if demo.row]
    assert len(rows) == len(rooms.rooms())
    for row in rows:
        assert f"<h2>{row.title}</h2>" in versions[0]
    assert versions[0].count("Sampling …") == len(rows)
    training = next(page for page in versions if "Measuring the speed" in page)
    assert "Sampling …" not in training
    assert "there is no ready model &#x27;video&#x27;" in training
    assert "<h2>Training" not in training
    assert short.out.startswith(f"Page: {short.path / 'index.html'}\n")


def test_rows_show_prompts_samples_numbers_and_references(short: Finished) -> None:
    page = (short.path / "index.html").read_text()
    for demo in demos():
        if demo.ready in READY:
            row = page.split(f"<h2>{demo.row.title}</h2>")[1].split("</section>")[0]  # type: ignore[union-attr]
            assert re.search(r"<strong>[\d.]+( \w+|%)</strong>", row), demo.ready
            assert "“a " in row or "“ba do ki”" in row
            assert "data:" in row
            assert f"quintet sample ready/{demo.ready} --text" in row
    assert page.count("data:audio/wav") == page.count('class="wave"') == 9
    assert page.count("data:image/gif") == 6  # meshes turn


def test_the_page_shows_the_course_of_the_training(short: Finished) -> None:
    versions = [p.read_text() for p in sorted((short.path.parent / "versions").iterdir())]
    strips = [page.count("<figcaption>step ") for page in versions]
    assert 1 in strips
    assert strips[-1] == 6  # of twelve steps, evaluated every second
    assert strips == sorted(strips)
    assert "original" in versions[-1]
    assert "</code>, 12 steps, from random weights" in versions[-1]


def test_the_page_reloads_until_the_demo_ends(short: Finished) -> None:
    *before, last = sorted((short.path.parent / "versions").iterdir())
    assert all("data-live=" in page.read_text() for page in before)
    assert "data-live=" not in last.read_text().replace("[data-live]", "")
    assert "Finished in" in last.read_text()


def test_the_page_needs_no_network_and_is_small(short: Finished) -> None:
    page = (short.path / "index.html").read_text()
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page) == []
    assert "default-src 'none'" in page
    assert len(page) < 3_000_000


def test_the_resumed_run_was_killed_and_is_equal(short: Finished) -> None:
    about = json.loads((short.path / "resumed.json").read_text())
    assert about["start"] == 9
    assert 9 < about["resumed"] < about["killed"] <= 12
    output = (short.path / "resumed/output.txt").read_text()
    assert f"resuming at step {about['resumed']}" in output
    page = (short.path / "index.html").read_text()
    assert "✓ Equal: a copy was killed (SIGKILL)" in page
    name = "checkpoints/step-00000012/vae.safetensors"
    digests = [
        hashlib.sha256((short.path / run / name).read_bytes()).hexdigest()
        for run in ("training", "resumed")
    ]
    assert digests[0] == digests[1]
    assert page.count(digests[0][:16]) == 2


@pytest.mark.slow
def test_a_run_is_equal_that_new_processes_have_resumed(short: Finished, tmp_path: Path) -> None:
    same = proof.stop_and_resume(short.path / "training", tmp_path / "resumed", print)
    assert same.holds
    assert same.killed is not None


@pytest.mark.parametrize("change", ["weights", "loss", "missing report", "missing file"])
def test_a_resumed_run_that_differs_is_said_to_differ(
    change: str, short: Finished, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(short.path / "resumed", tmp_path / "resumed"))
    weights = copy / "checkpoints/step-00000012/vae.safetensors"
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    if change == "weights":
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    elif change == "missing file":
        weights.unlink()
    else:
        last = json.loads(lines[-1])
        last["val/psnr"] += 1e-6
        lines[-1:] = [json.dumps(last)] if change == "loss" else []
        (copy / "metrics.jsonl").write_text("\n".join(lines))
    facts = json.loads((short.path / "resumed.json").read_text())
    same = proof.compare(short.path / "training", short.path / "resumed", 9, 12, facts)
    assert same.holds
    differs = proof.compare(short.path / "training", copy, 9, 12, facts)
    assert not differs.holds
    assert "✗ NOT EQUAL" in proof.section(differs)
    assert "✓" not in proof.section(differs)


def test_a_demo_whose_run_differs_fails_and_trains_nothing_again(
    short: Finished, tmp_path: Path, quintet: Quintet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "FOLDER", tmp_path / "nothing")  # samples are of no interest here
    demo = Path(shutil.copytree(short.path, tmp_path / "demo"))
    log = demo / "training/metrics.jsonl"
    *before, last = log.read_text().splitlines()
    changed = json.dumps({**json.loads(last), "val/psnr": 1.0})
    log.write_text("\n".join([*before, changed]) + "\n")
    result = quintet("demo", "--run", demo)
    assert result.status == 2
    assert "Resuming the demo" in result.out
    assert "the resumed run differs from the uninterrupted one" in result.err
    page = (demo / "index.html").read_text()
    assert "✗ NOT EQUAL" in page
    assert "step 12: val/psnr" in page
    assert json.loads(log.read_text().splitlines()[-1])["val/psnr"] == 1.0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("no chromium or chrome is installed")
    actual = Browser(tmp_path_factory.mktemp("profile"))
    yield actual
    actual.close()


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_the_window_without_errors(
    width: int, short: Finished, browser: Browser
) -> None:
    browser.open(short.path / "index.html", width=width, height=844)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("[...document.images].every(image => image.alt && image.naturalWidth)")
    assert browser.problems() == []


@pytest.mark.slow
def test_a_reload_keeps_the_place_and_open_details(
    short: Finished, browser: Browser, tmp_path: Path
) -> None:
    html = (short.path / "index.html").read_text()
    page, version = tmp_path / "index.html", "document.title"
    page.write_text(html.replace("<html", f'<html data-live="{time.time() * 1000:.0f}"', 1))
    browser.open(page, width=390, height=844)
    browser.value("scrollTo(0, 700), document.querySelectorAll('details')[1].open = true")
    page.write_text(html.replace("<title>Quintet demo", "<title>Second", 1))
    browser.wait(f"{version} === 'Second'")
    browser.wait("scrollY === 700")
    assert browser.value("document.querySelectorAll('details')[1].open")
    assert browser.problems() == []
    page.write_text(html.replace("<title>Quintet demo", "<title>Third", 1))
    time.sleep(4.5)
    assert browser.value(version) == "Second"  # it has finished


@pytest.mark.parametrize(
    ("terminal", "display", "ci", "expected"),
    [
        (True, ":0", "", True),
        (False, ":0", "", False),
        (True, "", "", False),
        (True, ":0", "1", False),
    ],
)
def test_a_browser_opens_only_where_somebody_watches(
    terminal: bool, display: str, ci: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setenv("CI", ci)
    assert watched() == expected


# -- the full demo ---------------------------------------------------------------------------


LEFT_OUT = {
    "image/flow_few_tiny",
    "image/maskgit_tiny",
    "image/vqgan_tiny",  # trained by `quintet demo` without --full
    "mesh/autoencoder_compact_tiny",
    "mesh/retopology_tiny",
    "music/codec_tiny",
    "music/flow_tiny",
    "speech/vocoder_tiny",
    "video/autoencoder_tiny",
    "video/continuation_tiny",
    "video/flow_few_tiny",
    "video/flow_tiny",
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
    assert image["model"]["quantiser"] == "kl"


def test_without_a_terminal_one_line_is_printed_per_stage(finished: Finished) -> None:
    started = re.findall(r"^(.+) \((\d) of \d\): (\S+), 1 steps$", finished.err, re.MULTILINE)
    assert started == [(s.row.title, str(i), s.recipe) for i, s in enumerate(STAGES, 1)]
    for stage in STAGES:
        assert re.search(rf"^{stage.row.title}: done; .*\d", finished.err, re.MULTILINE)
    assert "\x1b" not in finished.err


def test_the_page_has_a_row_with_samples_for_each_stage(page: str, finished: Finished) -> None:
    for stage in STAGES:
        row = page.split(f"<h2>{stage.row.title}</h2>")[1].split("</section>")[0]
        assert stage.row.description in row.replace("&#x27;", "'")
        assert re.search(r"<strong>[\d.]+( \w+|%)</strong>", row), stage.folder
        assert "<img" in row or "<audio" in row
        assert f'href="{stage.folder}/report.html"' in row
        (line,) = [s for s in finished.out.splitlines() if s.startswith(f"{stage.row.title} ")]
        assert re.search(r"<strong>(.*?)</strong>", row)[1] in line  # type: ignore[index]
    assert page.count("data:image/gif") >= 7  # clips move, and meshes turn
    for prompt in ("“ba do ki”", "“a slow minor melody on strings”", "“a tall cone”"):
        assert prompt in page
    assert "this only tests the installation" in page


def test_the_demo_ends_by_naming_the_page_and_next_commands(finished: Finished) -> None:
    assert f"Results: {finished.path / 'index.html'}" in finished.out
    assert "Next: quintet sample" in finished.out


@pytest.mark.parametrize("stage", [s for s in STAGES if s.row.arguments], ids=lambda s: s.folder)
def test_the_sample_commands_of_the_page_run_as_printed(
    stage: Stage, finished: Finished, tmp_path: Path, quintet: Quintet, monkeypatch
) -> None:
    demo = tmp_path / "Ann's demo"
    demo.symlink_to(finished.path)
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(sample_command(stage.row, demo / stage.folder))
    assert name == "quintet"
    said = quintet(*words)
    assert said.status == 0, said.err


# -- interruption --------------------------------------------------------------------


def test_finished_stages_are_not_trained_again(
    finished: Finished, tmp_path: Path, quintet: Quintet
) -> None:
    demo = Path(shutil.copytree(finished.path, tmp_path / "demo"))
    (demo / "index.html").unlink()
    before = training_files(demo)
    result = quintet("demo", "--run", demo)
    assert result.status == 0
    assert "Resuming the demo" in result.out
    assert result.err.count("already done") == len(STAGES)
    assert training_files(demo) == before
    assert (demo / "index.html").is_file()


def start(demo: Path, steps: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "quintet", "demo", "--full", "--run", demo, "--steps", str(steps)],
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


def test_another_demo_is_rejected_and_changes_nothing(finished: Finished, quintet: Quintet) -> None:
    before = training_files(finished.path)
    for flags in (["--steps", 12], ["--full", "--steps", 2]):
        result = quintet("demo", "--run", finished.path, *flags)
        assert result.status == 2
        assert "another demo (full, 1 steps per run)" in result.err
    assert training_files(finished.path) == before


def test_a_folder_that_is_not_a_demo_is_rejected(tmp_path: Path, quintet: Quintet) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years")
    for path in (tmp_path / "mine", tmp_path / "mine/thesis.txt"):
        result = quintet("demo", "--run", path)
        assert result.status == 2
        assert "not a demo folder" in result.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"full": "long"}', '{"full": true, "steps": true}', "{}"]
)
def test_a_damaged_demo_json_is_rejected_by_name(
    content: str, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "demo.json").write_text(content)
    result = quintet("demo", "--run", tmp_path)
    assert result.status == 2
    assert "demo.json" in result.err


@pytest.mark.parametrize("flags", [["--steps", 11], ["--full", "--steps", 0]])
def test_too_few_steps_are_rejected(flags: list[Any], tmp_path: Path, quintet: Quintet) -> None:
    assert "--steps" in quintet("demo", "--run", tmp_path / "demo", *flags).err
    assert not (tmp_path / "demo").exists()


# -- duration and display -----------------------------------------------------


def test_the_planned_time_leaves_a_margin_of_a_fifth() -> None:
    pages = 15  # seconds of loading torch, of sampling and of writing the page
    assert sum(stage.seconds for stage in STAGES) + pages <= 0.8 * 60 * 16


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("stage", [*STAGES, live().stage], ids=[*FOLDERS, "training"])
def test_a_schedule_is_as_long_as_its_stage(stage, steps, tmp_path: Path) -> None:
    settings = settings_of(stage, tmp_path, steps or stage.steps, minimal=steps is not None)
    assert settings.schedule_steps is None  # follows the steps
    assert settings.steps == (steps or stage.steps)
    assert settings.device == "cpu"
    assert settings.save_every <= max(1, settings.steps // 3)


@pytest.mark.parametrize("steps", [MULTIPLE, 2 * MULTIPLE, live().stage.steps])
def test_reports_of_the_live_run_fall_on_its_checkpoints(steps: int, tmp_path: Path) -> None:
    settings = settings_of(live().stage, tmp_path, steps)
    assert settings.save_every % settings.log_every == 0
    assert settings.evaluate_every % settings.log_every == 0


def test_a_terminal_shows_state_step_metric_and_time_left_per_stage() -> None:
    display = Display(STAGES, None)
    display.skip(STAGES[0], 500, f"PSNR 20.1 dB {'and so on ' * 9}; baseline: 14.0")
    stage = STAGES[FOLDERS.index("autoencoder")]
    display.start(stage, 200, 0)
    display.report(stage, {"step": 50, "autoencoder/loss": 0.5, "samples_per_second": 9.0})
    display.report(stage, {"step": 50, "val/loss": 0.4})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(display.table())
    lines = console.export_text().rstrip().splitlines()
    assert len(lines) == len(STAGES) + 1
    by_folder = dict(zip(FOLDERS, lines))
    assert re.search(r"Image autoencoder +already done +500/500 .*20\.1 dB", by_folder["image"])
    expected = r"Mesh autoencoder +training +50/200 .*left +loss 0\.5"
    assert re.search(expected, by_folder["autoencoder"])
    assert re.search(r"Text to mesh +waiting +0/800", by_folder["transformer"])
    assert re.search(r"\d:\d\d left in total", lines[-1])


def test_a_step_that_stalls_does_not_shorten_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may take the processor for seconds."""
    stage = live().stage
    steps = iter(range(100))
    stalled = lambda run: time.sleep(3 if next(steps) == 4 else 0.001)
    monkeypatch.setattr("quintet.engine.tools.estimate.take_step", stalled)
    settings, sentence = fitting_settings(stage, tmp_path)
    assert (settings.steps, sentence) == (stage.steps, None)


@pytest.mark.by_default("1-True")
@pytest.mark.parametrize(("seconds", "fewer"), [(1, True), (100_000, False)])
def test_a_slow_machine_takes_fewer_steps_and_says_so(
    seconds: int, fewer: bool, tmp_path: Path
) -> None:
    """Slow by the stage's own statement: a second is not enough anywhere."""
    stage = next(stage for stage in all_stages() if stage.recipe == "mesh/autoencoder_tiny")
    stage = replace(stage, seconds=seconds)
    settings, sentence = fitting_settings(stage, tmp_path)
    assert (settings.steps < stage.steps) == fewer
    assert settings.steps >= FEWEST
    if fewer:
        assert sentence is not None
        assert f"{settings.steps} steps instead of {stage.steps}" in sentence
    else:
        assert sentence is None
    assert not list(tmp_path.iterdir())  # measured elsewhere
