"""The command, in a process of its own."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import _context
from quintet.cli import main

SECRET = "a-long-secret"


def _serve(words: list[str], log: Path) -> None:
    """In a process of its own, whose output goes to a file."""
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["QUINTET_TOKEN"] = SECRET
    main(["serve", *words])


@pytest.fixture
def started(exports: dict[str, Path], tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """A process that serves two models, and its output."""
    log = tmp_path / "log"
    words = [f"it={exports['maskgit']}", str(exports["mulan"]), "--device", "cpu", "--port", "0"]
    process = _context.Process(target=_serve, args=([*words, "--log-texts"], log))
    process.start()
    yield process, log
    process.kill()
    process.join()


def test_the_command_serves_until_it_is_interrupted(started: tuple[Any, Path]) -> None:
    process, log = started
    end = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("\n")):
        assert process.is_alive(), log.read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    address = log.read_text().splitlines()[0]
    base = address.partition("?")[0]
    assert address.endswith(f"/?token={SECRET}")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{base}v1/models")
    refused.value.close()
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}v1/models", headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert [m["id"] for m in json.load(answer)["data"]] == ["it", "mulan"]
    body = json.dumps({"text": ["a logged star"], "count": 1, "steps": 1}).encode()
    url = f"{base}v1/models/it/sample"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        assert answer.status == 200
    os.kill(process.pid, signal.SIGINT)
    process.join(20)
    assert "a logged star" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert process.exitcode == 130


WRONG: list[tuple[list[str], str]] = [
    ([], "name a model"),
    (["ready/none"], "there is no ready model"),
    (["ready/image", "--host", "0.0.0.0"], "give a token"),
    (["ready/image", "--queue", "0"], "--queue is 0"),
    (["ready/image", "--files", "anna"], "anna is not NAME=PATH"),
    (["ready/image", "--files", "anna=/none.wav"], "/none.wav does not exist"),
    (["ready/image", "a/image"], "two are named image"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_a_wrong_command_is_a_sentence(
    words: list[str], sentence: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUINTET_TOKEN", raising=False)
    said = cli("serve", *words)
    assert said.status == 2
    assert sentence in said.err


def test_a_missing_extra_is_named(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.serve.access.EXTRA", ("starlette", "no_such_package"))
    said = cli("serve", "ready/image")
    assert said.status == 2
    assert "no_such_package is missing: pip install 'quintet[serve]'" in said.err
