"""The server of the live page. Needs the extra `serve`."""

import json
from collections.abc import Mapping
from typing import Any

from quintet.engine.errors import RunError
from quintet.report.source import mapping
from quintet.serve.access import App, Refused, handlers
from quintet.watch.site import Site


def application(site: Site) -> App:
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.middleware import Middleware
        from starlette.middleware.gzip import GZipMiddleware
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise ImportError("watching needs an extra: pip install 'quintet[serve]'") from None

    def reply(value: Mapping[str, Any]) -> Response:
        return Response(json.dumps(value).encode("utf-8", "replace"), 200, None, "application/json")

    async def question(request: Request) -> Mapping[str, Any]:
        try:
            return mapping(json.loads(await request.body()))
        except (ValueError, RecursionError):
            raise Refused(400, "the body must be a JSON object") from None

    def show(request: Request) -> Response:
        html = site.page(request.query_params.getlist("run"))
        return HTMLResponse(html.encode("utf-8", "replace"))

    async def news(request: Request) -> Response:
        have = await question(request)
        runs = have.get("runs")
        names = [str(name) for name in runs] if isinstance(runs, list) else []
        return reply(await run_in_threadpool(site.news, names, have))

    async def ask(request: Request) -> Response:
        asked = await question(request)
        try:
            return reply({"asked": site.ask(str(asked.get("run")), str(asked.get("action")))})
        except RunError as error:
            raise Refused(409, str(error)) from None

    routes = [Route("/", show)]
    routes += [Route(f"/{f.__name__}", f, methods=["POST"]) for f in (news, ask)]
    packing = Middleware(GZipMiddleware, compresslevel=5)
    return Starlette(routes=routes, middleware=[packing], exception_handlers=handlers())
