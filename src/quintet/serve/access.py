"""Who may reach a server, and with how much: address and token, Host and Origin, sizes and time.

`Guard` is an ASGI middleware around an application:

    app = Starlette(routes, exception_handlers=handlers())
    listening = listen("127.0.0.1", 8000)
    access = Access.of("127.0.0.1", port_of(listening), token=None)
    run(Guard(app, access), access, listening)

Another page in the user's browser can send requests to 127.0.0.1, as a form or under a name of its
own that it makes point there (DNS rebinding): Origin and Host tell both. Where there is a token, a
browser shows it once, as `?token=` in the address, and keeps it in a cookie.
"""

import asyncio
import hmac
import importlib.util
import ipaddress
import json
import os
import re
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote

from quintet.engine.errors import RunError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

TOKEN = "QUINTET_TOKEN"
"""Environment variable of the token: unlike a flag, other users do not see it among processes."""
EXTRA = ("starlette", "uvicorn", "python_multipart")
"""Packages of the extra `serve`."""
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})

    @property
    def body(self) -> bytes:
        """In the form that clients of OpenAI read."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.sentence, "type": kind, "param": None, "code": None}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True)
class Access:
    """Where a server listens, and what its clients must show."""

    host: str
    port: int
    token: str | None = None
    names: tuple[str, ...] = ()
    """Further names that the server is reached by."""

    @classmethod
    def of(
        cls, host: str, port: int, token: str | None = None, names: tuple[str, ...] = ()
    ) -> "Access":
        """The token is that of the environment if none is given. Raises RunError for an address
        that other machines reach without one."""
        token = token or os.environ.get(TOKEN) or None
        if token is not None and not re.fullmatch(r"[A-Za-z0-9._~-]{8,200}", token):
            raise RunError(
                "the token must have 8 to 200 letters, digits, or any of . _ ~ -; for example "
                f"{secrets.token_urlsafe(24)}"
            )
        if token is None and not is_loopback(host):
            raise RunError(
                f"other machines can reach --host {host}: give a token, --token "
                f"{secrets.token_urlsafe(24)} or {TOKEN} in the environment, or leave out --host"
            )
        return cls(host, port, token, names)

    @property
    def url(self) -> str:
        """What to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = f"http://{host}:{self.port}/"
        return f"{address}?token={quote(self.token)}" if self.token else address

    @property
    def cookie(self) -> str:
        """Its name; browsers share cookies between the ports of a host."""
        return f"quintet-{self.port}"

    def check_host(self, host: str) -> None:
        """Names other than these may be anyone's. Addresses cannot be made to point elsewhere."""
        name = host.lower().strip()
        name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
        known = {"localhost", self.host.lower(), *(each.lower() for each in self.names)}
        if not is_loopback(self.host):
            known.add(socket.gethostname().lower())
        if name in known or (is_loopback(name) if is_loopback(self.host) else is_address(name)):
            return
        raise Refused(421, "this server is not known by the name in the Host header")

    def check_origin(self, origin: str | None, host: str) -> None:
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, "requests of pages of other origins are refused")

    def check_token(self, headers: Mapping[str, str]) -> None:
        if self.token is None:
            return
        kind, _, shown = headers.get("authorization", "").partition(" ")
        shown = shown.strip() if kind.lower() == "bearer" else self._cookie(headers)
        if not same(shown, self.token):
            raise Refused(
                401,
                "this server needs its token: Authorization: Bearer TOKEN, or in a browser the "
                "address with ?token= that it printed",
                {"www-authenticate": "Bearer"},
            )

    def _cookie(self, headers: Mapping[str, str]) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def visit(self, scope: Mapping[str, Any]) -> Message | None:
        """The answer to the first visit with the token in the address: a cookie, and the address
        without it."""
        if self.token is None or scope["method"] != "GET":
            return None
        shown = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not same(shown, self.token):
            return None
        cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        fields = {"location": scope["path"] if is_plain(scope["path"]) else "/"}
        return head(303, {**fields, "set-cookie": cookie, "content-length": "0"})


@dataclass(frozen=True)
class Limits:
    """What a request may cost before it is read."""

    body_bytes: int = 64_000_000
    body_seconds: float = 60.0
    """Time for the body to arrive."""


class Guard:
    """Checks every request, limits its body, and answers errors with a sentence."""

    def __init__(self, app: App, access: Access, limits: Limits | None = None):
        self.app, self.access, self.limits = app, access, limits or Limits()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = with_fixed(message.get("headers", []))
            await send(message)

        try:
            await self._answered(scope, receive, answer)
        except Refused as error:
            if not started:
                await refuse(error, answer)
        except Exception as error:
            say_failed(error)
            if started:
                raise  # the client sees a cut answer
            await refuse(failure(error), answer)

    async def _answered(self, scope: Any, receive: Receive, send: Send) -> None:
        visit = self._check(scope)
        if visit is None:
            await self.app(scope, self._limited(receive), send)
            return
        await send(visit)
        await send({"type": "http.response.body", "body": b""})

    def _check(self, scope: Any) -> Message | None:
        headers = headers_of(scope)
        host = headers.get("host", "")
        self.access.check_host(host)
        self.access.check_origin(headers.get("origin"), host.lower())
        visit = self.access.visit(scope)
        if visit is None:
            self.access.check_token(headers)
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length[:20]) > self.limits.body_bytes:
                raise self._too_large()
        return visit

    def _too_large(self) -> Refused:
        size = f"{self.limits.body_bytes / 1e6:g} MB"
        return Refused(413, f"the request is larger than {size}", {"connection": "close"})

    def _limited(self, receive: Receive) -> Receive:
        received, complete, end = 0, False, time.monotonic() + self.limits.body_seconds

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()  # returns when the client is gone
            try:
                message = await asyncio.wait_for(receive(), max(0.001, end - time.monotonic()))
            except TimeoutError:
                raise Refused(408, "the request did not arrive in time") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self.limits.body_bytes:
                raise self._too_large()
            return message

        return limited


def failure(error: Exception) -> Refused:
    return Refused(500, f"the server failed: {type(error).__name__}")


def handlers() -> dict[Any, Any]:
    """`exception_handlers` of a Starlette application, which would answer without a sentence."""
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

    async def answered(_: Any, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = Refused(error.status_code, error.detail, error.headers)
        refused = error if isinstance(error, Refused) else failure(error)
        return Response(refused.body, refused.status, refused.headers, "application/json")

    return {Refused: answered, HTTPException: answered, Exception: answered}


async def refuse(error: Refused, send: Send) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(error.body))}
    await send(head(error.status, {**fields, **error.headers}))
    await send({"type": "http.response.body", "body": error.body})


def head(status: int, fields: Mapping[str, str]) -> Message:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def headers_of(scope: Any) -> dict[str, str]:
    """Headers by lower-case name. One that says who asks must not come twice."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "authorization", "content-length"):
            raise Refused(400, f"the header {name} is there twice")
        found[name] = value.decode("latin-1")
    return found


def with_fixed(pairs: Any) -> list[tuple[bytes, bytes]]:
    """Headers of an answer, with those of HEADERS that it does not set itself."""
    names = {name.lower() for name, _ in pairs}
    fixed = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in names]
    return [*pairs, *fixed]


def say_failed(error: Exception) -> None:
    """Where the server failed; messages and values may hold texts of clients."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename}:{place.lineno}"
    sys.stderr.write(f"quintet: a request failed: {type(error).__name__} at {where}\n")
    sys.stderr.flush()


def same(shown: str, token: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode())


def is_plain(path: str) -> bool:
    """Whether a path stays on this server in a Location header."""
    return re.fullmatch(r"/(?!/)[\w./-]*", path, re.ASCII) is not None


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def listen(host: str, port: int) -> socket.socket:
    """The socket of a server; port 0 takes any that is free."""
    if not 0 <= port <= 65535:
        raise RunError(f"--port is {port}; give a number from 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(
            f"cannot listen on {host} port {port}: {why}; choose another --port or --host"
        ) from None


def port_of(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def require_extra() -> None:
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise ImportError(f"{names} is missing: pip install 'quintet[serve]'")


def uvicorn_server(app: App) -> Any:
    """A server that prints nothing; `run(sockets=[…])` runs it, `should_exit` ends it."""
    require_extra()
    import uvicorn

    from quintet.serve.connections import Connection

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
    )


def run(app: App, access: Access, listening: socket.socket) -> None:
    """Serve until a signal; the address is printed."""
    server = uvicorn_server(app)
    sys.stdout.write(f"{access.url}\n")
    sys.stdout.flush()
    server.run(sockets=[listening])
