"""Tiny models behind a real server."""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import small
from quintet.serve.access import Access, Guard, Limits, listen, port_of, uvicorn_server
from quintet.serve.app import Server
from quintet.serve.models import Served
from quintet.serve.worker import Capacity


@dataclass
class Client:
    """Asks a server over HTTP."""

    access: Access
    server: Server

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        files: list[tuple[str, str, bytes]] | None = None,
        method: str | None = None,
        **headers: str,
    ) -> tuple[int, Any, bytes]:
        """Status, headers and body; `files` are (field, name, content), sent as a form."""
        data, sent = None, {name.replace("_", "-"): value for name, value in headers.items()}
        if files is not None:
            data, sent["Content-Type"] = form(body or {}, files)
        elif body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        url = f"http://127.0.0.1:{self.access.port}{path}"
        request = urllib.request.Request(url, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path: str, body: Any = None, **more: Any) -> Any:
        status, _, answer = self.ask(path, body, **more)
        assert status == 200, answer
        return json.loads(answer)

    def files(self, path: str, body: Any = None, **more: Any) -> dict[str, bytes]:
        found = self.json(path, body, **more)["files"]
        return {each["name"]: base64.b64decode(each["b64"]) for each in found}

    def refusal(self, status: int, path: str, body: Any = None, **more: Any) -> str:
        found, _, answer = self.ask(path, body, **more)
        assert found == status, answer
        return json.loads(answer)["error"]["message"]


def form(values: dict[str, Any], files: list[tuple[str, str, bytes]]) -> tuple[bytes, str]:
    bound = "a-line-between"
    parts: list[bytes] = []
    for name, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            parts.append(f'name="{name}"\r\n\r\n{each}'.encode())
    for name, file, content in files:
        parts.append(f'name="{name}"; filename="{file}"\r\n\r\n'.encode() + content)
    lines = [f"--{bound}\r\nContent-Disposition: form-data; ".encode() + p + b"\r\n" for p in parts]
    return b"".join([*lines, f"--{bound}--\r\n".encode()]), f"multipart/form-data; boundary={bound}"


def export(name: str, folder: Path) -> Path:
    """The folder of a tiny model, by the name of its function in small.py."""
    path = folder / name.replace("_", "-")
    if not path.exists():
        model = deepcopy(getattr(small, name)())  # it is cached for other tests
        if hasattr(model, "measure_latents"):
            model.measure_latents(torch.randn(4, model.config.latent_channels, 2, 2))
        model.save_pretrained(path)
    return path


@contextmanager
def serving(
    models: list[tuple[str, Path]],
    capacity: Capacity | None = None,
    files: dict[str, Path] | None = None,
) -> Iterator[Client]:
    loaded = [Served.open(name, path, "cpu", files or {}) for name, path in models]
    server = Server(loaded, capacity or Capacity())
    listening = listen("127.0.0.1", 0)
    access = Access.of("127.0.0.1", port_of(listening))
    runner = uvicorn_server(Guard(server.app, access, Limits(2_000_000, 5)))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not runner.started:
            time.sleep(0.005)
        yield Client(access, server)
    finally:
        runner.should_exit = True
        thread.join()
        server.worker.close()
