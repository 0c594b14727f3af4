"""The server of the live page. Needs the extra `serve`."""

import json
from collections.abc import Mapping
from typing import Any

from quintet.engine.errors import RunError
from quintet.report.source import mapping
from quintet.serve.access import App, Refused, handlers
from quintet.watch.site import Site

MAX_QUERY = 16_000
"""Characters of what a page says it has."""


def application(site: Site) -> App:
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.gzip import GZipMiddleware
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise ImportError("watching needs an extra: pip install 'quintet[serve]'") from None

    def reply(value: Mapping[str, Any]) -> Response:
        return Response(json.dumps(value).encode("utf-8", "replace"), 200, None, "application/json")

    def show(request: Request) -> Response:
        html = site.page(request.query_params.getlist("run"))
        return HTMLResponse(html.encode("utf-8", "replace"))

    def news(request: Request) -> Response:
        asked = request.query_params
        try:
            have = mapping(json.loads(asked.get("have", "{}")[:MAX_QUERY]))
        except (ValueError, RecursionError):
            have = {}
        return reply(site.news(asked.getlist("run"), have))

    async def ask(request: Request) -> Response:
        try:
            asked = mapping(json.loads(await request.body()))
            actions = site.ask(str(asked.get("run")), str(asked.get("action")))
        except (ValueError, RecursionError):
            raise Refused(400, "the body must be a JSON object with run and action") from None
        except RunError as error:
            raise Refused(409, str(error)) from None
        return reply({"asked": actions})

    routes = [Route("/", show), Route("/news", news), Route("/ask", ask, methods=["POST"])]
    packing = Middleware(GZipMiddleware, compresslevel=5)
    return Starlette(routes=routes, middleware=[packing], exception_handlers=handlers())
