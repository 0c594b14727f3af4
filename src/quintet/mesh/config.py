"""Configurations of the mesh models. Plain values and no torch import, so that help is instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log2, prod
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Self

from quintet.engine.config import OptimizerConfig, Recipe, require, setting
from quintet.nn.quantisers.config import CodebookConfig
from quintet.shared.config import CaptionConfig, DataConfig, require_at_least


@dataclass(frozen=True, kw_only=True)
class MeshDataConfig(DataConfig):
    """Selection, preparation and augmentation of meshes."""

    max_faces: int = 800
    """Maximum faces per mesh (see too_large)."""
    too_large: Literal["skip", "simplify"] = "skip"
    """Handling of meshes with more than max_faces faces."""
    scale: float = 0.1
    """Augmentation: random scaling of each axis by up to this fraction; 0 disables it."""
    shift: float = 0.03
    """Augmentation: maximum random shift along each axis; below 0.05, the free margin."""
    rotation: float = 0.0
    """Augmentation: maximum rotation about the vertical axis in degrees; 180 is any angle."""
    upright: bool = True
    """Convert y-up formats (obj, glb, gltf) to z-up."""
    max_file_faces: int = 1_000_000
    """Files with more faces are skipped, even with too_large = simplify."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(8, self, "max_faces")
        require_at_least(1, self, "max_file_faces")
        require(0 <= self.scale < 1, "scale", self.scale, "at least 0 and below 1")
        require(0 <= self.shift < 0.05, "shift", self.shift, "at least 0 and below 0.05")
        require(0 <= self.rotation <= 180, "rotation", self.rotation, "between 0 and 180 degrees")


class PointerGroup(NamedTuple):
    """Ranks that are followed by equally many bits."""

    low: int
    high: int
    """Exclusive."""
    bits: int
    """Per axis."""
    offset: int
    """First code."""

    @property
    def size(self) -> int:
        """Codes."""
        return (self.high - self.low) * 8**self.bits


@dataclass(frozen=True, kw_only=True)
class MeshAutoencoderConfig(CodebookConfig):
    """Mesh tokenizer: graph encoder, vertex quantiser and decoder."""

    corners: Literal[3, 4] = 3
    """Corners per face: 3 for triangles, 4 for quads."""
    bins: int = 128
    """Number of bins of a coordinate between -1 and 1."""
    dim: int = 512
    """Feature width of a face."""
    message_dim: int = 128
    """Width of the messages between faces."""
    encoder_layers: int = 4
    """Number of message-passing layers over neighbouring faces."""
    decoder_layers: int = 4
    """Number of decoder layers over the face sequence."""
    window: int = 2
    """Decoder receptive field: faces before and after each face, per layer."""
    quantiser: Literal["fsq", "lfq", "vq", "pointer"] = "fsq"  # type: ignore[assignment]
    """Vertex quantiser: fsq of the position, lfq (lookup-free), vq (learned codebook), or pointer:
    one code per corner, of a new vertex or of one that was used before."""
    depth: int = 2
    """Residual quantisation levels, i.e. codes per vertex; 1 for pointer."""
    levels: tuple[int, int, int] = (24, 24, 24)
    """fsq: quantisation levels of x, y and z; their product is the codebook size."""
    max_offset: float = 0.5
    """fsq: largest offset the encoder may add to a vertex, in units of the finest level."""
    codebook_bits: int = 14
    """lfq and vq: each level has 2 ** codebook_bits codes."""
    latent_dim: int = 48
    """lfq and vq: width of the quantised vertex latents."""
    entropy_weight: float = 0.1
    """lfq: weight of the entropy loss, which keeps codes in use."""
    commitment_weight: float = 0.1
    """lfq and vq: weight of the commitment loss."""
    cell_bits: int = 3
    """pointer: bits per axis of the first corner of a vertex."""
    pointers: tuple[int, ...] = (8, 64, 128)
    """pointer: how many of the vertices used last can be named with 2, 1 and 0 bits per axis."""

    def __post_init__(self) -> None:
        require(self.bins >= 2, "bins", self.bins, "2 or more")
        require_at_least(1, self, "dim", "message_dim", "latent_dim", "depth")
        require_at_least(0, self, "encoder_layers", "decoder_layers", "window", "max_offset")
        per_axis = len(self.levels) == 3 and min(self.levels) >= 2
        require(per_axis, "levels", self.levels, "three numbers of at least 2, for x, y and z")
        bits = self.codebook_bits
        require(1 <= bits <= 30, "codebook_bits", bits, "between 1 and 30")
        size, depth = self.codebook_size, self.depth
        require(size**depth < 2**62, "depth", depth, "fewer levels, or fewer codes in each")
        if self.quantiser == "pointer":
            self._check_pointers()

    def _check_pointers(self) -> None:
        require(self.depth == 1, "depth", self.depth, "1 with quantiser pointer")
        whole = self.bins.bit_count() == 1
        require(whole, "bins", self.bins, "a power of two with quantiser pointer")
        most = self.bins.bit_length() - 1
        inside = 1 <= self.cell_bits <= most
        require(inside, "cell_bits", self.cell_bits, f"between 1 and {most}, the bits of a bin")
        ascending = all(low < high for low, high in pairwise((0, *self.pointers)))
        require(bool(self.pointers) and ascending, "pointers", self.pointers, "ascending numbers")

    @property
    def codebook_size(self) -> int:
        """Codes per residual level."""
        if self.quantiser == "pointer":
            return 8**self.cell_bits + sum(group.size for group in self.pointer_groups)
        return prod(self.levels) if self.quantiser == "fsq" else 2**self.codebook_bits

    @property
    def pointer_groups(self) -> list[PointerGroup]:
        """The ranks that `pointers` groups, and where their codes begin: after all cells."""
        groups: list[PointerGroup] = []
        offset, last = 8**self.cell_bits, len(self.pointers) - 1
        for index, (low, high) in enumerate(pairwise((0, *self.pointers))):
            groups.append(PointerGroup(low, high, last - index, offset))
            offset += groups[-1].size
        return groups

    @property
    def reach(self) -> int:
        """How many of the vertices used last can be named; 0 if codes are no pointers."""
        return self.pointers[-1] if self.quantiser == "pointer" else 0

    @property
    def bits_per_face(self) -> float:
        """Size of the codes of a face, at a fixed length: what the transformer has to model."""
        return self.corners * self.depth * log2(self.codebook_size)


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
    """Whether codes point at vertices, so that equal codes in a face may be of different ones."""
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
class MeshAutoencoderRecipe(Recipe):
    """Complete configuration of an autoencoder run."""

    matmul_share: ClassVar[float | None] = 0.45
    """Of the matmul rate, reached by a step of `mesh/autoencoder_large`."""
    model: MeshAutoencoderConfig = field(default_factory=MeshAutoencoderConfig)
    """Autoencoder."""
    meshes: MeshDataConfig = field(default_factory=MeshDataConfig)
    """Data."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer."""


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
        require(self.count >= 0, "count", self.count, "0 or more")
        require(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "1 or more")
        count = self.reference_count
        require(count >= 1, "reference_count", count, "1 or more")


@dataclass(frozen=True, kw_only=True)
class MeshTransformerRecipe(Recipe):
    """Complete configuration of a transformer run."""

    matmul_share: ClassVar[float | None] = 0.53
    """Of the matmul rate, reached by a step of `mesh/transformer_large`."""
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
        require(self.variants >= 1, "variants", self.variants, "1 or more")
        share = self.text_drop
        require(0 <= share <= 1, "text_drop", share, "between 0 and 1")
