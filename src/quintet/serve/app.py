"""The application: models, their worker, the plain endpoints, metrics and the page. The shapes that
clients of OpenAI know are in shapes.py."""

import io
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from quintet import __version__
from quintet.engine.errors import RunError
from quintet.serve import openapi
from quintet.serve.access import Refused, handlers
from quintet.serve.asking import Endpoint, asked, left
from quintet.serve.flags import field_of, flag_schemas, of_form, sampling
from quintet.serve.models import Answer, Served, media_type
from quintet.serve.shapes import SHAPES
from quintet.serve.videos import VIDEOS
from quintet.serve.worker import Capacity, Worker

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content security policy of the page: nothing from elsewhere."""
PAGES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}


class Server:
    """Models by name, and the worker that runs them. `app` is the ASGI application."""

    def __init__(self, models: Sequence[Served], capacity: Capacity, log_texts: bool = False):
        self.models = {model.name: model for model in models}
        self.worker = Worker(capacity)
        self.log_texts = log_texts
        self.counts = Counter[tuple[str, int]]()
        """Requests by path and status."""
        self.videos: dict[str, dict[str, Any]] = {}
        """Clips that are made or wait to be fetched, by their id."""
        self.scripts = dict.fromkeys(own(model, "SCRIPT", "") for model in models)
        ours = [each for model in models for each in own(model, "ENDPOINTS", [])]
        self.endpoints = {(e.method, e.path): e for e in (*PLAIN, *SHAPES, *VIDEOS, *ours)}.values()
        routes = [Route(e.path, self._counted(e), methods=[e.method]) for e in self.endpoints]
        pages = [Route(path, self._page(name)) for path, name in PAGES.items()]
        self.app = Starlette(routes=[*routes, *pages], exception_handlers=handlers())

    def model(self, name: Any, does: Callable[[Served], bool] | None = None) -> Served:
        """The model of a name, or the first that can do it."""
        able = [model for model in self.models.values() if does is None or does(model)]
        found = [model for model in able if name in (None, "", model.name)]
        if found:
            return found[0]
        known = f"there are {', '.join(each.name for each in able)}" if able else "there is none"
        raise Refused(404, f"no model {str(name)[:100]!r} does this here; {known}")

    async def run(self, request: Request, work: Any) -> Any:
        """The answer of the worker, unless the client goes first."""
        return await self.worker.answer(work, lambda: left(request))

    def log(self, path: str, status: int, seconds: float, texts: object) -> None:
        shown = f" {str(texts)[:500]!r}" if self.log_texts and texts else ""
        sys.stderr.write(f"quintet: {path} {status} {seconds:.2f} s{shown}\n")
        sys.stderr.flush()

    def _counted(self, endpoint: Endpoint) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            began, status = time.monotonic(), 500
            try:
                response = await endpoint.handler(self, request)
                status = response.status_code
                return response
            except (Refused, HTTPException) as refusal:
                status = refusal.status if isinstance(refusal, Refused) else refusal.status_code
                raise
            finally:
                self.counts[endpoint.path, status] += 1
                if endpoint.method == "POST":
                    texts = getattr(request.state, "texts", None)
                    self.log(endpoint.path, status, time.monotonic() - began, texts)

        return answered

    def _page(self, name: str) -> Callable[[Request], Any]:
        content = (HERE / name).read_bytes()
        if name == "page.js":
            content = b"\n".join([content, *(code.encode() for code in self.scripts)])

        async def shown(_: Request) -> Response:
            return Response(
                content,
                media_type=media_type(name),
                headers={"content-security-policy": POLICY, "cache-control": "no-cache"},
            )

        return shown


def own(model: Served, name: str, default: Any) -> Any:
    """What a family's serve.py, if there is one, adds to the server."""
    with suppress(RunError):
        return getattr(model.family.serve, name, default)
    return default


async def sample(server: Server, request: Request) -> Response:
    """Flags as JSON, or a form with files: `input` for those that the model works on."""
    model = server.model(request.path_params["name"])
    body = await asked(request)
    request.state.texts = body.values.get("text")
    inputs = body.files.pop("input", [])
    uploads = {name: body.file(name) for name in body.files}
    values: dict[str, Any] = {}
    for name, given in body.values.items():
        if not body.is_form:
            values[name] = given[0]
        elif any(given):
            values[name] = of_form(model, name, given)
    found = {field_of(n): u for n, u in uploads.items() if u is not None}
    work = sampling(model, values, inputs, found)
    return written(request, model, work.flags, await server.run(request, work))


def written(request: Request, model: Served, flags: Any, answer: Answer) -> Response:
    """The files of an answer: JSON with base64, or by Accept a zip, or the first file of a type."""
    accept = request.headers.get("accept", "*/*")
    types = [each.partition(";")[0].strip() for each in accept.split(",")]
    fields = {"x-quintet-seed": str(getattr(flags, "seed", ""))}
    if "application/zip" in types:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as archive:
            for name, content in answer.files.items():
                archive.writestr(zipfile.ZipInfo(name), content)  # of no time: equal answers
        return Response(held.getvalue(), 200, fields, "application/zip")
    for name, content in answer.files.items():
        kind = media_type(name)
        if kind in types or f"{kind.partition('/')[0]}/*" in types:
            return Response(content, 200, fields, kind)
    about = {"model": model.name, "seed": getattr(flags, "seed", None)}
    return JSONResponse({**about, **answer.to_json()}, headers=fields)


async def list_models(server: Server, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": [about(m) for m in server.models.values()]})


async def show_model(server: Server, request: Request) -> Response:
    return JSONResponse(about(server.model(request.path_params["name"])))


def about(model: Served) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "quintet",
        "family": str(model.family),
        "about": " ".join((model.module.Flags.__doc__ or "").split()),
        "takes_files": model.takes_files,
        "files": [*model.files],
        "example": model.example,
        "flags": flag_schemas(model),
    }


async def health(server: Server, _: Request) -> Response:
    waiting = len(server.worker.waiting)
    alive = server.worker.alive
    body = {"status": "ok" if alive else "failed", "waiting": waiting, "version": __version__}
    return JSONResponse(body, 200 if alive else 500)


async def metrics(server: Server, _: Request) -> Response:
    worker = server.worker
    lines = ["# TYPE quintet_requests_total counter"]
    for (path, status), count in sorted(server.counts.items()):
        lines.append(f'quintet_requests_total{{path="{path}",status="{status}"}} {count}')
    for name in ("batches", "batched", "dropped", "refused"):
        lines.append(f"# TYPE quintet_{name}_total counter")
        lines.append(f"quintet_{name}_total {worker.counts[name]}")
    gauges = {"waiting": len(worker.waiting), "running": len(worker.running)}
    for name, value in gauges.items():
        lines += [f"# TYPE quintet_{name} gauge", f"quintet_{name} {value}"]
    lines += ["# TYPE quintet_device_seconds_total counter"]
    lines += [f"quintet_device_seconds_total {worker.seconds:.3f}", ""]
    return PlainTextResponse("\n".join(lines), media_type="text/plain; version=0.0.4")


async def described(server: Server, _: Request) -> Response:
    return JSONResponse(openapi.document(server.endpoints, server.models))


async def documented(server: Server, _: Request) -> Response:
    page = openapi.page(openapi.document(server.endpoints, server.models))
    return Response(page, 200, {"content-security-policy": POLICY}, "text/html")


PLAIN = (
    Endpoint("/v1/models", list_models, "The models, with their flags.", "GET"),
    Endpoint("/v1/models/{name}", show_model, "One model.", "GET"),
    Endpoint("/v1/models/{name}/sample", sample, "Samples: the flags and files of the command."),
    Endpoint("/health", health, "Whether the server works.", "GET"),
    Endpoint("/metrics", metrics, "Counts, in the text format of Prometheus.", "GET"),
    Endpoint("/openapi.json", described, "This description.", "GET"),
    Endpoint("/docs", documented, "This description as a page.", "GET"),
)
