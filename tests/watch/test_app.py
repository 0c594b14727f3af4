"""The server of the live page, asked over sockets, and the command that starts it."""

import gzip
import http.client
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from watched import make_run, report, write

from campaign.children import Program, until
from quintet.cli import answered
from quintet.engine.runs import requests
from quintet.engine.runs.folder import RunFolder
from quintet.serve.access import Access, Guard, listen, port_of, uvicorn_server
from quintet.watch.app import application
from quintet.watch.site import Site

pytest.importorskip("uvicorn")
TOKEN = "a-long-secret"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run = make_run(tmp_path_factory.mktemp("runs") / "a")
    write(run / "metrics.jsonl", *map(report, range(1, 6)))
    folder = RunFolder(run)
    folder.lock()
    yield run
    folder.unlock()


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    listening = listen("127.0.0.1", 0)
    access = Access("127.0.0.1", port_of(listening), TOKEN)
    server = uvicorn_server(Guard(application(Site(run, writes=True)), access))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield access.port
    server.should_exit = True
    thread.join()


def asked(port: int, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as client:
        method = "GET" if body is None else "POST"
        client.request(method, path, body, {**SHOWN, **headers})
        answer = client.getresponse()
        content = answer.read()
        if answer.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(content) if is_json else content.decode()


def test_the_page_and_its_news_are_served(port: int) -> None:
    status, html = asked(port, "/")
    assert status == 200
    assert 'data-run="a"' in html
    status, first = asked(port, "/news", json.dumps({"runs": ["a"]}), **{"Accept-Encoding": "gzip"})
    assert status == 200
    have = json.dumps({"runs": ["a"], "digests": first["digests"], "at": first["at"]})
    assert asked(port, "/news", have)[1]["parts"] == {}


def test_the_page_uses_nothing_but_its_own_scripts(port: int) -> None:
    html = asked(port, "/")[1]
    (policy,) = [part for part in html.split('"') if part.startswith("default-src")]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "src=" not in html


@pytest.mark.parametrize(("path", "body"), [("/", None), ("/news", '{"runs": ["a"]}')])
def test_nothing_is_shown_without_the_token(path: str, body: str | None, port: int) -> None:
    assert asked(port, path, body, Authorization="Bearer wrong")[0] == 401


@pytest.mark.parametrize(
    "path", ["/a/config.json", "/exhibits/x.png", "/..%2fa", "/config.json", "/ask", "/news/a"]
)
def test_no_path_is_a_file(path: str, port: int) -> None:
    assert asked(port, path)[0] in (404, 405)


@pytest.mark.parametrize("body", ["{}", "3", '{"runs": 3}', '{"runs": [[], "x"], "at": 1}'])
def test_a_question_without_known_runs_is_answered(body: str, port: int) -> None:
    status, news = asked(port, "/news", body)
    assert status == 200
    assert set(news["states"]) <= {"a"}


@pytest.mark.parametrize("body", ["", "{", "[" * 50_000])
def test_a_question_that_is_not_json_is_refused(body: str, port: int) -> None:
    assert asked(port, "/news", body)[0] == 400


def test_a_request_reaches_the_folder_of_the_run(run: Path, port: int) -> None:
    asked(port, "/")
    body = json.dumps({"run": "a", "action": "save"})
    assert asked(port, "/ask", body) == (200, {"asked": ["save"]})
    assert requests.pending(run) == ["save"]
    requests.file_of(run).unlink()


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_request_of_another_page_is_refused(origin: str, run: Path, port: int) -> None:
    body = json.dumps({"run": "a", "action": "stop"})
    assert asked(port, "/ask", body, Origin=origin)[0] == 403
    assert asked(port, "/ask", body, Authorization="")[0] == 401
    assert requests.pending(run) == []


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"run": "a"}', '{"run": "a", "action": "erase"}', '{"run": ["a"]}']
)
def test_a_request_that_means_nothing_is_refused_with_a_sentence(
    body: str, run: Path, port: int
) -> None:
    status, answer = asked(port, "/ask", body)
    assert status in (400, 409)
    assert len(answer["error"]["message"]) > 20
    assert requests.pending(run) == []


def test_the_command_prints_an_address_with_a_token_that_works(run: Path, tmp_path: Path) -> None:
    program = Program(["watch", str(run), "--port", "0"], tmp_path / "watch")
    assert until(lambda: "\n" in program.said(), program), program.said()
    host, _, token = program.said().splitlines()[0].partition("/?token=")
    port = int(host.rpartition(":")[2])
    status, html = asked(port, "/", Authorization=f"Bearer {token}")
    program.signal(signal.SIGINT)
    assert program.wait() == [130], program.said()
    assert status == 200
    assert 'data-action="stop"' in html


def test_without_the_extra_the_command_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert answered(["watch", str(tmp_path)]) == 2
    sentence = "quintet: watching needs an extra: pip install 'quintet[serve]'"
    assert capsys.readouterr().err.strip() == sentence
