"""Flags of models as clients give them: JSON or the texts of a form, checked and bounded; and their
schemas. A path is never a client's."""

import json
import keyword
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from quintet.engine.config import ConfigError, from_json
from quintet.serve.access import Refused
from quintet.serve.models import MOST_SAMPLES, Sampling, Served, Upload

MOST: dict[str, float] = {
    "count": 32,
    "steps": 250,
    "seed": 2**63,
    "frames": 256,
    "chunk": 256,
    "seconds": 120,
    "size": 1024,
    "faces": 8192,
    "max_faces": 4096,
}
"""Bounds of numbers, by the name of their flag."""
MOST_OTHERS = 1000
MOST_TEXTS, MOST_CHARACTERS = 16, 4000
MOST_FILES = 16


def field_of(name: str) -> str:
    """The field of a flag: a word of Python has a line behind it there."""
    return f"{name}_" if keyword.iskeyword(name) else name


def sampling(
    model: Served,
    values: Mapping[str, Any],
    inputs: Sequence[Upload] = (),
    uploads: Mapping[str, Upload] | None = None,
) -> Sampling:
    """A request with these flags, checked and bounded. A flag that is a path takes a file of the
    request, or the name of one that was named at the start."""
    chosen: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for given, value in values.items():
        name = field_of(given)
        if name not in model.kinds:
            known = ", ".join(each.rstrip("_") for each in model.kinds)
            raise Refused(400, f"{model.name} has no flag {given[:50]!r}; it has {known}")
        if is_path(model.kinds[name]) and value is not None:
            named = model.files.get(value) if isinstance(value, str) else None
            known = "".join(f", or one of {', '.join(model.files)}" if model.files else "")
            model.check(named, f"{given} takes a file of this request (multipart/form-data){known}")
            paths[name] = typing.cast(Path, named)
        else:
            chosen[name] = value
    for name in uploads or ():
        model.check(name in model.kinds and is_path(model.kinds[name]), f"{name} takes no file")
    model.check(len(inputs) <= MOST_FILES, f"{len(inputs)} files; at most {MOST_FILES}")
    try:
        flags = from_json(model.module.Flags, chosen)
    except ConfigError as error:
        raise Refused(400, f"{model.name}: {str(error)[:300]}") from None
    for name, value in vars(flags).items():
        check_bounds(model, name, value)
    request = Sampling(model, replace(flags, **paths), inputs, uploads or {})
    model.check(
        request.samples <= MOST_SAMPLES, f"{request.samples} samples; {MOST_SAMPLES} at most"
    )
    return request


def check_bounds(model: Served, name: str, value: Any) -> None:
    values = value if isinstance(value, tuple) else (value,)
    model.check(len(values) <= MOST_TEXTS, f"{name} has {len(values)} values; {MOST_TEXTS} at most")
    for each in values:
        if isinstance(each, str):
            size = f"{name} has {len(each)} characters; {MOST_CHARACTERS} at most"
            model.check(len(each) <= MOST_CHARACTERS, size)
            model.check("\0" not in each and printable(each), f"{name} is not valid text")
        elif isinstance(each, (int, float)) and not isinstance(each, bool):
            most = MOST.get(name, MOST_OTHERS)
            fits = math.isfinite(each) and abs(each) <= most
            model.check(fits, f"{name} is {each:.10g}; {most:g} at most")


def printable(text: str) -> bool:
    """Whether it has no half of a character."""
    return text.encode("utf-8", "replace").decode() == text


def is_path(kind: Any) -> bool:
    return Path in (kind, *typing.get_args(kind))


def alone(kind: Any) -> Any:
    """A type without None."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    options = typing.get_args(kind) if union else (kind,)
    return next(each for each in options if each is not types.NoneType)


def of_form(model: Served, name: str, values: Sequence[str]) -> Any:
    """A value of a flag as JSON, of the texts of a form; empty ones are those that were left."""
    kind = alone(model.kinds.get(field_of(name), str))
    if typing.get_origin(kind) is tuple:
        if str in typing.get_args(kind):
            return list(values)
        values = [word for value in values for word in re.split(r"[x, ]+", value.strip())]
        return [number(model, name, value) for value in values]
    model.check(len(values) == 1, f"{name[:50]} is there {len(values)} times")
    if kind in (int, float, bool):
        return number(model, name, values[0])
    return values[0]


def number(model: Served, name: str, value: str) -> Any:
    try:
        return parse_json(value.encode())
    except Refused:
        raise Refused(400, f"{model.name}: {name} is {value[:50]!r}; give a number") from None


def parse_json(body: bytes) -> Any:
    def no_number(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON")

    try:
        return json.loads(body, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"this is not valid JSON: {str(error)[:100]}") from None


def schema(kind: Any) -> dict[str, Any]:
    """JSON schema of a type of flags."""
    kind = alone(kind)
    if is_path(kind):
        return {"type": "string", "format": "binary"}
    if typing.get_origin(kind) is Literal:
        return {"type": "string", "enum": list(typing.get_args(kind))}
    if typing.get_origin(kind) is tuple:
        inner, size = typing.get_args(kind), {"maxItems": MOST_TEXTS}
        if Ellipsis not in inner:
            size = {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": schema(inner[0]), **size}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def flag_schemas(model: Served) -> dict[str, Any]:
    """JSON schemas of the flags of a model, with their defaults and sentences."""
    found: dict[str, Any] = {}
    for name, kind in model.kinds.items():
        default = getattr(model.defaults, name)
        found[name.rstrip("_")] = {
            **schema(kind),
            "default": list(default) if isinstance(default, tuple) else default,
            "description": model.sentences.get(name, ""),
        }
    return found
