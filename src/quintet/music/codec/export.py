"""Exported graphs of a codec: encode and decode, for sounds of any length."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.music.codec.model import Codec

FRAMES = (24, 33)
"""Frames of the sounds that graphs are traced and checked with."""
AXES = ("batch", "frames")


def encode(self: Any, sounds: Tensor) -> Tensor:
    codes = self.model.quantiser.to_codes(self.model.encode_frames(sounds.flatten(1, 2).mT))
    return codes if self.model.quantiser.discrete else codes.mT


def decode(self: Any, codes: Tensor) -> Tensor:
    values = codes if self.model.quantiser.discrete else codes.mT
    sounds = self.model.decode(self.model.quantiser.codes_to_values(values))
    return sounds.mT.unflatten(1, (-1, self.model.hop))


@torch.no_grad()
def pieces(model: Codec, recipe: Any) -> Exportable:
    """Frames are the second axis."""
    config, name = model.config, model.quantiser.code_name
    generator = torch.Generator().manual_seed(0)
    sounds = [
        0.1 * torch.randn(count, frames, model.hop, model.channels, generator=generator)
        for count, frames in zip((2, 3), FRAMES)
    ]
    coder, decoder = graph(model, encode), graph(model, decode)
    codes = [coder(each) for each in sounds]
    of_sounds = (
        f"(batch, frames, {model.hop}, {model.channels}) float32 in -1..1: samples of each frame"
        f" and their channels, at {model.sample_rate} Hz; zeros fill the last"
    )
    channels = f", {config.latent_channels}) float32"
    kind = f") int64 below {model.codebook_size}" if model.quantiser.discrete else channels
    of_codes = f"(batch, frames{kind}"
    if not model.quantiser.discrete:
        of_codes += f"; times {config.latent_scale:.6g} they have unit deviation"
    return Exportable(
        [
            Piece(
                "encode",
                f"sounds to {name}",
                coder,
                {"sounds": Input(sounds[0], sounds[1], of_sounds, AXES)},
                {name: of_codes},
            ),
            Piece(
                "decode",
                f"{name} to sounds",
                decoder,
                {name: Input(codes[0], codes[1], of_codes, AXES)},
                {"sounds": of_sounds},
            ),
        ],
        "What was filled up before encoding is to be cut from the decoded sound.",
    )
