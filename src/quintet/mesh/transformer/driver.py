"""Generation with the graphs of a mesh generator; without torch, see `shared/export/run.py`."""

from typing import Any

import numpy as np

from quintet.mesh.transformer.faces import Mesh, assemble, generate_faces, write
from quintet.shared.export.run import Model

__all__ = ["generate", "write"]


def generate(
    model: Model,
    text: str | None,
    *,
    count: int,
    seed: int,
    max_faces: int | None,
    cond_scale: float,
    **sampling: Any,
) -> list[Mesh]:
    about = model.about
    captions = model.captions(text, count, cond_scale)
    codes = generate_faces(
        model,
        model.keys(count, seed),
        min(max_faces or about["max_faces"], about["max_faces"]),
        captions.inputs,
        rows=captions.rows,
        uncond=captions.uncond,
        cond_scale=cond_scale,
        **sampling,
    )
    bins, _ = model("decode", codes=codes)
    coordinates = (bins.astype(np.float32) + np.float32(0.5)) * np.float32(2 / about["bins"]) - 1
    return [assemble(*each, about["corners"]) for each in zip(codes, coordinates)]
