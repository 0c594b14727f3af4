"""Generation with the graphs of a masked generator; without torch, see `shared/export/run.py`."""

import math
from typing import Any

import numpy as np

from quintet.shared.export.run import Model, at_step, uniform, write_pixels

write = write_pixels
MASKED = -1


def generate(
    model: Model, text: str | None, *, count: int, seed: int, steps: int, **settings: Any
) -> Any:
    """Pictures (b, c, h, w), or clips (b, c, t, h, w), in 0..1."""
    ids = ids_of(model, text, count, seed, steps, **settings)
    return model.decoded(ids=ids)


def ids_of(
    model: Model,
    text: str | None,
    count: int,
    seed: int,
    steps: int,
    order: str,
    temperature: float,
    choice_temperature: float,
    cond_scale: float,
) -> Any:
    about = model.about
    size, digits = math.prod(about["grid"]), [*enumerate(about["digits"])]
    captions = model.captions(text, count, cond_scale)
    rows = {"rows": captions.rows, "uncond": captions.uncond, **captions.inputs}
    ids = np.full((count, size), MASKED)
    for step in range(steps):
        keys = at_step(model.keys(count, seed), step)
        noise = [uniform(keys, f"digit/{part}", (size, base)) for part, base in digits]
        scale = 1 + (cond_scale - 1) * (step / (steps - 1) if steps > 1 else 1)
        drawn, confidence = model(
            "predict",
            ids=ids,
            noise=np.concatenate(noise, -1),
            temperature=np.array([temperature], np.float32),
            scale=np.array([scale], np.float32),
            **rows,
        )
        done = (step + 1) / steps
        if order == "halton":
            confidence = -np.array([about["halton"]] * count, np.float32)
        else:
            chance = np.maximum(uniform(keys, "choice", (size,)), np.float32(2.0**-25))
            confidence = confidence - choice_temperature * (1 - done) * np.log(-np.log(chance))
        known = ids != MASKED
        ranks = np.where(known, np.inf, confidence).argsort(1, kind="stable").argsort(1)
        # Shares of a half are rounded down, as in fp32.
        left = math.floor((math.cos(done * math.pi / 2) - 1e-7) * size)
        left = max(0, min(left, size - step - 1)) if done < 1 else 0
        ids = np.where(known, ids, np.where(ranks < left, MASKED, drawn))
    return ids
