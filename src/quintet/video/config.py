"""Settings of the video room. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, get_args

from quintet.engine.config import require, require_choices
from quintet.nn.quantisers.config import QuantiserConfig
from quintet.shared.maskgit.config import MaskedConfig, MaskedRecipe
from quintet.shared.tokenizer.config import (
    DiscriminatorConfig,
    PixelDataConfig,
    TokenizerLossConfig,
    TokenizerRecipe,
    require_channels,
    require_divisible,
    require_quantiser,
)

LayerType = Literal[
    "residual",
    "consecutive_residual",
    "compress_space",
    "compress_time",
    "attend_space",
    "linear_attend_space",
    "attend_time",
    "gateloop_time",
]

LAYERS: tuple[LayerType | tuple[LayerType, int], ...] = (
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
"""One id covers 8 x 8 pixels and 4 frames."""


class Layer(NamedTuple):
    """One encoder layer; the decoder mirrors it, from `dim_out` to `dim`."""

    type: LayerType
    dim: int
    dim_out: int


@dataclass(frozen=True, kw_only=True)
class VideoTokenizerConfig(QuantiserConfig):
    """The tokenizer: a causal encoder, a quantiser and a causal decoder."""

    channels: int = 3
    """Colour channels of the clips."""
    init_dim: int = 64
    """Width before the first layer."""
    max_dim: int = 512
    """Widths double at each compress_space and compress_time, up to this width."""
    patch_size: int = 1
    """Side of the patches of pixels that become channels before the first layer (1: none)."""
    layers: tuple[LayerType | tuple[LayerType, int], ...] = LAYERS
    """Encoder layers; the decoder mirrors them. A number after consecutive_residual is its
    repetitions, after compress_space or compress_time the output width."""
    time_window: int = 16
    """attend_time: attention window in latent frames, the current one included."""
    squeeze_excite: bool = True
    """Squeeze-and-excitation in residual blocks."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_quantiser(self)
        require(self.patch_size >= 1, "patch_size", self.patch_size, "1 or more")
        require(self.time_window >= 1, "time_window", self.time_window, "1 or more")
        for name in ("init_dim", "max_dim"):
            dim = getattr(self, name)
            require(dim >= 4 and dim % 4 == 0, name, dim, "4 or more, in multiples of 4")
        self._check_layers()

    def _check_layers(self) -> None:
        for kind, number in self.layer_specs:
            known = get_args(LayerType)
            require(kind in known, "layers", kind, f"one of {', '.join(map(repr, known))}")
            takes_number = kind.startswith(("consecutive", "compress"))
            require(number is None or takes_number, "layers", (kind, number), f"{kind!r} alone")
            require(
                number is None or number >= 1, "layers", (kind, number), "a number of 1 or more"
            )
        for kind, dim, dim_out in self.plan:
            folded = {"compress_space": 4 * dim, "compress_time": 2 * dim}.get(kind, dim)
            require(
                dim_out % 4 == 0 and (folded % dim_out == 0 or dim_out % folded == 0),
                "layers",
                (kind, dim_out),
                f"after a width of {dim}, a width that divides {folded} or is a multiple of it;"
                " set it there, or choose init_dim and max_dim a power of two apart",
            )

    @property
    def layer_specs(self) -> tuple[tuple[LayerType, int | None], ...]:
        """Each entry of `layers` as a type and an optional number."""
        return tuple((s, None) if isinstance(s, str) else (s[0], s[1]) for s in self.layers)

    @property
    def plan(self) -> tuple[Layer, ...]:
        """The encoder layers, with repetitions expanded."""
        layers: list[Layer] = []
        dim = self.init_dim
        for kind, number in self.layer_specs:
            if kind.startswith("compress"):
                layers.append(Layer(kind, dim, number or min(2 * dim, self.max_dim)))
                dim = layers[-1].dim_out
            else:
                single: LayerType = "residual" if kind == "consecutive_residual" else kind
                layers += [Layer(single, dim, dim)] * (number or 1)
        return tuple(layers)

    @property
    def dim(self) -> int:
        """Width of the latents."""
        return self.plan[-1].dim_out if self.layers else self.init_dim

    @property
    def factor(self) -> int:
        """Spatial downsampling: one id covers factor x factor pixels."""
        return self.patch_size * 2 ** self._count("compress_space")

    @property
    def time_factor(self) -> int:
        """Temporal downsampling: frames per latent frame; the first frame has its own."""
        return 2 ** self._count("compress_time")

    def _count(self, kind: LayerType) -> int:
        return sum(layer == kind for layer, _ in self.layer_specs)


@dataclass(frozen=True, kw_only=True)
class MotionDiscriminatorConfig(DiscriminatorConfig):
    """The 3-D patch discriminator of motion."""

    dim: int = 32
    """Width of its first layer."""
    layers: int = 3
    """Layers of spatial stride 2; all but the first have a temporal stride of 2."""


@dataclass(frozen=True, kw_only=True)
class VideoDataConfig(PixelDataConfig):
    """Clips, images and augmentation."""

    frames: int = 17
    """Frames per clip; an image is repeated."""
    fps: float | None = None
    """Frames per second; None keeps the rate of each file. Files with fewer repeat frames."""
    min_rate_factor: float = 0.5
    """Training clips may skip frames, down to this fraction of the rate; 1 skips none."""
    pan: float = 0.0
    """The crop of a training image glides and zooms by up to this share of its range, so that the
    image becomes a clip of a moving camera; 0 keeps it static."""
    builtin: Literal["scenes", "figures", "figure"] = "scenes"
    """Built-in clips: scenes of many moving shapes; or one plain figure, of one size or a large one
    that crosses the picture, whose caption says all (it is never flipped)."""
    valid_limit: int = 128
    """Maximum number of validation clips per evaluation."""
    max_pixels: int = 36_000_000
    """Files with more pixels per frame are skipped before they are decoded."""
    max_bytes: int = 4_000_000_000
    """Larger files are skipped before they are opened."""
    max_seconds: float = 14_400.0
    """Longer videos are skipped before they are decoded."""
    max_frames: int = 1_000_000
    """Videos with more frames are skipped before they are decoded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self)
        require(self.frames >= 1, "frames", self.frames, "1 or more")
        require(self.fps is None or self.fps > 0, "fps", self.fps, "above 0, or None")
        factor = self.min_rate_factor
        require(0 < factor <= 1, "min_rate_factor", factor, "above 0 and at most 1")
        require(0 <= self.pan <= 1, "pan", self.pan, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class VideoLossConfig(TokenizerLossConfig):
    """Losses of the video tokenizer."""

    l2: float = 20.0
    """Weight of the mean squared error; at errors of 0.05 its gradient is twice that of l1."""
    temporal: float = 1.0
    """Weight of the mean absolute error of the frame differences: motion, and textures that stand
    still."""
    perceptual_frames: int = 2
    """Frames per clip for the perceptual distance, drawn at every step."""
    motion: bool = True
    """Use a motion discriminator beside the frame discriminator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        frames = self.perceptual_frames
        require(frames >= 1, "perceptual_frames", frames, "1 or more; or set perceptual 0")


@dataclass(frozen=True, kw_only=True)
class VideoRecipe(TokenizerRecipe):
    """All settings of a video tokenizer run."""

    matmul_share: ClassVar[float | None] = 0.43
    """Of the matmul rate, reached by a step of `video/tokenizer_large`."""
    model: VideoTokenizerConfig = field(default_factory=VideoTokenizerConfig)
    """The tokenizer."""
    frame_discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """The frame discriminator."""
    motion_discriminator: MotionDiscriminatorConfig = field(
        default_factory=MotionDiscriminatorConfig
    )
    """The motion discriminator."""
    videos: VideoDataConfig = field(default_factory=VideoDataConfig)
    """The data."""
    losses: VideoLossConfig = field(default_factory=VideoLossConfig)
    """The losses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_channels(self.videos.channels, self.model.channels, "videos.channels")
        require_divisible(self.videos.size, self.model.factor, "videos.size")
        step, frames = self.model.time_factor, self.videos.frames
        require(
            (frames - 1) % step == 0,
            "videos.frames",
            frames,
            f"one frame and a multiple of the tokenizer's time factor {step}, such as"
            f" {(frames - 1) // step * step + 1}",
        )


@dataclass(frozen=True, kw_only=True)
class VideoMaskGitConfig(MaskedConfig):
    """Generator of clips: a masked transformer over the ids of a video tokenizer."""

    grid: tuple[int, ...] = (5, 16, 16)
    """Ids along each axis: latent frames, height and width; set by the size of the clips."""


@dataclass(frozen=True, kw_only=True)
class VideoMaskGitRecipe(MaskedRecipe):
    """All settings of a video generator run."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"tokenizer": "video/tokenizer"})
    """The tokenizer is frozen and copied into the run folder."""
    model: VideoMaskGitConfig = field(default_factory=VideoMaskGitConfig)
    """The transformer; grid and digits are those of the tokenizer."""
    videos: VideoDataConfig = field(default_factory=lambda: VideoDataConfig(builtin="figures"))
    """The data."""
    prefix_share: float = 0.3
    """Fraction of training clips whose first latent frames are given, for continuations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.prefix_share
        require(0 <= share <= 1, "prefix_share", share, "between 0 and 1")
