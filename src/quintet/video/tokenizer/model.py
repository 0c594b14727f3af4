"""VideoTokenizer, a causal video tokenizer (MAGVIT-v2, arXiv 2310.05737).

Shapes: b samples, c channels, t frames of h x w pixels in 0..1; f = `factor`, s = `time_factor`,
n = (t - 1) / s latent frames after the first, d = width of the latents.

    clips (b, c, t, h, w) -> encode -> latents (b, d, 1 + n, h/f, w/f) -> quantiser -> values, codes
    values (b, d, 1 + n, h/f, w/f) -> decode -> clips (b, c, t, h, w)

Codes are ids (b, 1 + n, h/f, w/f), or latents (b, channels, 1 + n, h/f, w/f) of a continuous
bottleneck. The first frame has its own latent frame; each later latent frame covers s frames. An
image (b, c, h, w) is a clip of one frame. Layers work on (b, t, c, h, w): see nn/causal.py.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quintet.compat.models import VIDEO_TOKENIZER, model_keywords
from quintet.engine.settings import updated
from quintet.nn.adversarial.discriminator import PatchDiscriminator
from quintet.nn.adversarial.tangent import derivative
from quintet.nn.causal import State
from quintet.nn.fused import FusedSequential
from quintet.nn.norms import group_norm
from quintet.nn.precision import full_precision
from quintet.nn.quantisers.build import build_quantiser
from quintet.nn.quantisers.config import codebook_of_size
from quintet.shared.tokenizer.config import TokenizerLossConfig
from quintet.shared.tokenizer.model import (
    PixelLoss,
    TokenizerModel,
    check_divisible,
    check_floats,
    check_range,
)
from quintet.video.tokenizer.config import VideoLossConfig, VideoTokenizerConfig
from quintet.video.tokenizer.layers import build_decoder, build_encoder

TIME = -3
"""Axis of time, of clips and of codes."""


def config_from_keywords(
    config: VideoTokenizerConfig | None = None, **keywords: Any
) -> VideoTokenizerConfig:
    """A configuration with fields changed, or magvit2-pytorch's `image_size` and `codebook_size`.

    The model takes any divisible size: `image_size` is checked, and the default of its trainer.
    """
    config = config or VideoTokenizerConfig()
    keywords = model_keywords(VIDEO_TOKENIZER, keywords, config, ("image_size", "codebook_size"))
    image_size, size = keywords.pop("image_size", None), keywords.pop("codebook_size", None)
    if size is not None:
        keywords |= codebook_of_size(size)
    if keywords.get("max_dim") == math.inf:  # no limit, in a number that JSON has
        keywords["max_dim"] = 2**16
    config = updated(config, keywords)
    if image_size is not None and (type(image_size) is not int or image_size % config.factor):
        raise ValueError(
            f"image_size {image_size!r} is not divisible by the downsampling factor"
            f" {config.factor}: change it, or drop a compress_space layer"
        )
    return config


def split_time(clip: Tensor, first: int, rest: int) -> Iterator[Tensor]:
    """Chunks of (..., t, h, w) along time: `first` frames, then `rest` at a time."""
    length = clip.shape[TIME]
    yield clip.narrow(TIME, 0, min(first, length))
    for start in range(first, length, rest):
        yield clip.narrow(TIME, start, min(rest, length - start))


class VideoTokenizer(TokenizerModel):
    """The tokenizer, built from a configuration or from its fields as keywords."""

    Config = VideoTokenizerConfig
    Losses = VideoLossConfig
    what, positions = "clips", "t, h, w"
    compiles_whole = True
    """Few layers are alike: compiling by block takes longer, and steps take a third longer."""
    chunks_apart: ClassVar[bool] = False
    """Whether each chunk of a video is encoded on its own; here layers remember the last frames."""

    def __init__(self, config: VideoTokenizerConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        self.config = config = config_from_keywords(config, **keywords)
        self.image_size: int | None = keywords.get("image_size")
        self.factor, self.time_factor = config.factor, config.time_factor
        self.encoder = build_encoder(config)
        self.quantiser = build_quantiser(config, config.dim)
        self.decoder = build_decoder(config)

    def regions(self) -> list[nn.Module]:
        return [*self.encoder.layers, *self.decoder.layers]

    def encode(self, video: Tensor) -> Tensor:
        """Latents before the quantiser."""
        return self.encoder(to_frames(self.to_clip(video))).transpose(1, 2)

    def decode(self, values: Tensor) -> Tensor:
        """Clips from quantised values, not clamped."""
        return from_frames(self.decoder(values.transpose(1, 2)))

    # -- in chunks --------------------------------------------------------------------------

    def encode_chunks(self, videos: Iterable[Tensor]) -> Iterator[Tensor]:
        """Latents of a clip given in chunks, equal to those of the whole clip.

        The first chunk has 1 + k s frames and each later one k s. Only the layer states are kept
        between chunks, so memory does not grow with the length.
        """
        states: list[State] | None = None
        for video in videos:
            clip = self.to_clip(video, first_chunk=states is None)
            latents, states = self.encoder.forward_chunk(to_frames(clip), states)
            yield latents.transpose(1, 2)

    def decode_chunks(self, values: Iterable[Tensor]) -> Iterator[Tensor]:
        """Clips, not clamped, from values given in chunks of one or more latent frames."""
        states: list[State] | None = None
        for chunk in values:
            frames, states = self.decoder.forward_chunk(chunk.transpose(1, 2), states)
            yield from_frames(frames)

    # -- codes ------------------------------------------------------------------------------

    def grid(self, video: Tensor) -> tuple[int, ...]:
        frames = video.shape[2] if video.ndim == 5 else 1
        height, width = (side // self.factor for side in video.shape[-2:])
        return 1 + (frames - 1) // self.time_factor, height, width

    @torch.no_grad()
    def to_codes(self, video: Tensor, chunk: int | None = None) -> Tensor:
        """Ids (b, 1 + n, h/f, w/f), or latents (b, channels, 1 + n, h/f, w/f); `chunk` frames at a
        time."""
        check_range(video, self.what)
        if chunk is None:
            return self.quantiser.to_codes(self.encode(video))
        self.latent_frames(chunk)
        latents = self.encode_chunks(split_time(self.to_clip(video), 1 + chunk, chunk))
        return torch.cat([self.quantiser.to_codes(part) for part in latents], dim=TIME)

    @torch.no_grad()
    def decode_from_codes(self, codes: Tensor, chunk: int | None = None) -> Tensor:
        """Clips in 0..1; `chunk` frames at a time."""
        self.quantiser.check(codes, self.positions)
        if chunk is None:
            return self.decode(self.quantiser.codes_to_values(codes)).clamp(0, 1)
        step = self.latent_frames(chunk)
        values = map(self.quantiser.codes_to_values, split_time(codes, 1 + step, step))
        return torch.cat([part.clamp(0, 1) for part in self.decode_chunks(values)], dim=TIME)

    def reconstruct(self, video: Tensor, chunk: int | None = None) -> Tensor:
        """Clips in 0..1, encoded to codes and decoded."""
        return self.decode_from_codes(self.to_codes(video, chunk), chunk)

    def tokenize(self, video: Tensor, chunk: int | None = None) -> Tensor:
        """(b, 1 + n, h/f, w/f) integers below `codebook_size`; `chunk` frames at a time."""
        self.require("ids")
        return self.to_codes(video, chunk)

    def encode_latents(self, video: Tensor, chunk: int | None = None) -> Tensor:
        """(b, channels, 1 + n, h/f, w/f) of a continuous bottleneck; kl: the means."""
        self.require("latents")
        return self.to_codes(video, chunk)

    def decode_latents(self, latents: Tensor, chunk: int | None = None) -> Tensor:
        """Clips in 0..1 from latents; `chunk` frames at a time."""
        self.require("latents")
        return self.decode_from_codes(latents, chunk)

    def decode_from_code_indices(
        self, ids: Tensor, chunk: int | None = None, *, size: int | tuple[int, int] | None = None
    ) -> Tensor:
        """Clips in 0..1; `chunk` frames at a time. Ids (b, t h w) are those of frames of this
        `size` in pixels, by default the `image_size` that the model was built with."""
        if ids.ndim == 2:
            ids = ids.unflatten(1, (-1, *self.grid_of(size)))
        self.require("ids")
        return self.decode_from_codes(ids, chunk)

    def grid_of(self, size: int | tuple[int, int] | None) -> tuple[int, int]:
        """Height and width in ids of frames of a size in pixels."""
        size = size or self.image_size
        if size is None:
            raise ValueError("flattened ids need size=, the size of the frames in pixels")
        return positions_of(size, self.factor)

    def pixel_loss(self, output: Tensor, target: Tensor, losses: TokenizerLossConfig) -> PixelLoss:
        return with_temporal(super().pixel_loss(output, target, losses), output, target, losses)

    # -- input checks -----------------------------------------------------------------------

    def to_clip(self, video: Tensor, *, first_chunk: bool = True) -> Tensor:
        """(b, c, t, h, w), checked; an image becomes a clip of one frame."""
        clip = video.unsqueeze(2) if video.ndim == 4 else video
        if clip.ndim != 5 or clip.shape[1] != self.config.channels:
            channels = self.config.channels
            raise ValueError(
                f"expected clips (b, {channels}, t, h, w) or images (b, {channels}, h, w), not"
                f" {tuple(video.shape)}"
            )
        check_floats(clip, "clips")
        self.check_length(clip.shape[2], first_chunk)
        check_divisible(clip.shape[3], clip.shape[4], self.factor, "frames")
        return clip

    def check_length(self, length: int, first_chunk: bool) -> None:
        check_frames(length, self.time_factor, first_chunk)

    def latent_frames(self, chunk: int) -> int:
        """Number of latent frames of a chunk of frames."""
        step = self.time_factor
        if chunk < 1 or chunk % step:
            raise ValueError(
                f"chunk must be a multiple of the time factor {step}, not {chunk}: try"
                f" {max(chunk // step, 1) * step}"
            )
        return chunk // step


def check_frames(length: int, step: int, first_chunk: bool) -> None:
    """Raise ValueError for a clip, or a later chunk of one, that a time factor does not divide."""
    if length < 1 or (length - first_chunk) % step:
        valid = (length - first_chunk) // step * step + first_chunk
        raise ValueError(
            f"{length} frames do not fit the time factor {step}: give"
            f" {'one frame and ' if first_chunk else ''}a multiple of {step} frames, such as"
            f" {max(valid, 1 if first_chunk else step)}"
        )


def positions_of(size: int | tuple[int, int], factor: int) -> tuple[int, int]:
    """Height and width in latents of frames of a size in pixels."""
    height, width = (size, size) if isinstance(size, int) else size
    check_divisible(height, width, factor, "frames")
    return height // factor, width // factor


def with_temporal(
    frames: PixelLoss, output: Tensor, target: Tensor, losses: TokenizerLossConfig
) -> PixelLoss:
    """The loss of frames, and that of their differences."""
    weight = losses.temporal if isinstance(losses, VideoLossConfig) else 0.0
    if not weight:
        return frames
    temporal = temporal_error(output, target).mean()
    return PixelLoss(frames.loss + weight * temporal, frames.terms | {"temporal": temporal})


def temporal_error(output: Tensor, target: Tensor) -> Tensor:
    """(b,): mean absolute error of the frame differences; 0 for single frames."""
    if target.shape[2] == 1:
        return target.new_zeros(len(target))
    return (output.diff(dim=2) - target.diff(dim=2)).abs().flatten(1).mean(1)


def to_frames(clip: Tensor) -> Tensor:
    return clip.transpose(1, 2) * 2 - 1


def from_frames(frames: Tensor) -> Tensor:
    return full_precision(frames.transpose(1, 2)) * 0.5 + 0.5


class FrameDiscriminator(PatchDiscriminator):
    """Clips (b, c, t, h, w) in 0..1 -> logits (b, 1, t, h / 2^layers, w / 2^layers)."""

    def forward(self, images: Tensor, along: Tensor | None = None) -> Tensor:
        frames = [
            each.transpose(1, 2).flatten(0, 1) for each in (images, along) if each is not None
        ]
        logits = super().forward(*frames)
        return logits.unflatten(0, (len(images), -1)).transpose(1, 2)


class MotionDiscriminator(nn.Module):
    """Clips (b, c, t, h, w) in 0..1 -> logits (b, 1, t / 2^(layers - 1), h / 2^layers, ...).

    The only 3-D convolutions of the room; a discriminator need not be causal.
    """

    def __init__(self, *, channels: int = 3, dim: int = 32, layers: int = 3) -> None:
        super().__init__()
        widths = [dim * 2**i for i in range(layers)]
        body: list[nn.Module] = [down_conv(channels, dim, 1), nn.LeakyReLU(0.2)]
        for narrow, wide in pairwise(widths):
            body += [down_conv(narrow, wide, 2), group_norm(wide), nn.LeakyReLU(0.2)]
        self.body = FusedSequential(*body, nn.Conv3d(widths[-1], 1, 3, padding=1))

    def forward(self, video: Tensor, along: Tensor | None = None) -> Tensor:
        """Logits, or their derivative along a direction."""
        x = video * 2 - 1
        return self.body(x) if along is None else derivative(self.body, x, 2 * along)


def down_conv(dim: int, dim_out: int, time_stride: int) -> nn.Conv3d:
    return nn.Conv3d(dim, dim_out, (3, 4, 4), stride=(time_stride, 2, 2), padding=1)


Model = VideoTokenizer
