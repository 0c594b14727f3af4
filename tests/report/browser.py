"""A headless browser driven over a pipe by the DevTools protocol, without further packages."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next((found for name in PROGRAMS if (found := shutil.which(name))), None)

# The browser reads requests from descriptor 3 and answers on 4.
LAUNCH = """
import os, sys
asked, answered = (os.dup(int(n)) for n in sys.argv[1:3])
asked, answered = os.dup2(asked, 30), os.dup2(answered, 31)
os.dup2(asked, 3), os.dup2(answered, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
FLAGS = [
    *("--headless", "--no-sandbox", "--no-first-run", "--disable-extensions", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
    *("--autoplay-policy=no-user-gesture-required", "--disable-gpu-vsync"),
]


class Browser:
    def __init__(self, folder: Path):
        inbound, self.out = os.pipe()
        self.answers, outbound = os.pipe()
        launch = [sys.executable, "-c", LAUNCH, str(inbound), str(outbound)]
        self.process = subprocess.Popen(
            [*launch, str(PROGRAM), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(inbound, outbound),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(inbound)
        os.close(outbound)
        os.set_blocking(self.answers, False)
        self.rest, self.number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it has several processes
        self.process.wait()
        os.close(self.out)
        os.close(self.answers)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        request: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        while True:
            message = self.next_message()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def next_message(self, seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self.rest:
            assert time.monotonic() < deadline, "the browser does not answer"
            assert self.process.poll() is None, "the browser has ended"
            try:
                self.rest += os.read(self.answers, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, width: int = 800, height: int = 600, scheme: str = "light") -> None:
        self.events.clear()
        small = width < 600
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=small,
        )
        self.scheme(scheme)
        self.go(page.resolve().as_uri())

    def go(self, address: str) -> None:
        self.ask("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def scheme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def value(self, expression: str) -> Any:
        actual = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in actual, actual
        return actual["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.05)

    def problems(self) -> list[Any]:
        """Console errors and uncaught exceptions."""
        self.value("1")  # earlier messages have arrived
        logged = [e["params"]["entry"] for e in self.events if e["method"] == "Log.entryAdded"]
        called = [e["params"] for e in self.events if e["method"] == "Runtime.consoleAPICalled"]
        thrown = [e for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        return [
            *(entry for entry in logged if entry["level"] == "error"),
            *(call for call in called if call["type"] in ("error", "assert")),
            *thrown,
        ]

    def requests(self) -> list[str]:
        """URLs of all requests."""
        self.value("1")
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in sent]

    def picture(self, path: Path, whole: bool = False) -> None:
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
