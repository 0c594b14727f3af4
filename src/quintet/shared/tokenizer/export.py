"""Exported graphs of an image or video tokenizer: encode and decode."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece
from quintet.shared.export import graph


def encode(self: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Images or clips to ids, and the latents before the quantiser."""
    latents = self.model.encode(pixels)
    return self.model.quantiser.to_ids(latents), latents


def decode(self: Any, ids: Tensor) -> Tensor:
    """Ids to images or clips in 0..1."""
    return self.model.decode(self.model.quantiser.ids_to_values(ids)).clamp(0, 1)


def tokenizer_pieces(model: Any, what: str, shape: tuple[int, ...]) -> Exportable:
    """For inputs (b, *shape) in 0..1 with the name `what`."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(3, *shape, generator=generator)
    with torch.no_grad():
        latents = model.encode(pixels)
        grid = model.quantiser.to_ids(latents).shape
    ids = torch.randint(model.codebook_size, grid, generator=generator)
    pixel_format = f"(batch, {joined(shape)}) float32 in 0..1: {what}"
    latent_format = f"(batch, {joined(latents.shape[1:])}) float32: before the quantiser"
    id_format = f"(batch, {joined(grid[1:])}) int64 below {model.codebook_size}"
    pieces = [
        Piece(
            "encode",
            f"{what} to ids",
            graph(model, encode),
            {what: Input(pixels[:2], pixels, pixel_format)},
            {"ids": id_format, "latents": latent_format},
        ),
        Piece(
            "decode",
            f"ids to {what}",
            graph(model, decode),
            {"ids": Input(ids[:2], ids, id_format)},
            {what: pixel_format},
        ),
    ]
    return Exportable(pieces, f"Sizes are those of training: {joined(shape)} per sample.")


def joined(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
