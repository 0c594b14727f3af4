"""What the tests of the command line share."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

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


def picture(path: Path, seed: int, height: int = 40, width: int = 48, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(values).convert(mode).save(path)
    return path
