"""The page of a server in a real browser: forms from flags, answers as the endpoint gives them."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))  # for browser.py

from browser import PROGRAM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium or chrome is installed"),
]
SHOWN = "document.querySelector('#results img')"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    actual = Browser(tmp_path / "profile")
    yield actual
    actual.close()


def opened(browser: Browser, served: Any) -> None:
    browser.ask("Page.navigate", url=served.access.url)
    browser.wait("document.querySelector('#form')?.hidden === false")


def test_a_picture_on_the_page_is_that_of_the_endpoint(browser: Browser, served: Any) -> None:
    opened(browser, served)
    assert browser.value("document.querySelectorAll('#models > *').length") == len(
        served.server.models
    )
    browser.value(
        "window.made = []; const link = URL.createObjectURL;"
        " URL.createObjectURL = (file) => { window.made.push(file); return link(file) }; 0"
    )
    browser.value("document.querySelector('#f-text').value = 'a red star'")
    browser.value("document.querySelector('#f-seed').value = '3'")
    browser.value("document.querySelector('#f-count').value = '1'")
    browser.value("document.querySelector('#go').click()")
    browser.wait(f"!!{SHOWN} && {SHOWN}.complete")
    name = browser.value("document.querySelector('#results a[download]').download")
    made = browser.value(
        "window.made[0].arrayBuffer().then((b) => btoa(String.fromCharCode(...new Uint8Array(b))))"
    )
    values = {"text": ["a red star"], "seed": 3, "count": 1}
    expected = served.files("/v1/models/image_flow/sample", values)
    assert base64.b64decode(made) == expected[name]
    assert "/v1/models/image_flow/sample" in browser.value(
        "document.querySelector('#curl').textContent"
    )
    assert browser.problems() == []


def test_the_page_fits_a_phone_and_says_what_was_refused(browser: Browser, served: Any) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.ask("Emulation.setDeviceMetricsOverride", **size)
    opened(browser, served)
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    browser.value("document.querySelector('#f-count').value = '100000'")
    browser.value("document.querySelector('#form').noValidate = true")
    browser.value("document.querySelector('#go').click()")
    browser.wait("document.querySelector('#status').textContent.includes('count')")
    assert not browser.value(f"!!{SHOWN}")
