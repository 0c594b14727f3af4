"""Settings of video/tokenizer. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from quintet.engine.config import require, require_at_least, require_choices
from quintet.nn.quantisers.config import QuantiserConfig
from quintet.shared.tokenizer.config import (
    DiscriminatorConfig,
    TokenizerLossConfig,
    TokenizerRecipe,
    require_channels,
    require_divisible,
    require_quantiser,
)
from quintet.video.config import VideoDataConfig

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
        require_at_least(1, self, "patch_size", "time_window")
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
