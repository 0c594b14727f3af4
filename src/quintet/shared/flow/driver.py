"""Generation with the graphs of a flow generator; without torch, see `shared/export/run.py`."""

from typing import Any

import numpy as np

from quintet.shared.export.run import Model, normal, solve, write_pixels

write = write_pixels


def times_of(steps: int, shift: float) -> Any:
    share = np.linspace(0, 1, steps + 1)
    return (share / (share + shift * (1 - share))).astype(np.float32)


def generate(
    model: Model,
    text: str | None,
    *,
    count: int,
    seed: int,
    steps: int,
    method: str,
    cond_scale: float,
) -> Any:
    """Pictures (b, c, h, w), or clips (b, c, t, h, w), in 0..1."""
    about = model.about
    cond_scale = 1.0 if about["jumps"] else cond_scale
    captions = model.captions(text, count, cond_scale)
    rows = len(captions.rows)
    known = np.zeros((rows, 1, *about["shape"][1:]), bool)

    def velocity(x: Any, time: Any, end: Any) -> Any:
        times = {"time": np.full(rows, time), "end": np.full(rows, end)}
        inputs = {"x": x[captions.rows], "known": known, **times, **captions.inputs}
        return captions.guided(model("velocity", **inputs)[0], cond_scale)

    x = normal(model.keys(count, seed), "noise", (*about["shape"],))
    x = solve(velocity, x, times_of(steps, about["shift"]), method)
    return model.decoded(latents=x)
