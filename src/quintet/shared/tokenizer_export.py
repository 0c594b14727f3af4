"""What can leave a tokenizer of pictures or clips: the way to ids, and the way back."""

from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.exporting import Exportable, Input, Piece


class Encode(nn.Module):
    """Pictures or clips -> ids, and the latents that they were read off."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        latents = self.model.encode(pixels)
        return self.model.quantiser.to_ids(latents), latents


class Decode(nn.Module):
    """Ids -> pictures or clips in 0..1."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model.decode(self.model.quantiser.ids_to_values(ids)).clamp(0, 1)


def tokenizer_pieces(model: Any, what: str, shape: tuple[int, ...]) -> Exportable:
    """For inputs (b, *shape) of values in 0..1, called `what`."""
    chance = torch.Generator().manual_seed(0)
    pixels = torch.rand(3, *shape, generator=chance)
    with torch.no_grad():
        latents = model.encode(pixels)
        grid = model.quantiser.to_ids(latents).shape
    ids = torch.randint(model.codebook_size, grid, generator=chance)
    place, inner = written(grid[1:]), written(latents.shape[1:])
    drawn = f"(batch, {written(shape)}) float32 in 0..1: {what}"
    numbers = f"(batch, {place}) int64 below {model.codebook_size}"
    pieces = [
        Piece(
            "encode",
            f"{what} to ids",
            Encode(model),
            {what: Input(pixels[:2], pixels, drawn)},
            {"ids": numbers, "latents": f"(batch, {inner}) float32: before the quantiser"},
        ),
        Piece(
            "decode",
            f"ids to {what}",
            Decode(model),
            {"ids": Input(ids[:2], ids, numbers)},
            {what: drawn},
        ),
    ]
    return Exportable(pieces, f"Sizes are those of training: {written(shape)} for each sample.")


def written(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
