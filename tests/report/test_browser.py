"""The report in a real browser: plots, meshes, audio and video work without network access."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # for browser.py

from browser import PROGRAM, Browser

from quintet.media.audio import write_wav
from quintet.media.clips.writer import write_mp4
from quintet.media.meshes.files import write_mesh
from quintet.report import write_page, write_report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium or chrome is installed")

EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"
READY = "document.documentElement.dataset.ready === 'yes'"
FIRST = "document.querySelector('.mesh')"
EYE = f"JSON.stringify({FIRST}.layout.scene.camera.eye)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    actual = Browser(tmp_path_factory.mktemp("profile"))
    yield actual
    actual.close()


def make_run(folder: Path, **settings: Any) -> Path:
    """A run with one exhibit of each kind, and a script in every text."""
    shown = folder / "exhibits" / "step-00000030"
    shown.mkdir(parents=True)
    about = {"recipe": EVIL, "settings": {"steps": 30, "note": EVIL, **settings}}
    (folder / "config.json").write_text(json.dumps(about))
    records: list[dict[str, Any]] = [
        {"step": n, "vae/loss": 1 / n, EVIL: n, "vae/learning_rate": 0.1} for n in range(1, 31)
    ]
    records += [{"step": n, "val/loss": 1.1 / n, "val/loss_before": 2.0} for n in (10, 20, 30)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "events.jsonl").write_text(json.dumps({"step": 1, "message": EVIL}) + "\n")
    points = np.array([[-1, -1, 0], [1, -1, 0], [0, 1, 0], [0, 0, 1]], float)
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    for side in ("original", "reconstruction"):
        write_mesh(shown / f"solid-0-{side}.glb", points, faces)
    (shown / "solid-texts.txt").write_text(f"solid-0\n  {EVIL}\n")
    tone = np.sin(2 * np.pi * 440 * np.arange(12_000) / 8000).astype(np.float32)
    write_wav(shown / "tone-0.wav", tone, 8000)
    (shown / "tone-0.txt").write_text(EVIL)
    Image.new("RGB", (64, 32), "teal").save(shown / "sheet.png")
    frames = np.random.default_rng(0).integers(0, 255, (16, 32, 32, 3), np.uint8)
    write_mp4(shown / "clip.mp4", frames, 8)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    """The browser on the page; reloaded only if another page was open."""
    here = page.resolve().as_uri()
    if browser.value("location.href + innerWidth") != f"{here}800":
        browser.open(page)
        browser.wait(READY)
    return browser


def show(browser: Browser, selector: str) -> str:
    """Scroll to the element, which draws it."""
    actual = f"document.querySelector({json.dumps(selector)})"
    browser.value(f"{actual}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    browser.wait(f"Boolean({actual}._fullLayout)")
    return actual


def test_the_page_opens_without_errors_or_network_access(opened: Browser, page: Path) -> None:
    show(opened, ".mesh")
    show(opened, ".plot")
    assert opened.problems() == []
    assert {url.partition(":")[0] for url in opened.requests()} <= {"file", "data", "blob"}
    assert [u for u in opened.requests() if u.startswith("file")] == [page.resolve().as_uri()]


def test_scripts_in_texts_do_not_run_and_are_shown_as_text(opened: Browser) -> None:
    show(opened, ".plot")
    opened.value("[...document.querySelectorAll('details')].forEach(d => d.open = true)")
    assert opened.value("window.evil") is None
    assert opened.value("document.querySelectorAll('script').length") == 2  # ours, and plotly
    assert opened.value("document.body.innerText").count("window.evil = 1") >= 5


def test_the_curves_have_their_points(opened: Browser) -> None:
    actual = show(opened, ".plot")
    lines = opened.value(f"{actual}.data.map(line => [line.name, line.x.length, line.y[0]])")
    assert lines == [["training", 30, 1.0], ["validation", 3, 0.11], ["loss_before", 3, 2.0]]
    assert opened.value(f"{actual}.querySelectorAll('.scatterlayer .trace').length") == 3


def test_a_mesh_rotates_by_button_key_and_drag(opened: Browser) -> None:
    show(opened, ".mesh")
    eyes = [opened.value(EYE)]
    opened.value("document.querySelector('[data-rotate=right]').click()")
    opened.wait(f"{EYE} !== {json.dumps(eyes[-1])}")
    eyes.append(opened.value(EYE))
    opened.value(f"{FIRST}.focus()")
    opened.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowUp")
    opened.wait(f"{EYE} !== {json.dumps(eyes[-1])}")
    eyes.append(opened.value(EYE))
    box = opened.value(f"(({{x, y}}) => [x, y])({FIRST}.getBoundingClientRect())")
    moves = [("mousePressed", 60, 1), *(("mouseMoved", x, 1) for x in (70, 90, 120))]
    for kind, x, buttons in [*moves, ("mouseReleased", 120, 0)]:
        path = {"x": box[0] + x, "y": box[1] + 80, "button": "left", "buttons": buttons}
        opened.ask("Input.dispatchMouseEvent", type=kind, clickCount=1, **path)
    opened.wait(f"{EYE} !== {json.dumps(eyes[-1])}")


def test_meshes_of_a_row_rotate_together(opened: Browser) -> None:
    show(opened, ".mesh")
    eyes = (
        "[...document.querySelectorAll('.meshes .mesh')].slice(0, 2)"
        ".map(box => box.layout.scene.camera.eye.x.toFixed(6))"
    )
    begun = opened.value(eyes)
    opened.value("document.querySelector('[data-rotate=left]').click()")
    opened.wait(f"{eyes}[1] !== {json.dumps(begun[1])}")
    one, other = opened.value(eyes)
    assert one == other


def test_the_mesh_is_rendered(opened: Browser) -> None:
    show(opened, ".mesh")
    image = f"Plotly.toImage({FIRST}, {{format: 'png', width: 200, height: 200}})"
    assert opened.value(f"{image}.then(found => found.length)") > 3000  # an empty one has 1,000


@pytest.mark.parametrize(("kind", "seconds"), [("audio", 1.5), ("video", 2.0)])
def test_audio_and_video_have_their_duration_and_play(
    kind: str, seconds: float, opened: Browser
) -> None:
    actual = f"document.querySelector({json.dumps(kind)})"
    opened.wait(f"{actual}.readyState >= 1")
    assert opened.value(f"{actual}.duration") == pytest.approx(seconds, abs=0.05)
    opened.value(f"{actual}.muted = true, {actual}.play()")
    opened.wait(f"{actual}.currentTime > 0.05")


def test_every_image_plot_and_player_has_an_accessible_name(opened: Browser) -> None:
    assert opened.value("[...document.images].every(image => image.alt)")
    named = "[...document.querySelectorAll('audio,video,.mesh,.plot')].every(e => e.ariaLabel)"
    assert opened.value(named)
    assert opened.value("document.querySelectorAll('h1').length") == 1


def test_plots_follow_the_colour_scheme(opened: Browser) -> None:
    actual = show(opened, ".plot")
    colour = f"{actual}._fullLayout.font.color"
    light = opened.value(colour)
    opened.scheme("dark")
    opened.wait(f"{colour} !== {json.dumps(light)}")
    assert opened.value("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"


def test_a_curve_can_be_logarithmic_and_smoothed(opened: Browser) -> None:
    actual = show(opened, ".plot")
    opened.value("document.querySelector('.log').click()")
    assert opened.value(f"{actual}._fullLayout.yaxis.type") == "log"
    before = opened.value(f"{actual}.data[0].y[5]")
    opened.value("""{
        const smooth = document.querySelector('.smooth');
        smooth.value = 80;
        smooth.dispatchEvent(new Event('input'));
    }""")
    assert opened.value(f"{actual}.data[0].y[5]") > before
    assert opened.value(f"{actual}.data[1].y[0]") == 0.11  # validation is not smoothed


def test_the_content_security_policy_blocks_injected_scripts(opened: Browser) -> None:
    opened.value("""{
        const script = document.createElement('script');
        script.textContent = 'window.evil = 3';
        document.body.append(script);
    }""")
    assert opened.value("window.evil") is None
    fetched = "fetch('https://example.org').then(() => 'fetched', () => 'refused')"
    assert opened.value(fetched) == "refused"


@pytest.mark.slow
def test_the_keyboard_reaches_the_content_and_all_controls(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait(READY)
    reached: list[str] = []
    for _ in range(40):
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab")
        reached.append(
            browser.value("String(document.activeElement.className || document.activeElement.type)")
        )
    assert reached[0] == "skip"
    for kind in ("zoom", "button", "all-log", "smooth", "log"):
        assert kind in reached, kind
    assert [name for name in reached if name.startswith("mesh")]


@pytest.mark.parametrize("width", [360, pytest.param(1100, marks=pytest.mark.slow)])
def test_the_page_fits_the_window(width: int, browser: Browser, page: Path) -> None:
    browser.open(page, width=width, height=700)
    browser.wait(READY)
    show(browser, ".plot")
    assert browser.value("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_compared_runs_share_their_plots(browser: Browser, page: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", rate=3)
    browser.open(write_page([page.parent, other], tmp_path / "both.html"))
    browser.wait(READY)
    actual = show(browser, ".plot")
    names = browser.value(f"{actual}.data.map(line => line.name)")
    assert names[:2] == ["run, training", "other, training"]
    colours = browser.value(f"{actual}.data.map(line => line.line.color)")
    assert colours[0] != colours[1]
    assert colours[0] == colours[2]
    assert browser.problems() == []


def test_a_page_without_scripts_still_shows_its_curves(browser: Browser, page: Path) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert browser.value("document.querySelector('.plot polyline').getBBox().width") > 100
        assert browser.value("document.querySelector('.tools').hidden")
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
