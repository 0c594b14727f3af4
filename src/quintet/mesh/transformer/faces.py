"""Faces by the graphs of a generator, and meshes of them; numpy alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quintet.shared.export.run import Model, at_step, uniform


class Mesh(NamedTuple):
    vertices: Any
    """(v, 3), z is up."""
    faces: Any
    """(f, corners)."""


def generate_faces(
    model: Model,
    keys: Any,
    limit: int,
    inputs: Mapping[str, Any],
    *,
    rows: Any,
    uncond: Any,
    temperature: float,
    top_k: int | None,
    cond_scale: float = 1.0,
    prompt: Any = None,
) -> Any:
    """Codes (b, f, t) of a mesh for each key, -1 after its end; `prompt` (b, n, t) holds its first
    faces. `inputs`, `rows` and `uncond` are those of the graph "face"."""
    about, count = model.about, len(keys)
    temperature = 0.0 if top_k == 1 else temperature
    cache = np.zeros((limit, len(rows), *about["cache"]), np.float32)
    draws, ended, codes = np.arange(about["draws"]), np.zeros(count, bool), list[Any]()
    settings = {
        "top_k": np.array([min(top_k or about["values"], about["values"])]),
        "temperature": np.array([temperature], np.float32),
        "scale": np.array([cond_scale], np.float32),
        "rows": rows,
        "uncond": uncond,
        **inputs,
    }
    face = np.zeros((count, about["tokens"]), np.int64)
    for position in range(limit):
        own = at_step(keys[:, None], position * about["draws"] + draws)
        noise = uniform(own.ravel(), "code", (about["values"],))
        face, end, new = model(
            "face",
            codes=face,
            noise=noise.reshape(count, len(draws), -1),
            position=np.array([position]),
            cache=cache[: max(1, position)],
            **settings,
        )
        chance = uniform(own[:, 0], "end", (1,))[:, 0] if temperature else np.float32(0.5)
        ends = (chance < end) & (position > 0)
        if prompt is not None and position < prompt.shape[1]:
            forced = prompt[:, position, 0] >= 0
            face, ends = np.where(forced[:, None], prompt[:, position], face), ends & ~forced
        ended |= ends
        if ended.all():
            break
        cache[position] = new
        codes.append(np.where(ended[:, None], -1, face))
    return np.stack(codes, 1)


def assemble(codes: Any, coordinates: Any, corners: int) -> Mesh:
    """As in `assemble.py`: corners with equal codes are one vertex, at their mean position."""
    real = codes[:, 0] >= 0
    rows = codes[real].reshape(-1, codes.shape[1] // corners)
    positions = coordinates[real].reshape(-1, 3)
    _, vertex = np.unique(rows, axis=0, return_inverse=True)
    faces = vertex.reshape(-1, corners)
    ordered = np.sort(faces, -1)
    distinct = (ordered[:, 1:] != ordered[:, :-1]).all(-1)
    faces = faces[distinct]
    if not len(faces):
        return Mesh(np.zeros((0, 3), np.float32), faces)
    _, first = np.unique(ordered[distinct], axis=0, return_index=True)
    faces = faces[np.sort(first)]
    sums = np.zeros((vertex.max() + 1, 3), np.float32)
    np.add.at(sums, vertex.ravel(), positions)
    mean = sums / np.bincount(vertex.ravel())[:, None].astype(np.float32)
    used, first, compact = np.unique(faces, return_index=True, return_inverse=True)
    order = first.argsort()
    return Mesh(mean[used[order]], order.argsort()[compact].reshape(-1, corners))


def write(path: Path, mesh: Mesh, about: dict[str, Any]) -> Path | None:
    """An .obj, in which y is up; none of a mesh without a face."""
    if not len(mesh.faces):
        return None
    points = mesh.vertices[:, [0, 2, 1]] * np.array([1, 1, -1]) + 0.0
    lines = ["v " + " ".join(f"{x:.9g}" for x in row) for row in points.tolist()]
    lines += ["f " + " ".join(map(str, row)) for row in (mesh.faces + 1).tolist()]
    path = path.with_suffix(".obj")
    path.write_text("\n".join([*lines, ""]), encoding="ascii")
    return path
