"""Clips in the shape of OpenAI: begun, asked for, fetched and forgotten."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quintet.serve.access import Refused
from quintet.serve.asking import Endpoint, asked
from quintet.serve.flags import sampling
from quintet.serve.models import Served, media_type
from quintet.serve.shapes import PROMPT, SEED, pictures, prompted, samples

MOST_VIDEOS = 16
"""Clips that wait to be fetched."""
VIDEO = "/v1/videos/{video}"


async def create_video(server: Any, request: Request) -> Response:
    body = await asked(request)
    model: Served = server.model(body.one("model", str), pictures("video"))
    request.state.texts = body.one("prompt", str)
    start = body.file("input_reference")
    files = {} if start is None else {"clip": start}
    body.values.pop("seconds", None)  # the length is that of training, or the flag frames
    work = sampling(model, prompted(model, body), (), files)
    done = [name for name, video in server.videos.items() if video["task"].done()]
    if len(server.videos) >= MOST_VIDEOS and not done:
        raise Refused(503, "too many clips are being made; try again", {"retry-after": "10"})
    if len(server.videos) >= MOST_VIDEOS:
        server.videos.pop(done[0])
    name = f"video_{secrets.token_hex(8)}"
    never = asyncio.Event()
    task = asyncio.ensure_future(server.worker.answer(work, never.wait))
    task.add_done_callback(lambda task: task.cancelled() or task.exception())  # asked for later
    about = {"id": name, "object": "video", "created_at": int(time.time()), "model": model.name}
    about |= {"seed": work.flags.seed, "seconds": "", "size": ""}
    server.videos[name] = {"task": task, "about": about}
    await asyncio.sleep(0)  # a full queue refuses at once
    if task.done() and task.exception() is not None:
        raise server.videos.pop(name)["task"].exception()
    return JSONResponse(state_of(server.videos[name]))


def state_of(video: Mapping[str, Any]) -> dict[str, Any]:
    task, state = video["task"], {"status": "in_progress", "progress": 0, "error": None}
    if task.done():
        state = {"status": "completed", "progress": 100, "error": None}
        if task.exception() is not None:
            failure = {"code": "failed", "message": str(task.exception())}
            state = {"status": "failed", "progress": 0, "error": failure}
    return {**video["about"], **state}


def known_video(server: Any, request: Request) -> dict[str, Any]:
    found = server.videos.get(request.path_params["video"])
    if found is None:
        raise Refused(404, "there is no such clip; finished ones are kept for a while only")
    return found


async def show_video(server: Any, request: Request) -> Response:
    return JSONResponse(state_of(known_video(server, request)))


async def fetch_video(server: Any, request: Request) -> Response:
    task = known_video(server, request)["task"]
    if not task.done():
        raise Refused(409, "the clip is not ready yet")
    name, content = next(iter(samples(task.result()).items()))
    return Response(content, media_type=media_type(name))


async def delete_video(server: Any, request: Request) -> Response:
    known_video(server, request)["task"].cancel()
    name = request.path_params["video"]
    server.videos.pop(name)
    return JSONResponse({"id": name, "object": "video.deleted", "deleted": True})


VIDEOS = (
    Endpoint(
        "/v1/videos",
        create_video,
        "Begin a clip of a prompt.",
        fields={**PROMPT, **SEED, "input_reference": "A clip or an image to continue."},
        does=pictures("video"),
    ),
    Endpoint(VIDEO, show_video, "How far a clip is.", "GET", does=pictures("video")),
    Endpoint(f"{VIDEO}/content", fetch_video, "The clip.", "GET", does=pictures("video")),
    Endpoint(VIDEO, delete_video, "Forget a clip.", "DELETE", does=pictures("video")),
)
