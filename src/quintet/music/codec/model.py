"""Codec: a convolutional autoencoder of sounds (EnCodec, arXiv 2210.13438; Descript audio codec,
arXiv 2306.06546).

Shapes: b sounds of n samples and c channels, (b, c, n); t frames of `factor` samples.

A strided convolution takes the samples to the rate of the first stage: without units at the rate of
the samples themselves, which would take half of the time. First and last layer are in fp32, because
bf16 has eight bits and sounds sixteen.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.models import model_keywords
from quintet.engine.settings import updated
from quintet.music.codec.chunks import windows
from quintet.music.codec.config import WAVEFORM, CodecConfig
from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.quantisers.build import build_quantiser
from quintet.nn.snake import Snake, SnakeUnit
from quintet.nn.spectral_errors import LogMels, copy_errors, log_mels
from quintet.shared.segments import check_peak
from quintet.shared.tokenizer.config import TokenizerLossConfig
from quintet.shared.tokenizer.model import PixelLoss, Reconstruction, TokenizerModel

DILATIONS = (1, 3, 9)
"""Dilations of the residual units of a stage."""
CHUNK = 500
"""Frames of a chunk: ten seconds at 50 frames a second."""
LOUDNESS, SMALL = 0.15, 0.3
"""Root mean square of music, about, and of signals in a new network: snakes are nearly linear."""
BRANCH = 0.1
"""Scale of the residual branches in it."""
BETWEEN, OUTER = 2, 4
"""Kernels in strides, between stages and at the samples."""


class Down(nn.Conv1d):
    """(b, c, s t) -> (b, d, t); it sees `reach` samples on both sides of a frame."""

    def __init__(self, dim: int, out: int, stride: int, kernel: int = BETWEEN) -> None:
        super().__init__(dim, out, kernel * stride, stride)
        self.spare = (kernel - 1) * stride
        self.reach = kernel * stride

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, (self.spare // 2, self.spare - self.spare // 2)))


class Up(nn.ConvTranspose1d):
    """(b, c, t) -> (b, d, s t)."""

    def __init__(self, dim: int, out: int, stride: int, kernel: int = BETWEEN) -> None:
        super().__init__(dim, out, kernel * stride, stride)
        self.spare = (kernel - 1) * stride
        self.reach = kernel

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        values = super().forward(input)
        return values[..., self.spare // 2 : values.shape[-1] - self.spare + self.spare // 2]


def spectrum(count: int, channels: int, size: int) -> Tensor:
    """(count, channels, size) of unit norm: windowed cosines and sines of frequencies in even
    steps. Of stereo half of them are of the sum, the others of the difference."""
    row, time = torch.arange(count)[:, None], torch.arange(size) - (size - 1) / 2
    step = math.pi / -(-count // 2)
    waves = ((row // 2 + 0.5) * step * time - (row % 2) * math.pi / 2).cos()
    waves = F.normalize(waves * torch.hann_window(size + 2, periodic=False)[1:-1], dim=1)
    signs = (-1.0) ** (row // 2 * torch.arange(channels))
    return waves[:, None] * signs[..., None] / channels**0.5


def tie(quantiser: Any) -> None:
    """The projection out of a bottleneck becomes the adjoint of that into it, of its own size."""
    outward = quantiser.project_out.weight
    inward = quantiser.project_in.weight[: outward.shape[1]]  # of kl the means
    nn.init.orthogonal_(inward)
    outward.copy_(inward.T * (outward.norm() / inward.norm()))


def units(dim: int) -> list[nn.Module]:
    return [SnakeUnit(dim, dilation) for dilation in DILATIONS]


class Codec(TokenizerModel):
    """Built from a configuration, or from its fields as keywords. `codec.reconstruct(sounds)`
    copies sounds of any length in bounded memory."""

    Config = CodecConfig
    what, positions = "sounds", "frames"
    compared_on = "sounds"
    chunk = None
    """Sounds of any length are encoded at once."""

    def __init__(self, config: CodecConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = config or CodecConfig()
        self.config = config = updated(config, model_keywords({}, keywords, config))
        self.factor, widths = config.factor, config.widths
        first, *strides = config.strides
        self.stem = Down(config.channels, widths[0], first, OUTER)
        down, up = units(widths[0]), units(widths[0])[::-1]
        for stride, (narrow, wide) in zip(strides, pairwise(widths)):
            down += [Snake(narrow), Down(narrow, wide, stride), *units(wide)]
            up = [*units(wide)[::-1], Snake(wide), Up(wide, narrow, stride), *up]
        last = widths[-1]
        self.encoder = nn.Sequential(*down, Snake(last), nn.Conv1d(last, last, 3, padding=1))
        self.quantiser = build_quantiser(config, last)
        self.decoder = nn.Sequential(nn.Conv1d(last, last, 3, padding=1), *up, Snake(widths[0]))
        self.head = Up(widths[0], config.channels, first, OUTER)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Nearly linear, and the decoder the adjoint of the encoder: new copies are projections of
        the sounds, and steps improve them from the first. Copies by an unrelated decoder are noise:
        it learns to be silent before anything else."""
        downs = [layer for layer in [self.stem, *self.encoder] if isinstance(layer, Down)]
        ups = [layer for layer in [self.head, *list(self.decoder)[::-1]] if isinstance(layer, Up)]
        for down, up in zip(downs, ups):
            rows, columns = down.weight.flatten(1).shape
            nn.init.orthogonal_(down.weight, max(1.0, rows / columns) ** 0.5)
            if down is self.stem:
                down.weight.copy_(spectrum(*down.weight.shape))
            up.weight.copy_(down.weight * min(1.0, up.out_channels * up.stride[0] / rows))
        for layer in self.modules():
            if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            if isinstance(layer, SnakeUnit):
                layer.last.weight.mul_(BRANCH)
        tie(self.quantiser)
        # Loudness is seen beside a bias; alone, the norm before the bottleneck would take it away.
        nn.init.normal_(self.stem.bias, std=SMALL)  # type: ignore[arg-type]
        self.stem.weight.mul_(SMALL / LOUDNESS)
        inner: list[Any] = [self.encoder[-1], self.decoder[0]]
        for layer in inner:
            nn.init.dirac_(layer.weight)
        inner[-1].weight.mul_(SMALL)
        self.head.weight.mul_(LOUDNESS / SMALL)

    # -- what the training of codecs and their comparison ask ------------------------------------

    @property
    def sample_rate(self) -> int:
        return self.config.sample_rate

    @property
    def channels(self) -> int:
        return self.config.channels

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return self.factor

    def grid(self, sounds: Tensor) -> tuple[int, ...]:
        return (-(-sounds.shape[-1] // self.factor),)

    def latent_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self.config.latent_channels, -(-shape[-1] // self.factor))

    def check(self, sounds: Tensor) -> None:
        if sounds.ndim != 3 or sounds.shape[1] != self.channels or not sounds.is_floating_point():
            given = f"{sounds.dtype} {tuple(sounds.shape)}"
            raise ValueError(f"expected sounds (b, {self.channels}, n) in -1..1, not {given}")

    # -- encoding and decoding -------------------------------------------------------------------

    def encode(self, sounds: Tensor) -> Tensor:
        """Sounds, padded to whole frames -> latents before the quantiser."""
        self.check(sounds)
        return self.encode_frames(F.pad(sounds, (0, -sounds.shape[-1] % self.factor)))

    def encode_frames(self, sounds: Tensor) -> Tensor:
        """Of sounds that are whole frames."""
        with without_autocast(sounds):
            first = self.stem(sounds.to(self.stem.weight.dtype))
        return self.encoder(first)

    def decode(self, values: Tensor) -> Tensor:
        """Sounds of whole frames, not clamped."""
        features = self.decoder(values)
        with without_autocast(features):
            return full_precision(self.head(features.to(self.head.weight.dtype)))

    def forward(self, pixels: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """Copies of sounds, as long as these."""
        result = super().forward(pixels, noise)
        return result._replace(output=result.output[..., : pixels.shape[-1]])

    @torch.no_grad()
    def to_codes(self, pixels: Tensor, /) -> Tensor:
        """Sounds (b, c, n) in -1..1 -> ids (b, t), or latents (b, channels, t); kl: the means."""
        check_peak(pixels)
        return self.quantiser.to_codes(self.encode(pixels))

    @torch.no_grad()
    def decode_from_codes(self, codes: Tensor) -> Tensor:
        """Sounds of whole frames. They may be a little beyond -1..1, as files clip."""
        self.quantiser.check(codes, self.positions)
        return self.decode(self.quantiser.codes_to_values(codes))

    def reconstruct(self, pixels: Tensor, /) -> Tensor:
        """Copies, as long as the sounds."""
        copies = torch.cat([*self.decode_chunks(self.encode_chunks([pixels]))], -1)
        return copies[..., : pixels.shape[-1]]

    # -- chunks ----------------------------------------------------------------------------------

    @property
    def margins(self) -> tuple[int, int]:
        """Frames on both sides that the codes of a frame depend on, and the samples of one."""
        reach = 0
        for layer in [self.stem, *self.encoder][::-1]:
            reach = reach * _stride(layer) + _reach(layer)
        samples = 0
        for layer in [*self.decoder, self.head][::-1]:
            samples = -(-samples // _stride(layer)) + _reach(layer)
        return -(-reach // self.factor), samples

    def encode_chunks(self, parts: Iterable[Tensor], frames: int = CHUNK) -> Iterator[Tensor]:
        """Codes of a sound that comes in parts (b, c, …), chunk by chunk. Together they are those
        of the whole: every chunk is encoded with all that its codes depend on."""
        margin = self.margins[0] * self.factor
        for values, start, stop in windows(parts, frames * self.factor, margin):
            first, last = start // self.factor, -(-stop // self.factor)
            yield self.to_codes(values)[..., first:last]

    def decode_chunks(self, parts: Iterable[Tensor], frames: int = CHUNK) -> Iterator[Tensor]:
        """Sounds of codes that come in parts (b, …, frames), chunk by chunk."""
        for codes, start, stop in windows(parts, frames, self.margins[1]):
            yield self.decode_from_codes(codes)[..., start * self.factor : stop * self.factor]

    # -- custom training loops -------------------------------------------------------------------

    def pixel_loss(self, output: Tensor, target: Tensor, losses: TokenizerLossConfig) -> PixelLoss:
        """Errors of log-mels and of samples; `losses` are those of pictures."""
        mels = _log_mels(self.sample_rate, output.device)
        mel, waveform = copy_errors(mels, target.flatten(0, 1), output.flatten(0, 1))
        return PixelLoss(mel + WAVEFORM * waveform, {"mel": mel, "waveform": waveform})


def _stride(layer: nn.Module) -> int:
    return layer.stride[0] if isinstance(layer, (Down, Up)) else 1


def _reach(layer: nn.Module) -> int:
    """Positions of its input on both sides."""
    if isinstance(layer, (Down, Up, SnakeUnit)):
        return layer.reach
    return layer.kernel_size[0] // 2 if isinstance(layer, nn.Conv1d) else 0


@lru_cache(maxsize=4)
def _log_mels(rate: int, device: torch.device) -> LogMels:
    return log_mels(rate).to(device)


Model = Codec
