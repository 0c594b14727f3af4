"""The endpoint of retopology. The page needs nothing more: it has a form, and shows meshes."""

import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quintet.serve.asking import Endpoint, asked
from quintet.serve.flags import sampling
from quintet.serve.models import Answer, Served
from quintet.serve.shapes import own_flags, samples


def remeshes(model: Served) -> bool:
    return str(model.family) == "mesh/retopology"


async def retopology(server: Any, request: Request) -> Response:
    body = await asked(request)
    model: Served = server.model(body.one("model", str), remeshes)
    file, keep = body.file("file"), body.file("keep")
    model.check(file is not None, "give the scan: multipart/form-data with file")
    seed = body.one("seed", int)
    values = own_flags(model, body) | {"count": body.one("n", int, 1)}
    values["seed"] = secrets.randbelow(2**31) if seed is None else seed
    uploads = {} if keep is None else {"keep": keep}
    work = sampling(model, values, [file] if file else [], uploads)
    answer = await server.run(request, work)
    files = Answer(samples(answer), answer.lines, answer.notes)
    return JSONResponse({"model": model.name, "seed": values["seed"], **files.to_json()})


FIELDS = {
    "model": "Name of a model.",
    "file": "A scan or a dense mesh: a surface or points.",
    "faces": "Wished number of faces.",
    "n": "Tries; the nearest to the scan, with few open edges, comes first.",
    "keep": "A mesh whose faces the result will have.",
    "format": "obj, glb, ply or stl.",
    "seed": "Random seed; drawn if left out.",
}
ENDPOINTS = [
    Endpoint("/v1/meshes/retopology", retopology, "A clean mesh.", fields=FIELDS, does=remeshes)
]
