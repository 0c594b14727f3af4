"""Who reaches a server: a real one, asked over sockets."""

import http.client
import json
import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest

from quintet.engine.errors import RunError
from quintet.serve.access import (
    TOKEN,
    Access,
    Guard,
    Limits,
    Refused,
    handlers,
    is_loopback,
    listen,
    port_of,
    uvicorn_server,
)

pytest.importorskip("uvicorn")
SECRET = "a-long-secret"


@contextmanager
def served(app, host="127.0.0.1", token=None, limits=None, shown=None):
    """A server in a thread; yields its access. It listens on 127.0.0.1 whatever it is `shown`."""
    listening = listen(host, 0)
    access = Access.of(shown or host, port_of(listening), token)
    server = uvicorn_server(Guard(app, access, limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield access
    finally:
        server.should_exit = True
        thread.join()


def asked(access, path="/", method="GET", body=None, **headers):
    """Status, headers and body."""
    with closing(http.client.HTTPConnection("127.0.0.1", access.port, timeout=10)) as client:
        client.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read()


def sentence(body):
    return json.loads(body)["error"]["message"]


def echo():
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def read(request):
        body = await request.body()
        if body == b"fail":
            raise KeyError("a text of a client")
        if body == b"refuse":
            raise Refused(503, "no room", {"retry-after": "2"})
        return PlainTextResponse(f"{len(body)}")

    return Starlette(
        routes=[Route("/", read, methods=["GET", "POST"])], exception_handlers=handlers()
    )


@pytest.fixture(scope="module")
def plain():
    with served(echo(), limits=Limits(body_bytes=1000, body_seconds=0.3)) as access:
        yield access


@pytest.fixture(scope="module")
def guarded():
    with served(echo(), token=SECRET, shown="0.0.0.0") as access:
        yield access


def test_an_address_that_others_reach_needs_a_token(monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(RunError, match="give a token"):
        Access.of("0.0.0.0", 80)
    with pytest.raises(RunError, match="8 to 200"):
        Access.of("0.0.0.0", 80, "short")
    monkeypatch.setenv(TOKEN, SECRET)
    assert Access.of("0.0.0.0", 80).token == SECRET
    assert Access.of("::1", 80).url == f"http://[::1]:80/?token={SECRET}"
    assert is_loopback("localhost")
    assert is_loopback("127.1.2.3")
    assert not is_loopback("localhost.example")


def test_a_taken_port_is_a_sentence():
    with closing(listen("127.0.0.1", 0)) as taken, pytest.raises(RunError, match="cannot listen"):
        listen("127.0.0.1", port_of(taken))
    with pytest.raises(RunError, match="65535"):
        listen("127.0.0.1", 65536)
    with pytest.raises(RunError, match="cannot listen"):
        listen("no such name", 0)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:9", "LOCALHOST:1"])
def test_names_of_this_machine_are_answered(plain, host):
    assert asked(plain, Host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[", ""])
def test_other_names_are_refused(plain, host):
    status, _, body = asked(plain, Host=host)
    assert status == 421
    assert "Host" in sentence(body)


def test_pages_of_other_origins_are_refused(plain):
    own = f"http://127.0.0.1:{plain.port}"
    assert asked(plain, method="POST", body=b"x", Origin=own)[0] == 200
    for origin in ("http://evil.example", "null", f"http://localhost:{plain.port}", f"{own}.evil"):
        assert asked(plain, method="POST", body=b"x", Origin=origin)[0] == 403


def test_an_announced_and_an_endless_body_are_cut(plain):
    assert asked(plain, method="POST", body=b"x" * 1000)[2] == b"1000"
    status, _, body = asked(plain, method="POST", body=b"x" * 1001)
    assert (status, sentence(body)) == (413, "the request is larger than 0.001 MB")
    endless = iter([b"x" * 600] * 2)  # in chunks, of no announced length
    assert asked(plain, method="POST", body=endless)[0] == 413


def test_a_body_that_does_not_arrive_ends_the_request(plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=5) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        assert b" 408 " in client.recv(1000).split(b"\r\n")[0]


def test_a_connection_without_a_whole_header_is_closed(plain, monkeypatch):
    """Also after an answered request."""
    from quintet.serve import connections

    monkeypatch.setattr(connections, "SILENCE", 0.5)
    header = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    for spoken in (b"", header, header + b"\r\n" + header):
        with socket.create_connection(("127.0.0.1", plain.port), timeout=5) as client:
            client.sendall(spoken)
            answered = b"".join(iter(lambda: client.recv(1000), b""))
            assert answered.count(b"HTTP/1.1 200") == spoken.count(b"\r\n\r\n")


def test_a_failure_is_a_sentence_without_the_text(plain, capfd):
    status, headers, body = asked(plain, method="POST", body=b"fail")
    assert (status, sentence(body)) == (500, "the server failed: KeyError")
    assert "text of a client" not in capfd.readouterr().err
    assert headers["x-content-type-options"] == "nosniff"
    status, headers, body = asked(plain, method="POST", body=b"refuse")
    assert (status, headers["retry-after"], sentence(body)) == (503, "2", "no room")
    assert asked(plain, "/elsewhere")[0] == 404


def test_the_token_is_needed_and_a_browser_keeps_it(guarded):
    status, headers, body = asked(guarded)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "token" in sentence(body)
    assert asked(guarded, Authorization="Bearer wrong-secret")[0] == 401
    assert asked(guarded, Authorization="Bearer \xe9")[0] == 401
    assert asked(guarded, Authorization=f"Bearer {SECRET}")[0] == 200
    status, headers, _ = asked(guarded, f"/?token={SECRET}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert asked(guarded, Cookie=cookie.partition(";")[0])[0] == 200
    assert asked(guarded, f"//evil.example?token={SECRET}")[1]["location"] == "/"
    assert asked(guarded, Host="192.168.0.9:1", Authorization=f"Bearer {SECRET}")[0] == 200
    assert asked(guarded, Host="evil.example", Authorization=f"Bearer {SECRET}")[0] == 421


def test_a_header_that_comes_twice_is_refused(plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=5) as client:
        twice = b"Origin: http://a\r\nOrigin: http://b\r\n"
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + twice + b"\r\n")
        assert b" 400 " in client.recv(1000).split(b"\r\n")[0]
