"""What can be set in the video room. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from quintet.engine.config import OptimiserConfig, require, require_choices, require_held_out
from quintet.shared.tokenizer_config import (
    TokenizerLossConfig,
    TokenizerRecipe,
    require_divisible,
)

Word = Literal[
    "residual",
    "consecutive_residual",
    "compress_space",
    "compress_time",
    "attend_space",
    "linear_attend_space",
    "attend_time",
    "gateloop_time",
]

LAYERS: tuple[Word | tuple[Word, int], ...] = (
    "residual",
    "compress_space",
    ("consecutive_residual", 2),
    "compress_space",
    ("consecutive_residual", 2),
    "linear_attend_space",
    "compress_space",
    ("consecutive_residual", 2),
    "attend_space",
    "compress_time",
    ("consecutive_residual", 2),
    "compress_time",
    ("consecutive_residual", 2),
    "attend_time",
)
"""Eight pixels to an id along each side, and four frames."""


class Layer(NamedTuple):
    """One layer of the encoder; the decoder has its mirror, from `dim_out` to `dim`."""

    word: Word
    dim: int
    dim_out: int


@dataclass(frozen=True, kw_only=True)
class VideoTokenizerConfig:
    """The tokenizer: an encoder, a quantiser and a decoder, none of which sees the future."""

    channels: int = 3
    """Colour channels of the clips."""
    init_dim: int = 64
    """Width before the first layer."""
    max_dim: int = 512
    """Widths double at each compress_space and compress_time up to this."""
    patch: int = 1
    """Fold patch x patch pixels into channels before the first layer (1: no folding)."""
    layers: tuple[Word | tuple[Word, int], ...] = LAYERS
    """The encoder, word by word; the decoder mirrors it. A number after consecutive_residual
    repeats it, after compress_space or compress_time it is the width from there on."""
    time_window: int = 16
    """attend_time: latent frames that each one sees, itself included."""
    excite: bool = True
    """Residual blocks weigh their channels by the mean of the frame (squeeze and excite)."""
    quantiser: Literal["fsq", "lfq", "vq"] = "fsq"
    """How latents become ids: finite scalar, look-up free, or a learned codebook."""
    levels: tuple[int, ...] = (8, 8, 8, 5)
    """fsq: steps per latent dimension; the codebook's size is their product."""
    spread_weight: float = 0.05
    """fsq: weight of the term that holds latent dimensions apart, so that codes are in use."""
    codebook_bits: int = 12
    """lfq and vq: the codebook holds 2 ** codebook_bits codes."""
    entropy_weight: float = 0.2
    """lfq: weight of the entropy term that keeps codes in use."""
    commitment_weight: float = 0.25
    """lfq and vq: weight that keeps the encoder near its codes."""

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.patch >= 1, "patch", self.patch, "1 or more")
        require(self.time_window >= 1, "time_window", self.time_window, "1 or more")
        for name in ("init_dim", "max_dim"):
            dim = getattr(self, name)
            require(dim >= 4 and dim % 4 == 0, name, dim, "4 or more, in multiples of 4")
        if self.quantiser == "fsq":
            good = bool(self.levels) and min(self.levels) >= 2
            require(good, "levels", self.levels, "2 or more each")
        else:
            bits = self.codebook_bits
            require(1 <= bits <= 30, "codebook_bits", bits, "between 1 and 30")
        self._check_layers()

    def _check_layers(self) -> None:
        for word, number in self.words:
            known = get_args(Word)
            require(word in known, "layers", word, f"one of {', '.join(map(repr, known))}")
            counted = word.startswith(("consecutive", "compress"))
            require(number is None or counted, "layers", (word, number), f"{word!r} alone")
            require(
                number is None or number >= 1, "layers", (word, number), "a number of 1 or more"
            )
        for word, dim, dim_out in self.plan:
            moved = {"compress_space": 4 * dim, "compress_time": 2 * dim}.get(word, dim)
            require(
                dim_out % 4 == 0 and (moved % dim_out == 0 or dim_out % moved == 0),
                "layers",
                (word, dim_out),
                f"after a width of {dim}, a width that divides {moved} or is a multiple of it;"
                " set it there, or choose init_dim and max_dim a power of two apart",
            )

    @property
    def words(self) -> tuple[tuple[Word, int | None], ...]:
        return tuple((w, None) if isinstance(w, str) else (w[0], w[1]) for w in self.layers)

    @property
    def plan(self) -> tuple[Layer, ...]:
        """One entry for each layer of the encoder, repetitions written out."""
        layers: list[Layer] = []
        dim = self.init_dim
        for word, number in self.words:
            if word.startswith("compress"):
                layers.append(Layer(word, dim, number or min(2 * dim, self.max_dim)))
                dim = layers[-1].dim_out
            else:
                single: Word = "residual" if word == "consecutive_residual" else word
                layers += [Layer(single, dim, dim)] * (number or 1)
        return tuple(layers)

    @property
    def dim(self) -> int:
        """Width of the latents."""
        return self.plan[-1].dim_out if self.layers else self.init_dim

    @property
    def factor(self) -> int:
        """Pixels along each side of the patch that one id stands for."""
        return self.patch * 2 ** self._count("compress_space")

    @property
    def time_factor(self) -> int:
        """Frames that one id stands for; the first frame has ids of its own."""
        return 2 ** self._count("compress_time")

    def _count(self, sought: Word) -> int:
        return sum(word == sought for word, _ in self.words)


@dataclass(frozen=True, kw_only=True)
class FrameDiscriminatorConfig:
    """The critic that judges patches of single frames."""

    channels: int = 3
    """Colour channels of the clips."""
    dim: int = 64
    """Width of its first layer."""
    layers: int = 3
    """Stride-2 layers; more of them judge larger patches."""

    def __post_init__(self) -> None:
        require(self.layers >= 1, "layers", self.layers, "1 or more")


@dataclass(frozen=True, kw_only=True)
class TemporalDiscriminatorConfig:
    """The critic that judges motion, in patches of several frames."""

    channels: int = 3
    """Colour channels of the clips."""
    dim: int = 32
    """Width of its first layer."""
    layers: int = 3
    """Layers that halve space; all but the first also halve time."""

    def __post_init__(self) -> None:
        require(self.layers >= 1, "layers", self.layers, "1 or more")


@dataclass(frozen=True, kw_only=True)
class VideoDataConfig:
    """Which clips and images, and what is done to them."""

    frames: int = 17
    """Frames of every clip; an image is shown for all of them."""
    size: tuple[int, int] = (128, 128)
    """Height and width that frames are resized and cropped to."""
    rate: float | None = None
    """Frames per second; None keeps each file's own. A file with fewer repeats frames."""
    min_rate_factor: float = 0.5
    """Training clips may skip frames down to this share of the rate; 1 skips none."""
    flip: bool = True
    """Mirror half of the training clips."""
    min_crop: float = 0.8
    """Training crops cover at least this share of the shorter side; 1 takes the largest crop."""
    valid_fraction: float = 0.05
    """Share of a folder held out for validation, chosen by the seed."""
    valid_limit: int = 128
    """At most so many held-out clips are measured at each evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training clips when no folder is given."""
    max_pixels: int = 36_000_000
    """Files with more pixels a frame than this are skipped before they are decoded."""
    max_bytes: int = 4_000_000_000
    """Files with more bytes than this are skipped before they are opened."""
    max_seconds: float = 14_400.0
    """Videos longer than this are skipped before they are decoded."""
    max_frames: int = 1_000_000
    """Videos with more frames than this are skipped before they are decoded."""

    def __post_init__(self) -> None:
        require(self.frames >= 1, "frames", self.frames, "1 or more")
        require(min(self.size) >= 1, "size", self.size, "a height and a width of at least 1")
        require(self.rate is None or self.rate > 0, "rate", self.rate, "above 0, or None")
        factor = self.min_rate_factor
        require(0 < factor <= 1, "min_rate_factor", factor, "above 0 and at most 1")
        require(0 < self.min_crop <= 1, "min_crop", self.min_crop, "above 0 and at most 1")
        require_held_out(self)


@dataclass(frozen=True, kw_only=True)
class VideoLossConfig(TokenizerLossConfig):
    """What the tokenizer is trained for, clips as a whole and frames by themselves."""

    l2: float = 20.0
    """Weight of the mean squared error; at errors of 0.05 it pulls twice as hard as l1 does."""
    perceptual_frames: int = 2
    """The perceptual distance compares so many frames of each clip, chosen anew at every step."""
    motion: bool = True
    """Whether a second critic judges motion, beside the one that judges frames."""

    def __post_init__(self) -> None:
        super().__post_init__()
        frames = self.perceptual_frames
        require(frames >= 1, "perceptual_frames", frames, "1 or more; perceptual 0 does without")


@dataclass(frozen=True, kw_only=True)
class VideoRecipe(TokenizerRecipe):
    """Everything that a run of the video tokenizer is made of."""

    model: VideoTokenizerConfig = field(default_factory=VideoTokenizerConfig)
    """The tokenizer."""
    frame_critic: FrameDiscriminatorConfig = field(default_factory=FrameDiscriminatorConfig)
    """The critic of frames."""
    motion_critic: TemporalDiscriminatorConfig = field(default_factory=TemporalDiscriminatorConfig)
    """The critic of motion."""
    videos: VideoDataConfig = field(default_factory=VideoDataConfig)
    """The clips."""
    losses: VideoLossConfig = field(default_factory=VideoLossConfig)
    """The losses."""
    tokenizer: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How the tokenizer learns."""
    critics: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(average=0.0))
    """How the critics learn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_divisible(self.videos.size, self.model.factor, "videos.size")
        step, frames = self.model.time_factor, self.videos.frames
        require(
            (frames - 1) // step * step == frames - 1,
            "videos.frames",
            frames,
            f"one frame and a multiple of the tokenizer's time factor {step}, such as"
            f" {(frames - 1) // step * step + 1}",
        )
