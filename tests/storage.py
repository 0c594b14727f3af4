"""Object storage on this machine: the S3 server of moto in a process of its own, and a proxy before
it that loses, cuts, delays and refuses requests."""

import contextlib
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness import free_port
from quintet.engine.runs.remote.mirror import Mirror

SIGNED = (
    "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)
KINDS = ("dropped", "half", "refused", "slow", "unanswered")
"""What the proxy does to a request: closes the connection, forwards half of the body, answers 503,
waits, or forwards it and closes the connection in place of the answer."""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Its address; it holds the bucket `bucket`."""
    port = free_port()
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("PUT", "/bucket", headers={"Authorization": SIGNED})
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                break
            assert time.monotonic() < until, "moto does not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Proxy:
    """Between a run and the server. `fault` says what happens to a request, None for nothing."""

    def __init__(self, address: str):
        self.upstream = address.removeprefix("http://")
        self.fault: Callable[[str, str], str | None] = lambda method, path: None
        self.faults: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def at_random(self, rate: float, seed: object) -> None:
        chance = random.Random(str(seed))
        self.fault = lambda method, path: chance.choice(KINDS) if chance.random() < rate else None

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> Any:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle()

            def do_any(self) -> None:
                fault = proxy.fault(self.command, self.path)
                proxy.requests.append((self.command, self.path))
                if fault:
                    proxy.faults.append(fault)
                if fault == "dropped":
                    return self.hang_up()
                body = self.body()
                if fault == "refused":
                    return self.answer(503, [], b"")
                if fault == "slow":
                    time.sleep(0.5)
                answer = self.forward(body, half=fault == "half")
                if answer is None or fault == "unanswered":
                    return self.hang_up()
                return self.answer(*answer)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any

            def hang_up(self) -> None:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            def body(self) -> bytes:
                if self.headers.get("Expect"):
                    self.send_response_only(100)
                    self.end_headers()
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                content = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return content

            def forward(self, body: bytes, half: bool) -> Any:
                sent = http.client.HTTPConnection(proxy.upstream, timeout=30)
                try:
                    sent.putrequest(self.command, self.path, skip_host=True)
                    for name, value in self.headers.items():
                        if name.lower() not in ("transfer-encoding", "content-length", "expect"):
                            sent.putheader(name, value)
                    sent.putheader("Content-Length", str(len(body)))
                    sent.endheaders()
                    sent.send(body[: len(body) // 2] if half else body)
                    if half:
                        return None
                    answer = sent.getresponse()
                    return answer.status, answer.getheaders(), answer.read()
                except OSError:
                    return None
                finally:
                    sent.close()

            def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response_only(status)
                named = {"content-length", "transfer-encoding", "connection"}
                for name, value in headers:
                    if name.lower() not in named:
                        self.send_header(name, value)
                length = {n.lower(): v for n, v in headers}.get("content-length")
                size = length if self.command == "HEAD" and length else str(len(content))
                self.send_header("Content-Length", size)
                self.end_headers()
                self.wfile.write(content)

        return Handler


def environment(address: str, cache: Path, lease: float = 60, upload: float = 30) -> dict[str, str]:
    """Of a machine that sees the server, with a cache of its own."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_DEFAULT_REGION": "us-east-1",
        "QUINTET_CACHE": str(cache),
        "QUINTET_LEASE_SECONDS": str(lease),
        "QUINTET_UPLOAD_SECONDS": str(upload),
    }


@contextlib.contextmanager
def on_machine(variables: dict[str, str]) -> Iterator[None]:
    """This process as one of that machine."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def mirror_of(url: str, variables: dict[str, str]) -> Path:
    """The folder in which that machine keeps the run."""
    with on_machine(variables):
        return Mirror.at(url).path
