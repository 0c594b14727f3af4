"""The live page in a real browser: curves grow, parts are replaced, buttons reach the run."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))  # for browser.py

from browser import PROGRAM, Browser
from watched import make_run, report, write

from quintet.engine.runs import requests
from quintet.engine.runs.folder import RunFolder
from quintet.serve.access import Access, Guard, listen, port_of, uvicorn_server
from quintet.watch.app import application
from quintet.watch.site import Site

pytest.importorskip("uvicorn")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium or chrome is installed"),
]
READY = "document.documentElement?.dataset.ready === 'yes'"
LENGTH = "document.querySelector('[data-plot]')?.lines?.[0].x.length"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    run = make_run(tmp_path / "runs/a")
    write(run / "metrics.jsonl", *map(report, range(1, 6)))
    folder = RunFolder(run)
    folder.lock()
    yield run
    folder.unlock()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    actual = Browser(tmp_path / "profile")
    yield actual
    actual.close()


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    make_run(run.parent / "b")
    listening = listen("127.0.0.1", 0)
    access = Access("127.0.0.1", port_of(listening), "a-long-secret")
    server = uvicorn_server(Guard(application(Site(run.parent, writes=True)), access))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield access.url
    server.should_exit = True
    thread.join()


def test_the_page_follows_a_run(run: Path, address: str, browser: Browser) -> None:
    browser.ask("Page.navigate", url=address)
    browser.wait(f"!location.search && {READY}")
    browser.ask("Page.navigate", url=address.partition("?")[0] + "?run=a")
    browser.wait(f"location.search === '?run=a' && {READY} && {LENGTH} === 5")
    write(run / "metrics.jsonl", report(6), report(7))
    browser.wait(f"{LENGTH} === 7")
    folder = run / "exhibits/step-00000007"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8), "teal").save(folder / "sheet.png")
    browser.wait("!!document.querySelector('#samples-0 img')")
    browser.value("document.querySelector('#samples-0 .zoom').click()")
    assert browser.value("document.querySelector('#samples-0 .zoom').ariaPressed") == "true"
    browser.value("document.querySelector('[data-action=save]').click()")
    browser.wait("document.querySelector('.state').textContent.includes('asked to save')")
    assert requests.pending(run) == ["save"]
    RunFolder(run).forget_after(3)  # as a resume from step 3
    browser.wait(f"{LENGTH} === 3")
    assert browser.problems() == []


def test_runs_are_chosen_and_fit_a_phone(run: Path, address: str, browser: Browser) -> None:
    write(run.parent / "b/metrics.jsonl", *map(report, range(1, 4)))
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.ask("Emulation.setDeviceMetricsOverride", **size)
    browser.ask("Page.navigate", url=address)
    browser.wait(f"!location.search && {READY}")
    browser.value("for (const box of document.querySelectorAll('[name=run]')) box.checked = true")
    browser.value("document.querySelector('.chooser button').click()")
    browser.wait(f"location.search.includes('run=a') && {READY} && {LENGTH} > 0")
    lines = "document.querySelector('[data-plot]').lines.map((line) => line.x.length)"
    assert sorted(json.loads(json.dumps(browser.value(lines)))) == [3, 5]
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.problems() == []
