"""Exported graphs of an image or video tokenizer: encode and decode."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph


def encode(self: Any, pixels: Tensor) -> tuple[Tensor, ...]:
    """Images or clips to ids, and the latents before the quantiser; or to continuous latents."""
    latents = self.model.encode(pixels)
    codes = self.model.quantiser.to_codes(latents)
    return (codes, latents) if self.model.quantiser.discrete else (codes,)


def decode(self: Any, codes: Tensor) -> Tensor:
    """Codes to images or clips in 0..1."""
    return pixels_of(self.model, codes)


def pixels_of(tokenizer: Any, codes: Tensor) -> Tensor:
    """`decode_from_codes` without checks, which read numbers."""
    return tokenizer.decode(tokenizer.quantiser.codes_to_values(codes)).clamp(0, 1)


def tokenizer_pieces(model: Any, what: str, shape: tuple[int, ...]) -> Exportable:
    """Graphs for inputs (b, *shape) in 0..1 with the name `what`."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(3, *shape, generator=generator)
    with torch.no_grad():
        latents = model.encode(pixels)
        codes = model.quantiser.to_codes(latents)
    name = model.quantiser.code_name
    pixel_format = f"(batch, {joined(shape)}) float32 in 0..1: {what}"
    code_format = model.quantiser.describe(joined(latents.shape[2:]))
    if model.quantiser.discrete:
        latent_format = f"(batch, {joined(latents.shape[1:])}) float32: before the quantiser"
        outputs = {name: code_format, "latents": latent_format}
    else:
        scale = model.config.latent_scale
        outputs = {name: f"{code_format}; times {scale:.6g} they have unit deviation"}
    pieces = [
        Piece(
            "encode",
            f"{what} to {name}",
            graph(model, encode),
            {what: Input(pixels[:2], pixels, pixel_format)},
            outputs,
        ),
        Piece(
            "decode",
            f"{name} to {what}",
            graph(model, decode),
            {name: Input(codes[:2], codes, code_format)},
            {what: pixel_format},
        ),
    ]
    return Exportable(pieces, f"Sizes are those of training: {joined(shape)} per sample.")


def joined(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
