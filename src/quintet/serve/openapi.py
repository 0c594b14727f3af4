"""The description of a server: OpenAPI, and the same as a page."""

import html
import json
from collections.abc import Iterable, Mapping
from typing import Any

from quintet import __version__
from quintet.serve.asking import Endpoint
from quintet.serve.flags import flag_schemas, is_path
from quintet.serve.models import Served

FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}


def document(endpoints: Iterable[Endpoint], models: Mapping[str, Served]) -> dict[str, Any]:
    """Paths of the models that are there; each model has its own for its flags."""
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        able = [m for m in models.values() if endpoint.does is not None and endpoint.does(m)]
        if endpoint.does is not None and not able:
            continue
        if endpoint.path.endswith("/sample"):
            for model in models.values():
                at = endpoint.path.format(name=model.name)
                paths[at] = {"post": of_model(endpoint, model)}
            continue
        entry = operation(endpoint.about, endpoint.fields, [model.name for model in able])
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quintet", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def operation(about: str, fields: Mapping[str, str], models: list[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"summary": about, "responses": {"200": {"description": "the answer"}}}
    if fields:
        properties: dict[str, Any] = {name: {"description": text} for name, text in fields.items()}
        properties["model"] = {"type": "string", "enum": models}
        entry["requestBody"] = body({"type": "object", "properties": properties})
    return entry


def of_model(endpoint: Endpoint, model: Served) -> dict[str, Any]:
    flags = flag_schemas(model)
    plain = {n: s for n, s in flags.items() if not is_path(model.kinds.get(n))}
    entry = operation(f"{model.name} ({model.family}): {endpoint.about}", {}, [])
    whole = body({"type": "object", "properties": plain})
    form = {"type": "object", "properties": {"input": FILES, **flags}}
    whole["content"]["multipart/form-data"] = {"schema": form}
    return {**entry, "requestBody": whole}


def body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def page(described: dict[str, Any]) -> str:
    """Without a script."""
    sections = "".join(
        f"<details><summary><b>{method.upper()}</b> <code>{html.escape(path)}</code> "
        f"{html.escape(entry['summary'])}</summary><table>{rows(entry)}</table></details>"
        for path, methods in described["paths"].items()
        for method, entry in methods.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Quintet: endpoints</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="stylesheet" href="/page.css"><main><h1>Endpoints</h1>'
        '<p><a href="/openapi.json">openapi.json</a> · <a href="/">try the models</a></p>'
        f"{sections}</main></html>"
    )


def rows(entry: dict[str, Any]) -> str:
    contents = entry.get("requestBody", {}).get("content", {})
    fields: dict[str, Any] = {}
    for content in contents.values():
        fields |= content["schema"]["properties"]
    return "".join(
        f"<tr><th><code>{html.escape(name)}</code></th><td>{html.escape(about(schema))}</td></tr>"
        for name, schema in fields.items()
    )


def about(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    shown = "" if default in (None, []) else f" Default: {json.dumps(default)}."
    options = f" One of {', '.join(schema['enum'])}." if "enum" in schema else ""
    return f"{schema.get('description', '')}{options}{shown}"
