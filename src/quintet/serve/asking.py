"""Reading requests: JSON or a form with files; and the description of an endpoint."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from quintet.serve.access import Refused
from quintet.serve.flags import MOST_FILES, parse_json
from quintet.serve.models import Served, Upload

KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Endpoint:
    """One path and its handler, which takes the server and the request."""

    path: str
    handler: Callable[[Any, Request], Awaitable[Response]]
    about: str
    method: str = "POST"
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names of the body with what they mean."""
    does: Callable[[Served], bool] | None = None
    """Whether a model can; None for what concerns none."""


@dataclass
class Asked:
    """The body of a request: values, and files, by the name of their field."""

    values: dict[str, list[Any]]
    files: dict[str, list[Upload]]
    is_form: bool

    def one(self, name: str, kind: type, default: Any = None) -> Any:
        values = self.values.get(name, [None])
        value = values[0]
        if value is None or value == "":
            return default
        if self.is_form and kind is not str:
            value = parse_json(str(value).encode())
        if kind is float and type(value) is int:
            value = float(value)
        if len(values) > 1 or type(value) is not kind:
            raise Refused(400, f"{name} must be {KINDS[kind]}")
        return value

    def file(self, *names: str) -> Upload | None:
        """The only file of these fields."""
        found = [upload for name in names for upload in self.files.get(name, ())]
        if len(found) > 1:
            raise Refused(400, f"give one file as {names[0]}, not {len(found)}")
        return found[0] if found else None


async def asked(request: Request) -> Asked:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _form(request)
    if kind not in ("application/json", ""):
        raise Refused(415, "send application/json, or multipart/form-data with files")
    body = parse_json(await request.body() or b"{}")
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return Asked({name: [value] for name, value in body.items()}, {}, is_form=False)


async def _form(request: Request) -> Asked:
    values: dict[str, list[Any]] = {}
    files: dict[str, list[Upload]] = {}
    boundary = re.search(r'boundary="?([^";,]+)', request.headers["content-type"])
    end = f"--{boundary[1]}--" if boundary else ""
    if not end or not (await request.body()).rstrip().endswith(end.encode("latin-1")):
        raise Refused(400, "the form is cut off, or its boundary is not that of the header")
    async with request.form(max_files=MOST_FILES, max_fields=100) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                upload = Upload(value.filename or "", await value.read())
                files.setdefault(name, []).append(upload)
            else:
                values.setdefault(name, []).append(value)
    return Asked(values, files, is_form=True)


async def left(request: Request) -> None:
    """Returns when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
