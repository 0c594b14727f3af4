"""What the tests of the command line share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from quintet.engine.runs import checkpoint

TINY = [
    *("--steps", "6", "--batch-size", "4", "--workers", "0", "--precision", "fp32"),
    *("--device", "cpu", "--trackers", "--keep-last", "10"),
    *("--images.valid-limit", "8", "--images.size", "32", "32"),
    *("--model.dim", "16", "--discriminator.dim", "8", "--losses.adversarial-from", "0.5"),
    *("--evaluate-every", "3", "--save-every", "2", "--log-every", "1"),
]


class Said(NamedTuple):
    status: int
    out: str
    err: str


Quintet = Callable[..., Said]


def with_nan(run: Path, part: str = "vae", steps: Sequence[int] = ()) -> Path:
    """The run with NaN in one weight of the part in these checkpoints, or all, sealed as if it had
    been saved so. The last bias: what comes before it stays finite."""
    folder = run / "checkpoints"
    for step in steps or checkpoint.steps_in(folder):
        path = checkpoint.path_of(folder, step)
        about, files = checkpoint.read_about(path), checkpoint.read(path)
        for name in (part, f"{part}.ema"):
            weights = files[name]
            last = [key for key in weights if key.endswith("bias") and "decoder" in key][-1]
            weights[last] = torch.full_like(weights[last], torch.nan)
        checkpoint.write(folder, step, files, about)
    return run


def picture(path: Path, seed: int, height: int = 40, width: int = 48, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(values).convert(mode).save(path)
    return path
