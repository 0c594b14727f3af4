"""Settings of music/codec. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from math import log2, prod
from typing import Literal

from quintet.engine.config import require, require_at_least, require_choices
from quintet.music.config import CodecLossConfig, CodingRecipe
from quintet.nn.quantisers.config import QuantiserConfig
from quintet.shared.tokenizer.config import require_quantiser

WAVEFORM = 30.0
"""Weight of the error of samples. By log-mels alone a new network finds the spectrum of all music
first, and phases much later."""


@dataclass(frozen=True, kw_only=True)
class CodecConfig(QuantiserConfig):
    """The codec: an encoder, a bottleneck and a decoder."""

    sample_rate: int = 32_000
    """Sample rate in Hz."""
    channels: int = 1
    """Channels of the sounds: 1 (mono) or 2 (stereo)."""
    dim: int = 64
    """Width after the first stride; every further stride doubles it."""
    strides: tuple[int, ...] = (2, 4, 8, 10)
    """Downsampling of the stages; their product is the number of samples of a frame."""
    quantiser: Literal["fsq", "lfq", "bsq", "vq", "kl", "bounded"] = "kl"
    """Continuous latents: kl (Gaussian) or bounded (of unit size, with noise in training).
    Ids: fsq (finite scalar), lfq (lookup-free), bsq (binary spherical) or vq (learned codebook)."""
    levels: tuple[int, ...] = (8,) * 20
    """fsq: levels per latent dimension. Twenty of 8 are 60 bits for each frame: 3 kbit/s at 50
    frames a second."""
    latent_channels: int = 32
    """kl and bounded: channels of the latents, for each frame."""
    kl_weight: float = 1e-4
    """kl: weight of the divergence from a standard normal, in nats per element of the latents."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_quantiser(self)
        require_at_least(1, self, "sample_rate", "channels", "dim")
        valid = bool(self.strides) and min(self.strides) >= 1
        require(valid, "strides", self.strides, "1 or more each")

    @property
    def factor(self) -> int:
        """Samples of a frame."""
        return prod(self.strides)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return tuple(self.dim * 2**index for index in range(len(self.strides)))

    @property
    def kbit_per_second(self) -> float | None:
        """Rate of the ids, without entropy coding; None of continuous latents."""
        if self.quantiser in ("kl", "bounded"):
            return None
        bits = sum(map(log2, self.levels)) if self.quantiser == "fsq" else self.codebook_bits
        return bits * self.sample_rate / self.factor / 1000


@dataclass(frozen=True, kw_only=True)
class CodecRecipe(CodingRecipe):
    """All settings of a run that trains a codec."""

    model: CodecConfig = field(default_factory=CodecConfig)
    """The codec."""
    losses: CodecLossConfig = field(default_factory=lambda: CodecLossConfig(waveform=WAVEFORM))
    """The losses."""
