"""Settings of mesh/transformer. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from quintet.engine.config import OptimizerConfig, Recipe, require, require_at_least, setting
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.config import MeshDataConfig
from quintet.shared.config import CaptionConfig


@dataclass(frozen=True, kw_only=True)
class MeshTransformerConfig(CaptionConfig):
    """Mesh generator: a coarse decoder over faces and a fine decoder over the codes of a face."""

    corners: Literal[3, 4] = 3
    """Corners per face, as in the autoencoder."""
    depth: int = 2
    """Codes per corner: the autoencoder's residual levels."""
    codebook_size: int = 13_824
    """The autoencoder's codes per residual level."""
    levels: tuple[int, ...] = ()
    """Base of each digit of a code (fsq: 24, 24, 24), least significant first. Codes with equal
    digits share embeddings. Empty: codes are not factorised."""
    pointers: bool = False
    """Whether codes point at vertices: equal codes in a face may mean different vertices."""
    head: Literal["digits", "codes"] = "digits"
    """Output head: autoregressive over digits (needs levels), or one softmax over all codes."""
    max_faces: int = 800
    """Maximum faces per mesh; generation stops there."""
    dim: int = 512
    """Model width."""
    layers: int = 12
    """Layers of the coarse decoder over faces."""
    heads: int = 16
    """Attention heads of the coarse decoder."""
    head_dim: int = 64
    """Channels per head."""
    fine_layers: int = 2
    """Layers of the fine decoder over the codes of one face."""
    fine_heads: int = 8
    """Attention heads of the fine decoder."""
    fine_head_dim: int = 32
    """Channels per head of the fine decoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.codebook_size
        factored = not self.levels or prod(self.levels) == size
        require(factored, "levels", self.levels, f"factors of codebook_size = {size}")
        require_at_least(1, self, "depth", "codebook_size", "max_faces", "dim", "layers", "heads")
        require_at_least(1, self, "fine_layers", "fine_heads")
        for name in ("dim", "head_dim", "fine_head_dim"):
            value = getattr(self, name)
            require(value >= 2 and value // 2 * 2 == value, name, value, "even (rotary embedding)")

    @property
    def tokens_per_face(self) -> int:
        return self.corners * self.depth

    def with_codebook_of(self, autoencoder: MeshAutoencoderConfig) -> Self:
        """Copy with the corners, depth, codebook size and levels of an autoencoder."""
        return replace(
            self,
            corners=autoencoder.corners,
            depth=autoencoder.depth,
            codebook_size=autoencoder.codebook_size,
            levels=tuple(autoencoder.levels) if autoencoder.quantiser == "fsq" else (),
            pointers=autoencoder.quantiser == "pointer",
        )


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Generation of meshes during evaluation."""

    count: int = 32
    """Meshes generated from validation captions per evaluation; 0 disables generation."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most likely codes only."""
    cond_scale: float = 1.0
    """Classifier-free guidance scale; 1 disables guidance and halves the cost."""
    reference_count: int = 2048
    """Training meshes searched for the nearest neighbour of a generated mesh."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "count", "temperature")
        require_at_least(1, self, "reference_count")
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "1 or more")


@dataclass(frozen=True, kw_only=True)
class MeshTransformerRecipe(Recipe):
    """Complete configuration of a transformer run."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"autoencoder": "mesh/autoencoder"})
    """The autoencoder is frozen and copied into the run folder."""
    autoencoder: str | None = setting(path=True)
    """Run or exported folder of the trained autoencoder."""
    model: MeshTransformerConfig = field(default_factory=MeshTransformerConfig)
    """Transformer; codebook and corners are those of the autoencoder."""
    meshes: MeshDataConfig = field(default_factory=MeshDataConfig)
    """Data."""
    variants: int = 1
    """Number of fixed augmentations per mesh, including the original; their codes are cached."""
    text_drop: float = 0.1
    """Fraction of captions dropped in training, for classifier-free guidance."""
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    """Generation during evaluation."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "variants")
        require(0 <= self.text_drop <= 1, "text_drop", self.text_drop, "between 0 and 1")
