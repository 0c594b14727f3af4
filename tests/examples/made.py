"""Small data for scripts of other packages."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from quintet.media.clips.writer import write_gif


class Meshes(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        vertices = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]]) * (index + 1) / 20
        return vertices, torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]), "a corner"


def sound(index: int) -> torch.Tensor:
    return 0.5 * torch.sin(2 * math.pi * (200 + 20 * index) * torch.arange(4000) / 8000)


def put_media(folder: Path) -> None:
    """Eight pictures and eight clips, which either room reads."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    for number in range(8):
        frames = chance.integers(0, 256, (6, 24, 24, 3), dtype=np.uint8)
        Image.fromarray(frames[0]).save(folder / f"{number}.png")
        write_gif(folder / f"{number}.gif", frames, 10)
