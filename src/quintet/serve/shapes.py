"""Endpoints in the shapes that clients of OpenAI know, translated into the flags of a model, and
plain ones for meshes, codes and reconstructions.

Without a seed one is drawn, and named in the answer.
"""

import asyncio
import base64
import re
import secrets
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from quintet.serve.access import Refused
from quintet.serve.asking import Asked, Endpoint, asked
from quintet.serve.flags import MOST_CHARACTERS, of_form, sampling
from quintet.serve.models import (
    Answer,
    Check,
    Sampling,
    Served,
    Upload,
    asked_by,
    outcome,
    scratch,
    stored,
)

MOST_EMBEDDED = 256
WAV_HEADER = 44
POLL = 0.02
"""Seconds between two looks at a sound that is being made."""
SHAPED = {"text", "image", "mask", "voice", "size"}
"""Flags that the shapes have fields of their own for."""
PROMPT = {"model": "Name of a model.", "prompt": "What to generate."}
SEED = {"seed": "Random seed; drawn if left out."}
SIZE = {"size": "WIDTHxHEIGHT, for a model that has a choice."}


def of_room(room: str, *flags: str) -> Any:
    return lambda model: model.family.room == room and model.has(*flags)


def pictures(room: str) -> Any:
    return of_room(room, "text", "count", "seed")


def prompted(model: Served, body: Asked, count: int = 1) -> dict[str, Any]:
    """Flags of a prompt, a number, a size and a seed, and those of the model by their own names."""
    prompt = body.one("prompt", str)
    seed = body.one("seed", int)
    values: dict[str, Any] = {"count": body.one("n", int, count)}
    values["seed"] = secrets.randbelow(2**31) if seed is None else seed
    if prompt is not None:
        values["text"] = [prompt]
    size = body.one("size", str, "auto")
    if size != "auto":
        sides = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", size)
        if sides is None:
            raise Refused(400, "size must be WIDTHxHEIGHT, or auto")
        model.check(model.has("size"), "makes one size only; leave out size")
        values["size"] = [int(sides[2]), int(sides[1])]
    return {**own_flags(model, body), **values}


def own_flags(model: Served, body: Asked) -> dict[str, Any]:
    """Flags of the model by their own names, but those that the shape has a name for."""
    names = body.values.keys() & model.kinds.keys() - SHAPED
    if body.is_form:
        return {name: of_form(model, name, body.values[name]) for name in names}
    return {name: body.values[name][0] for name in names}


async def made(server: Any, request: Request, does: Any, body: Asked, **files: Upload) -> Any:
    """The model, flags and answer of a prompt."""
    model: Served = server.model(body.one("model", str), does)
    request.state.texts = body.one("prompt", str)
    work = sampling(model, prompted(model, body), (), files)
    return work, await server.run(request, work)


def samples(answer: Answer) -> dict[str, bytes]:
    """Without the sheet of all of them."""
    return {n: content for n, content in answer.files.items() if not n.startswith("sheet.")}


# -- images -----------------------------------------------------------------------------------


async def generations(server: Any, request: Request) -> Response:
    body = await asked_for_images(request)
    return listed(*await made(server, request, pictures("image"), body))


async def asked_for_images(request: Request) -> Asked:
    body = await asked(request)
    if body.one("response_format", str, "b64_json") != "b64_json":
        raise Refused(400, "this server keeps no files; leave response_format at b64_json")
    return body


def listed(work: Sampling, answer: Answer) -> Response:
    data = [{"b64_json": base64.b64encode(x).decode()} for x in samples(answer).values()]
    return JSONResponse({"created": int(time.time()), "data": data, "seed": work.flags.seed})


async def edits(server: Any, request: Request) -> Response:
    body = await asked_for_images(request)
    image, mask = body.file("image", "image[]"), body.file("mask")
    if image is None:
        raise Refused(400, "give the image to edit as a file: multipart/form-data with image")
    if mask is None:
        answered = await made(server, request, of_room("image", "like"), body, like=image)
    else:
        white = await run_in_threadpool(white_mask, mask)
        does = of_room("image", "image", "mask")
        answered = await made(server, request, does, body, image=image, mask=white)
    return listed(*answered)


def white_mask(mask: Upload) -> Upload:
    """Clients of OpenAI send masks that are transparent where to paint; ours are white there. A
    mask without transparent pixels is taken as it is."""
    import numpy as np

    from quintet.media.pixels import read_image, write_png

    with scratch({}) as folder:
        (path,) = stored(folder, [mask])
        alpha = read_image(path, alpha=True)[..., 3]
        if alpha.all():
            return mask
        path = path.with_suffix(".png")
        write_png(path, np.repeat((alpha[..., None] == 0) * np.uint8(255), 3, axis=2))
        return Upload(path.name, path.read_bytes())


# -- speech -----------------------------------------------------------------------------------


async def speech(server: Any, request: Request) -> Response:
    body = await asked(request)
    does = of_room("speech", "text", "voice")
    model: Served = server.model(body.one("model", str), does)
    voice, form = body.one("voice", str, "default"), body.one("response_format", str, "wav")
    model.check(form in ("wav", "pcm"), f"makes wav and pcm, not {form[:20]}: response_format")
    request.state.texts = body.one("input", str)
    values: dict[str, Any] = {"text": [body.one("input", str, "")]}
    values |= own_flags(model, body)
    speed = body.one("speed", float)
    if speed is not None and model.has("rate"):
        values["rate"] = speed
    if voice != "default":
        known = ", ".join(["default", *model.files])
        model.check(voice in model.files, f"has no voice {voice[:50]!r}; there are {known}")
        values["voice"] = voice
    work = sampling(model, values)
    if form == "pcm":
        return await streamed(server, request, work)
    answer: Answer = await server.run(request, work)
    (sound,) = (content for name, content in answer.files.items() if name.endswith(".wav"))
    return Response(sound, media_type="audio/wav")


async def streamed(server: Any, request: Request, work: Sampling) -> Response:
    """16-bit samples of a sound as it is made: the file that grows is read along."""
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    folder: list[Path] = []

    def started(out: Path) -> None:
        folder.append(out)
        loop.call_soon_threadsafe(begun.set)

    work.started = started
    finished = asyncio.ensure_future(server.run(request, work))
    finished.add_done_callback(lambda _: begun.set())
    await begun.wait()
    parts = growing(finished, folder)
    try:
        first = await anext(parts, b"")  # a refusal still has its status
    except BaseException:
        finished.cancel()
        raise

    async def every() -> AsyncIterator[bytes]:
        try:
            yield first
            async for part in parts:
                yield part
        finally:
            finished.cancel()

    return StreamingResponse(every(), media_type="audio/pcm")


async def growing(finished: "asyncio.Future[Answer]", folder: list[Path]) -> AsyncIterator[bytes]:
    sent = WAV_HEADER
    while not finished.done():
        await asyncio.wait([finished], timeout=POLL)
        with suppress(OSError):  # not there yet, or gone as it is done
            for path in folder[0].glob("*.wav"):
                with path.open("rb") as file:
                    file.seek(sent)
                    part = file.read()
                if part:
                    sent += len(part)
                    yield part
    for name, content in finished.result().files.items():
        if name.endswith(".wav") and len(content) > sent:
            yield content[sent:]


# -- embeddings -------------------------------------------------------------------------------


@dataclass
class Embedding:
    """Texts, as `quintet sample` embeds them. In turn on a CPU: several at once take as long there,
    and the first would wait for the last."""

    model: Served
    texts: list[str]
    is_quick = True

    @property
    def key(self) -> str | None:
        return None if self.model.on_cpu else f"{self.model.name} embeds"

    @property
    def samples(self) -> int:
        return len(self.texts)

    def run(self) -> list[list[float]]:
        return self.model.module.embed_texts(self.model.network, self.texts).float().tolist()

    def run_all(
        self, works: "Sequence[Embedding]", checks: Sequence[Check]
    ) -> Iterator[tuple[int, Any]]:
        rows = outcome(Embedding(self.model, [text for work in works for text in work.texts]).run)
        for index, (work, check) in enumerate(zip(works, checks)):
            if isinstance(rows, Exception):  # whose fault it is shows when each runs by itself
                yield index, asked_by(check, work.run)
            else:
                yield index, rows[: len(work.texts)]
                del rows[: len(work.texts)]


async def embeddings(server: Any, request: Request) -> Response:
    body = await asked(request)
    model: Served = server.model(body.one("model", str), embeds)
    (given,) = body.values.get("input", [None])
    texts: Any = [given] if isinstance(given, str) else given
    valid = isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts)
    model.check(valid, "input must be a text or a list of texts")
    model.check(len(texts) <= MOST_EMBEDDED, f"{len(texts)} texts; {MOST_EMBEDDED} at most")
    short = all(0 < len(each) <= MOST_CHARACTERS for each in texts)
    model.check(short, f"each text must have 1 to {MOST_CHARACTERS} characters")
    request.state.texts = texts
    form = body.one("encoding_format", str, "float")
    model.check(form in ("float", "base64"), "encoding_format must be float or base64")
    rows: list[list[float]] = await server.run(request, Embedding(model, texts))
    packed = [
        row if form == "float" else base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode()
        for row in rows
    ]
    data = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(packed)]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})


def embeds(model: Served) -> bool:
    return hasattr(model.module, "embed_texts")


# -- meshes, codes and reconstructions --------------------------------------------------------


async def meshes(server: Any, request: Request) -> Response:
    body = await asked(request)
    work, answer = await made(server, request, pictures("mesh"), body)
    files = Answer(samples(answer), answer.lines, answer.notes)
    return JSONResponse({"model": work.model.name, "seed": work.flags.seed, **files.to_json()})


def reconstructs(model: Served) -> bool:
    return model.takes_files and not embeds(model)


async def worked_on(server: Any, request: Request, does: Any) -> tuple[Served, Answer]:
    body = await asked(request)
    model = server.model(body.one("model", str), does)
    file = body.file("file", "input")
    model.check(file is not None, "give the file to work on: multipart/form-data with file")
    return model, await server.run(request, sampling(model, {}, [file] if file else []))


async def reconstructions(server: Any, request: Request) -> Response:
    model, answer = await worked_on(server, request, reconstructs)
    return JSONResponse({"model": model.name, **answer.to_json()})


async def tokens(server: Any, request: Request) -> Response:
    """Ids or latents as numbers, from the file that the tokenizer writes."""
    from safetensors.numpy import load

    model, answer = await worked_on(server, request, tokenizes)
    for name, content in answer.files.items():
        if name.endswith(".safetensors"):
            found = {key: value.tolist() for key, value in load(content).items()}
            return JSONResponse({"model": model.name, "name": name, **found})
    raise Refused(400, f"{model.name} writes no ids or latents of this file")


def tokenizes(model: Served) -> bool:
    return model.has("any_model")


FILE = {"model": "Name of a model.", "file": "The file to work on."}
GENERATED = {**PROMPT, "n": "How many.", **SIZE, **SEED}
SPOKEN = {
    "model": "Name of a model.",
    "input": "What to say.",
    "voice": "A voice that was named at the start, or default.",
    "response_format": "wav, or pcm, which is streamed as it is made.",
    "speed": "Rate of speech, 0.25 to 4.",
    "seed": "Random seed.",
}
EMBEDDED = {
    "model": "Name of a model.",
    "input": "A text, or a list of texts.",
    "encoding_format": "float or base64.",
}
EDITED = {**GENERATED, "image": "The image.", "mask": "Transparent, or white, where to paint."}
SHAPES = (
    Endpoint(
        "/v1/images/generations",
        generations,
        "Images of a prompt.",
        fields=GENERATED,
        does=pictures("image"),
    ),
    Endpoint(
        "/v1/images/edits",
        edits,
        "An image changed, or painted into.",
        fields=EDITED,
        does=of_room("image", "image", "mask"),
    ),
    Endpoint(
        "/v1/audio/speech",
        speech,
        "A text spoken.",
        fields=SPOKEN,
        does=of_room("speech", "text", "voice"),
    ),
    Endpoint("/v1/embeddings", embeddings, "Embeddings of texts.", fields=EMBEDDED, does=embeds),
    Endpoint("/v1/meshes", meshes, "Meshes of a prompt.", fields=GENERATED, does=pictures("mesh")),
    Endpoint(
        "/v1/reconstructions",
        reconstructions,
        "A file through the codes of a model.",
        fields=FILE,
        does=reconstructs,
    ),
    Endpoint("/v1/tokens", tokens, "Ids or latents of a file.", fields=FILE, does=tokenizes),
)
