"""VideoTokenizer: clips to a grid of ids and back, without a look ahead (MAGVIT-v2, 2310.05737).

Shapes: b samples, c colours, t frames of h x w pixels in 0..1; f = `factor`, s = `time_factor`,
n = (t - 1) / s latent frames after the first, d = width of the latents.

    clips (b, c, t, h, w) -> encode -> latents (b, d, 1 + n, h/f, w/f) -> quantiser -> values, ids
    values (b, d, 1 + n, h/f, w/f) -> decode -> clips (b, c, t, h, w)

The first frame has latents of its own and each of the others covers s frames. A picture
(b, c, h, w) is a clip of one frame. Layers work on (b, t, c, h, w): see nn/causal.py.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quintet.engine.pretrained import Pretrained
from quintet.nn.blocks import group_norm
from quintet.nn.causal import State
from quintet.nn.codebook import CodebookUse, codebook_use, levels_of
from quintet.nn.discriminator import PatchDiscriminator
from quintet.nn.fsq import FSQ
from quintet.nn.lfq import LFQ
from quintet.nn.quantise import full_precision
from quintet.nn.statistics import CommitContext, Commits
from quintet.nn.vq import VectorQuantiser
from quintet.video.config import (
    FrameDiscriminatorConfig,
    TemporalDiscriminatorConfig,
    VideoTokenizerConfig,
)
from quintet.video.layers import build_decoder, build_encoder


class Reconstruction(NamedTuple):
    videos: Tensor
    """(b, c, t, h, w), fp32, not clamped: a clamp would stop the gradient of what is outside."""
    ids: Tensor
    """(b, 1 + n, h/f, w/f)."""
    quantiser_loss: Tensor
    """0-dim."""


def build_quantiser(config: VideoTokenizerConfig) -> FSQ | LFQ | VectorQuantiser:
    bits, commitment = config.codebook_bits, config.commitment_weight
    match config.quantiser:
        case "fsq":
            return FSQ(config.dim, config.levels, spread_weight=config.spread_weight)
        case "lfq":
            weight = config.entropy_weight
            return LFQ(config.dim, bits, entropy_weight=weight, commitment_weight=commitment)
        case "vq":
            return VectorQuantiser(config.dim, 2**bits, commitment_weight=commitment)


def config_from_keywords(**keywords: Any) -> VideoTokenizerConfig:
    """A configuration from its fields, or from `image_size` and `codebook_size` as well.

    Any size that divides works, so `image_size` is only checked.
    """
    image_size, codes = keywords.pop("image_size", None), keywords.pop("codebook_size", None)
    if codes is not None:
        bits = codes.bit_length() - 1
        if bits < 1 or codes != 2**bits:
            raise ValueError(f"codebook_size must be a power of two, not {codes}: or set `levels`")
        keywords |= {"codebook_bits": bits, "levels": levels_of(bits)}
    config = VideoTokenizerConfig(**keywords)
    if image_size is not None and image_size % config.factor:
        raise ValueError(
            f"image_size {image_size} does not divide by the factor {config.factor}: change it, or"
            " leave out a compress_space"
        )
    return config


def pieces(clip: Tensor, first: int, rest: int) -> Iterator[Tensor]:
    """Along time (axis 1 of ids, 2 of clips): `first`, then `rest` at a time."""
    axis = 1 if clip.ndim == 4 else 2
    length = clip.shape[axis]
    yield clip.narrow(axis, 0, min(first, length))
    for start in range(first, length, rest):
        yield clip.narrow(axis, start, min(rest, length - start))


class VideoTokenizer(Pretrained, nn.Module):
    """The tokenizer. Build it from a configuration, or from its fields as keywords."""

    Config = VideoTokenizerConfig
    compiles_whole = True
    """Few layers are alike: by the block compiling takes longer, and steps a third."""

    def __init__(self, config: VideoTokenizerConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        if config is None:
            config = config_from_keywords(**keywords)
        elif keywords:
            config = replace(config, **keywords)
        self.config = config
        self.factor, self.time_factor = config.factor, config.time_factor
        self.encoder = build_encoder(config)
        self.quantiser = build_quantiser(config)
        self.decoder = build_decoder(config)

    def regions(self) -> list[nn.Module]:
        return [*self.encoder.layers, *self.decoder.layers]

    @property
    def codebook_size(self) -> int:
        return self.quantiser.codes

    def forward(self, video: Tensor) -> Reconstruction:
        quantised = self.quantiser(self.encode(video))
        return Reconstruction(self.decode(quantised.values), quantised.ids, quantised.loss)

    def encode(self, video: Tensor) -> Tensor:
        """Latents before the quantiser."""
        return self.encoder(to_frames(self.clip_of(video))).transpose(1, 2)

    def decode(self, values: Tensor) -> Tensor:
        """Clips from what the quantiser returned, not clamped."""
        return to_clip(self.decoder(values.transpose(1, 2)))

    # -- in chunks --------------------------------------------------------------------------

    def encode_chunks(self, videos: Iterable[Tensor]) -> Iterator[Tensor]:
        """Latents of a clip that comes in chunks, equal to those of the whole.

        The first chunk has 1 + k s frames and each later one k s. Only states are kept between
        them, so memory does not grow with the length.
        """
        states: list[State] | None = None
        for video in videos:
            clip = self.clip_of(video, begins=states is None)
            latents, states = self.encoder.step(to_frames(clip), states)
            yield latents.transpose(1, 2)

    def decode_chunks(self, values: Iterable[Tensor]) -> Iterator[Tensor]:
        """Clips, not clamped, from values that come in chunks of one or more latent frames."""
        states: list[State] | None = None
        for chunk in values:
            frames, states = self.decoder.step(chunk.transpose(1, 2), states)
            yield to_clip(frames)

    # -- ids --------------------------------------------------------------------------------

    @torch.no_grad()
    def tokenize(self, video: Tensor, chunk: int | None = None) -> Tensor:
        """(b, 1 + n, h/f, w/f) integers below `codebook_size`; `chunk` frames at a time."""
        check_range(video)
        if chunk is None:
            return self.quantiser.to_ids(self.encode(video))
        self.latents_in(chunk)
        latents = self.encode_chunks(pieces(self.clip_of(video), 1 + chunk, chunk))
        return torch.cat([self.quantiser.to_ids(part) for part in latents], dim=1)

    @torch.no_grad()
    def decode_from_code_indices(self, ids: Tensor, chunk: int | None = None) -> Tensor:
        """Clips in 0..1; `chunk` frames at a time."""
        if ids.ndim != 4 or ids.is_floating_point():
            shape = tuple(ids.shape)
            raise ValueError(f"expected integer ids (b, t, h, w), not {ids.dtype} {shape}")
        if ids.min() < 0 or ids.max() >= self.codebook_size:
            raise ValueError(
                f"ids reach from {ids.min()} to {ids.max()}, but the codebook has"
                f" {self.codebook_size} codes: decode with the model that made them"
            )
        if chunk is None:
            return self.decode(self.quantiser.ids_to_values(ids)).clamp(0, 1)
        step = self.latents_in(chunk)
        values = (self.quantiser.ids_to_values(part) for part in pieces(ids, 1 + step, step))
        return torch.cat([part.clamp(0, 1) for part in self.decode_chunks(values)], dim=2)

    def reconstruct(self, video: Tensor, chunk: int | None = None) -> Tensor:
        """Clips in 0..1 after a trip through their ids."""
        return self.decode_from_code_indices(self.tokenize(video, chunk), chunk)

    def codebook_use(self, ids: Tensor) -> CodebookUse:
        """How much of the codebook these ids use; give it many ids for each code."""
        return codebook_use(ids, self.codebook_size)

    def commit(self, at: CommitContext) -> None:
        """Apply the statistics of the step, where the quantiser keeps any."""
        if isinstance(self.quantiser, Commits):
            self.quantiser.commit(at)

    # -- what comes in ----------------------------------------------------------------------

    def clip_of(self, video: Tensor, *, begins: bool = True) -> Tensor:
        """(b, c, t, h, w), checked; a picture becomes a clip of one frame."""
        clip = video.unsqueeze(2) if video.ndim == 4 else video
        if clip.ndim != 5 or clip.shape[1] != self.config.channels:
            colours = self.config.channels
            raise ValueError(
                f"expected clips (b, {colours}, t, h, w) or pictures (b, {colours}, h, w), not"
                f" {tuple(video.shape)}"
            )
        if not clip.is_floating_point():
            raise ValueError(f"expected clips in 0..1, not {clip.dtype}: divide them by 255")
        self.check_length(clip.shape[2], begins)
        self.check_size(clip.shape[3], clip.shape[4])
        return clip

    def check_length(self, length: int, begins: bool) -> None:
        step = self.time_factor
        if length < 1 or (length - begins) % step:
            fits = (length - begins) // step * step + begins
            raise ValueError(
                f"{length} frames do not fit the time factor {step}: give"
                f" {'one frame and ' if begins else ''}a multiple of {step} frames, such as"
                f" {max(fits, 1 if begins else step)}"
            )

    def check_size(self, height: int, width: int) -> None:
        if height % self.factor or width % self.factor:
            raise ValueError(
                f"frames of {height}x{width} pixels do not divide by the factor {self.factor}:"
                f" resize or crop them to {height // self.factor * self.factor or self.factor}"
                f"x{width // self.factor * self.factor or self.factor}"
            )

    def latents_in(self, chunk: int) -> int:
        """Latent frames in a chunk of so many frames."""
        step = self.time_factor
        if chunk < 1 or chunk % step:
            raise ValueError(
                f"chunk must be a multiple of the time factor {step}, not {chunk}: try"
                f" {max(chunk // step, 1) * step}"
            )
        return chunk // step


def check_range(video: Tensor) -> None:
    """Waits for the device, so training does not call it; a resized clip may overshoot a little."""
    if video.is_floating_point() and not -0.1 <= video.min() <= video.max() <= 1.1:
        raise ValueError(
            f"clip values reach from {video.min():.3g} to {video.max():.3g}, but the model takes"
            " 0 to 1: divide bytes by 255, or map -1..1 to 0..1"
        )


def to_frames(clip: Tensor) -> Tensor:
    return clip.transpose(1, 2) * 2 - 1


def to_clip(frames: Tensor) -> Tensor:
    return full_precision(frames.transpose(1, 2)) * 0.5 + 0.5


class FrameDiscriminator(PatchDiscriminator):
    """Clips (b, c, t, h, w) in 0..1 -> logits (b, 1, t, h / 2^layers, w / 2^layers)."""

    def __init__(self, config: FrameDiscriminatorConfig | None = None) -> None:
        own = config or FrameDiscriminatorConfig()
        super().__init__(channels=own.channels, dim=own.dim, layers=own.layers)
        self.config = own

    def forward(self, images: Tensor) -> Tensor:
        frames = images.transpose(1, 2)
        logits = super().forward(frames.flatten(0, 1))
        return logits.unflatten(0, frames.shape[:2]).transpose(1, 2)


class TemporalDiscriminator(nn.Module):
    """Clips (b, c, t, h, w) in 0..1 -> logits (b, 1, t / 2^(layers - 1), h / 2^layers, ...).

    The only 3-D convolutions of the room, and small ones: a critic of motion may see the future.
    """

    def __init__(self, config: TemporalDiscriminatorConfig | None = None) -> None:
        super().__init__()
        self.config = config or TemporalDiscriminatorConfig()
        dim, layers = self.config.dim, self.config.layers
        widths = [dim * 2**i for i in range(layers)]
        body: list[nn.Module] = [halving(self.config.channels, dim, 1), nn.LeakyReLU(0.2)]
        for narrow, wide in pairwise(widths):
            body += [halving(narrow, wide, 2), group_norm(wide), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*body, nn.Conv3d(widths[-1], 1, 3, padding=1))

    def forward(self, video: Tensor) -> Tensor:
        return self.body(video * 2 - 1)


def halving(dim: int, dim_out: int, time_stride: int) -> nn.Conv3d:
    return nn.Conv3d(dim, dim_out, (3, 4, 4), stride=(time_stride, 2, 2), padding=1)
