"""Retopology with its graphs; without torch, see `shared/export/run.py`."""

from pathlib import Path
from typing import Any

import numpy as np

from quintet.mesh.retopology.ranking import best_first
from quintet.mesh.retopology.seams import mended
from quintet.mesh.transformer.faces import Mesh, assemble, generate_faces, write
from quintet.shared.export.run import Model, fold

__all__ = ["generate", "write"]

MANY = 100_000
"""Points that are drawn from a file first."""


def generate(
    model: Model, text: str | None, *, points: str | None, faces: int | None, **settings: Any
) -> list[Mesh]:
    """Meshes for a file of points with normals, the best first."""
    if points is None:
        raise SystemExit("give --points: a file .npy, or .xyz (text), of x y z and a normal each")
    path = Path(points)
    rows = np.load(path) if path.suffix == ".npy" else np.loadtxt(path)
    return retopologise(model, np.asarray(rows, np.float64), faces, **settings)


def retopologise(
    model: Model,
    rows: Any,
    faces: int | None,
    *,
    count: int,
    seed: int,
    temperature: float,
    top_k: int | None,
) -> list[Mesh]:
    about = model.about
    if rows.ndim != 2 or rows.shape[1] != 6 or not np.isfinite(rows).all():
        raise SystemExit(f"points are (n, 6), finite and with normals, not {rows.shape}")
    rows = rows[np.random.default_rng(0).permutation(len(rows))][:MANY]
    rows[:, 3:] /= np.linalg.norm(rows[:, 3:], axis=1, keepdims=True)
    low, high = rows[:, :3].min(0), rows[:, :3].max(0)
    centre, scale = (low + high) / 2, about["extent"] / (float((high - low).max()) / 2)
    rng = np.random.default_rng(fold(seed, "points"))
    chosen, missing = rng.permutation(len(rows)), about["points"] - len(rows)
    chosen = np.concatenate((chosen, rng.integers(len(rows), size=max(0, missing))))
    places = ((rows[:, :3] - centre) * scale).astype(np.float32)
    surface = np.concatenate((places, rows[:, 3:]), 1)[chosen[: about["points"]]]
    sampling = {"temperature": temperature, "top_k": top_k}
    codes = codes_of(model, surface.astype(np.float32), faces or 0, count, seed, sampling)
    bins, known = about["bins"], surface[:, :3].astype(np.float32).astype(np.float64)
    meshes: list[tuple[Any, Any]] = []
    for each in codes:
        corners = each.reshape(len(each), 3, 3)[..., ::-1].astype(np.float32)
        mesh = assemble(each, (corners + np.float32(0.5)) * np.float32(2 / bins) - 1, 3)
        meshes.append(mended(mesh.vertices.astype(np.float64), mesh.faces, known, bins))
    return [Mesh(at / scale + centre, polygons) for at, polygons in best_first(meshes, known)]


def codes_of(
    model: Model, points: Any, faces: int, count: int, seed: int, sampling: dict[str, Any]
) -> Any:
    """(b, f, 9), -1 after the end of a mesh: window by window, as `Retopology.generate_codes`."""
    about = model.about
    width, rows = about["max_faces"], np.arange(count)
    half = width // 2
    most = int(np.float32(faces) * np.float32(about["spare"])) + 16 if faces else 4 * width
    codes = np.zeros((count, 0, 9), np.int64)
    while not codes.shape[1] or (codes.shape[1] < most and (codes[:, -1, 0] >= 0).any()):
        length = codes.shape[1]
        prompt, first = (codes[:, -half:], length - half) if length else (None, 0)
        told, begun = np.array([faces]), np.array([first])
        (context,) = model("context", points=points[None], faces=told, first=begun)
        new = generate_faces(
            model,
            model.keys(count, fold(seed, length) if length else seed),
            min(width, most - first),
            {
                "context": context[np.zeros_like(rows)],
                "mask": np.ones((count, about["context"]), bool),
            },
            rows=rows,
            uncond=rows,
            prompt=prompt,
            **sampling,
        )[:, half if length else 0 :]
        ended = codes[:, -1, 0] < 0 if length else np.zeros(count, bool)
        codes = np.concatenate((codes, np.where(ended[:, None, None], -1, new)), 1)
        if new.shape[1] < min(width, most - first) - (half if length else 0):
            break
    return codes
