"""What can be set in the music room. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import (
    OptimiserConfig,
    Recipe,
    path,
    require,
    require_finite,
    require_held_out,
)


@dataclass(frozen=True, kw_only=True)
class MusicDataConfig:
    """Which sounds, and what is done to them."""

    rate: int = 16_000
    """Samples a second; files of any other rate are resampled."""
    seconds: float = 10.0
    """The longest stretch of a sound; of longer files one is cut out, in training at random."""
    min_seconds: float = 4.0
    """Built-in pieces for training last between this and seconds; held-out ones last seconds."""
    valid_fraction: float = 0.05
    """Share of a folder held out for validation, chosen by the seed."""
    valid_limit: int = 1000
    """At most so many held-out sounds are measured at each evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training pieces when no folder is given."""
    partial: float = 0.2
    """Share of built-in training captions that leave something unsaid, as people's do."""
    buckets: int = 8
    """Batches are padded to one of so many lengths, evenly spaced up to seconds."""
    text_length: int = 1000
    """Captions are cut to so many characters; a notice names the first."""
    max_missing: float = 0.5
    """Sounds without a caption are left out; past this share of them the folder is refused."""
    max_bytes: int = 1_000_000_000
    """Files with more bytes than this are skipped before they are opened."""
    max_seconds: float = 7200.0
    """Files that last longer than this are skipped before they are decoded."""
    max_channels: int = 8
    """Files with more channels than this are skipped; up to it they are mixed to one."""
    max_rate: int = 192_000
    """Files with more samples a second than this are skipped."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(1000 <= self.rate <= 192_000, "rate", self.rate, "between 1,000 and 192,000")
        require(self.seconds > 0, "seconds", self.seconds, "above 0")
        least = self.min_seconds
        require(0 < least <= self.seconds, "min_seconds", least, "above 0 and at most seconds")
        require_held_out(self)
        for name in ("partial", "max_missing"):
            value = getattr(self, name)
            require(0 <= value <= 1, name, value, "a share between 0 and 1")
        for name in ("buckets", "text_length"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("max_bytes", "max_channels"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("max_seconds", "max_rate"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


@dataclass(frozen=True, kw_only=True)
class MuLaNConfig:
    """The model: a tower for sounds, a tower for texts, and the space where both meet."""

    rate: int = 16_000
    """Samples a second of the sounds."""
    n_fft: int = 2048
    """Samples that a frame looks at; a shorter window cannot tell neighbouring low notes apart."""
    hop: int = 160
    """Samples between frames."""
    bins: int = 128
    """Mel bins of the spectrogram."""
    low: float = 0.0
    """Hz where the lowest bin begins."""
    high: float | None = None
    """Hz where the highest bin ends; left out: half the rate."""
    patch: tuple[int, int] = (16, 16)
    """Mel bins and frames of a patch."""
    patch_dropout: float = 0.25
    """Share of the patches that are left out in training."""
    dim: int = 512
    """Width of the audio tower."""
    layers: int = 6
    """Its layers."""
    heads: int = 8
    """Its attention heads."""
    head_dim: int = 64
    """Channels of each head."""
    text: Literal["bytes", "frozen"] = "bytes"
    """Texts by a tower over bytes that trains along, or by a frozen encoder."""
    text_length: int = 256
    """Bytes (or tokens of the frozen encoder) of a text; the rest is cut."""
    text_dim: int = 512
    """Width of the text tower, or of the frozen encoder's embeddings."""
    text_layers: int = 6
    """bytes: layers of the text tower."""
    text_heads: int = 8
    """bytes: its attention heads."""
    text_head_dim: int = 64
    """bytes: channels of each of them."""
    vocabulary: int = 258
    """bytes: ids that the text tower knows; more than bytes need where ids are one's own."""
    text_path: str | None = path()
    """frozen: folder of the encoder on disk."""
    dim_latent: int = 128
    """Numbers of an embedding, which has length one."""
    loss: Literal["softmax", "decoupled", "sigmoid"] = "softmax"
    """What pairs are compared by: softmax both ways, without the pair itself, or each alone."""
    temperature: float = 0.07
    """Similarities are divided by this at the start; it is learned, within 0.01 and 10."""
    quantiser_depth: int = 8
    """Codes that an embedding is written with, each refining the one before; 0: none."""
    quantiser_bits: int = 10
    """Each of them is one of 2 ** quantiser_bits."""

    def __post_init__(self) -> None:
        sizes = ("rate", "n_fft", "hop", "bins", "dim", "layers", "heads", "head_dim")
        texts = ("text_length", "text_dim", "text_layers", "text_heads", "text_head_dim")
        for name in (*sizes, *texts, "dim_latent"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.vocabulary >= 258, "vocabulary", self.vocabulary, "258 or more: bytes and two")
        whole = min(self.patch) >= 1 and self.bins // self.patch[0] * self.patch[0] == self.bins
        require(whole, "patch", self.patch, f"1 or more, the first dividing the {self.bins} bins")
        share = self.patch_dropout
        require(0 <= share < 1, "patch_dropout", share, "at least 0 and below 1")
        turns = self.head_dim // 4 * 4 == self.head_dim
        require(turns, "head_dim", self.head_dim, "divisible by 4, to turn along two axes")
        even = self.text_head_dim // 2 * 2 == self.text_head_dim
        require(even, "text_head_dim", self.text_head_dim, "even, so that it turns")
        heat = self.temperature
        require(0.01 <= heat <= 10, "temperature", heat, "between 0.01 and 10")
        high = self.rate / 2 if self.high is None else self.high
        band = 0 <= self.low < high <= self.rate / 2
        require(band, "high", self.high, f"above low and at most half the rate, {self.rate / 2:g}")
        require(self.quantiser_depth >= 0, "quantiser_depth", self.quantiser_depth, "0 or more")
        bits = self.quantiser_bits
        require(1 <= bits <= 20, "quantiser_bits", bits, "between 1 and 20")

    @property
    def rows(self) -> int:
        """Patches of one column: the same frames at all frequencies."""
        return self.bins // self.patch[0]


@dataclass(frozen=True, kw_only=True)
class MusicLossConfig:
    """What makes it harder to tell pairs apart in training; the loss itself is the model's."""

    time_bands: int = 2
    """Stretches of time that are hidden in training."""
    time_share: float = 0.1
    """Each of them is at most this share of the sound."""
    frequency_bands: int = 2
    """Bands of frequency that are hidden."""
    frequency_share: float = 0.1
    """Each of them is at most this share of the bins."""

    def __post_init__(self) -> None:
        for name in ("time_bands", "frequency_bands"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("time_share", "frequency_share"):
            share = getattr(self, name)
            require(0 <= share < 1, name, share, "at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class MuLaNRecipe(Recipe):
    """Everything that a run of MuLaN is made of."""

    model: MuLaNConfig = field(default_factory=MuLaNConfig)
    """The two towers."""
    sounds: MusicDataConfig = field(default_factory=MusicDataConfig)
    """The sounds and their captions."""
    losses: MusicLossConfig = field(default_factory=MusicLossConfig)
    """What is hidden in training."""
    mulan: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How it learns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.model.rate
        require(self.sounds.rate == rate, "sounds.rate", self.sounds.rate, f"model.rate, {rate}")
