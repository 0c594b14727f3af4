"""What can be set in the mesh room. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import ClassVar, Literal

from quintet.engine.config import OptimiserConfig, Recipe, path, require, require_held_out


@dataclass(frozen=True, kw_only=True)
class MeshDataConfig:
    """Which meshes, and what is done to them."""

    max_faces: int = 800
    """Meshes with more faces are skipped, or simplified; every batch is padded to so many."""
    too_large: Literal["skip", "simplify"] = "skip"
    """What happens to a mesh with more faces than max_faces."""
    valid_fraction: float = 0.05
    """Share of a folder held out for validation, chosen by the seed."""
    valid_limit: int = 512
    """At most so many held-out meshes are measured at each evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training meshes when no folder is given."""
    scale: float = 0.1
    """Training meshes are stretched along each axis by up to this share; 0 leaves proportions."""
    shift: float = 0.03
    """They are moved by up to this much along each axis; below 0.05, the margin that is free."""
    turn: float = 0.0
    """They are turned about the vertical by up to so many degrees; 180 allows every direction."""
    upright: bool = True
    """Turn files whose format has y up (obj, glb, gltf) so that z is; off: as they are."""
    max_bytes: int = 256_000_000
    """Files with more bytes than this are skipped before they are opened."""
    max_file_faces: int = 1_000_000
    """Files with more faces than this are skipped even where meshes are simplified."""

    def __post_init__(self) -> None:
        require(self.max_faces >= 8, "max_faces", self.max_faces, "8 or more")
        require_held_out(self)
        for name in ("max_bytes", "max_file_faces"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(0 <= self.scale < 1, "scale", self.scale, "at least 0 and below 1")
        require(0 <= self.shift < 0.05, "shift", self.shift, "at least 0 and below 0.05")
        require(0 <= self.turn <= 180, "turn", self.turn, "between 0 and 180 degrees")


@dataclass(frozen=True, kw_only=True)
class MeshAutoencoderConfig:
    """The tokenizer of meshes: a graph encoder, a quantiser at the vertices and a decoder."""

    corners: Literal[3, 4] = 3
    """Corners of a face: triangles, or quads."""
    bins: int = 128
    """Steps of a coordinate between -1 and 1."""
    dim: int = 512
    """Width of a face's features."""
    message_dim: int = 128
    """Width of what faces tell each other."""
    encoder_layers: int = 4
    """Layers over neighbouring faces."""
    decoder_layers: int = 4
    """Layers over faces that follow each other."""
    window: int = 2
    """Faces before and after its own that a decoder layer sees."""
    quantiser: Literal["fsq", "lfq", "vq"] = "fsq"
    """How a vertex becomes codes: its rounded position, look-up free, or a learned codebook."""
    depth: int = 2
    """Codes of a vertex; each refines the one before."""
    levels: tuple[int, int, int] = (24, 24, 24)
    """fsq: steps of x, y and z at each level; the codebook's size is their product."""
    freedom: float = 0.5
    """fsq: how far the graph may move a vertex before it is rounded, in finest steps."""
    stay_weight: float = 4.0
    """fsq: weight that keeps vertices in their place, so that a place has one code everywhere."""
    codebook_bits: int = 14
    """lfq and vq: each level holds 2 ** codebook_bits codes."""
    latent_dim: int = 48
    """lfq and vq: numbers of a vertex that are quantised."""
    entropy_weight: float = 0.1
    """lfq: weight of the entropy term that keeps codes in use."""
    commitment_weight: float = 0.1
    """lfq and vq: weight that keeps the encoder near its codes."""

    def __post_init__(self) -> None:
        require(self.bins >= 2, "bins", self.bins, "2 or more")
        for name in ("dim", "message_dim", "latent_dim", "depth"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("encoder_layers", "decoder_layers", "window", "freedom"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        few = len(self.levels) == 3 and min(self.levels) >= 2
        require(few, "levels", self.levels, "three numbers of at least 2, for x, y and z")
        bits = self.codebook_bits
        require(1 <= bits <= 30, "codebook_bits", bits, "between 1 and 30")
        size, depth = self.codebook_size, self.depth
        require(size**depth < 2**62, "depth", depth, "fewer levels, or fewer codes in each")

    @property
    def codebook_size(self) -> int:
        """Codes of each level."""
        return prod(self.levels) if self.quantiser == "fsq" else 2**self.codebook_bits


@dataclass(frozen=True, kw_only=True)
class MeshTransformerConfig:
    """The model that writes meshes: a coarse decoder over faces, a fine one over their codes."""

    corners: Literal[3, 4] = 3
    """Corners of a face, as in the autoencoder."""
    depth: int = 2
    """Codes for each corner: the autoencoder's residual levels."""
    codes: int = 13_824
    """Size of the autoencoder's codebook at each residual level."""
    levels: tuple[int, ...] = ()
    """Steps of the digits that a code is joined of (fsq: 24, 24, 24), the fastest first; codes that
    share digits then share what is learned. Empty: every code stands alone."""
    head: Literal["digits", "codes"] = "digits"
    """How a code is written: digit by digit, where it has levels, or as one of all codes."""
    max_faces: int = 800
    """The longest mesh; one of so many faces ends by itself."""
    dim: int = 512
    """Width."""
    layers: int = 12
    """Layers of the coarse decoder, over faces."""
    heads: int = 16
    """Its attention heads."""
    head_dim: int = 64
    """Channels of each head."""
    fine_layers: int = 2
    """Layers of the fine decoder, over the codes of one face."""
    fine_heads: int = 8
    """Its attention heads."""
    fine_head_dim: int = 32
    """Channels of each of them."""
    text: Literal["bytes", "frozen", "none"] = "bytes"
    """Captions by an encoder of bytes that trains along, by a frozen one, or not at all."""
    text_length: int = 128
    """Bytes (or tokens of the frozen encoder) of a caption; the rest is cut."""
    text_layers: int = 2
    """bytes: layers of the encoder."""
    text_dim: int = 512
    """frozen: width of its embeddings."""
    text_path: str | None = path()
    """frozen: folder of the encoder on disk, to generate from texts."""
    cross_every: int = 2
    """Every n-th coarse layer, beginning with the first, looks at the caption."""
    dropout: float = 0.0
    """Share of each residual branch that is dropped in training."""
    smoothing: float = 0.0
    """Label smoothing of the code losses."""

    def __post_init__(self) -> None:
        product = prod(self.levels) if self.levels else self.codes
        require(product == self.codes, "levels", self.levels, f"factors of the {self.codes} codes")
        for name in ("depth", "codes", "max_faces", "dim", "layers", "heads", "fine_layers"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("fine_heads", "text_length", "text_dim", "cross_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.text_layers >= 0, "text_layers", self.text_layers, "0 or more")
        for name in ("dim", "head_dim", "fine_head_dim"):
            value = getattr(self, name)
            require(value >= 2 and value // 2 * 2 == value, name, value, "even, so that it turns")
        for name in ("dropout", "smoothing"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "at least 0 and below 1")

    @property
    def tokens(self) -> int:
        """Codes of one face."""
        return self.corners * self.depth


@dataclass(frozen=True, kw_only=True)
class MeshAutoencoderRecipe(Recipe):
    """Everything that a run of the autoencoder is made of."""

    model: MeshAutoencoderConfig = field(default_factory=MeshAutoencoderConfig)
    """The autoencoder."""
    meshes: MeshDataConfig = field(default_factory=MeshDataConfig)
    """The meshes."""
    autoencoder: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How it learns."""


@dataclass(frozen=True, kw_only=True)
class WritingConfig:
    """How meshes are written when the run is measured."""

    count: int = 32
    """Held-out captions that a mesh is written for at each evaluation; 0 writes none."""
    temperature: float = 1.0
    """Above 1 wilder, below 1 tamer, 0 always the likeliest code."""
    top_k: int | None = None
    """Only the k likeliest codes are drawn from."""
    cond_scale: float = 1.0
    """How far the caption is followed beyond what it asks for; 1 is plain and half the work."""
    compared: int = 2048
    """Training meshes among which the nearest to a written one is looked for."""

    def __post_init__(self) -> None:
        require(self.count >= 0, "count", self.count, "0 or more")
        require(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "1 or more")
        require(self.compared >= 1, "compared", self.compared, "1 or more")


@dataclass(frozen=True, kw_only=True)
class MeshTransformerRecipe(Recipe):
    """Everything that a run of the transformer is made of."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"autoencoder": "mesh/autoencoder"})
    """The autoencoder is copied into the run once, and frozen."""
    autoencoder: str | None = path()
    """The run (or exported folder) of the autoencoder whose codes are learned."""
    model: MeshTransformerConfig = field(default_factory=MeshTransformerConfig)
    """The transformer; what the autoencoder decides (codes, corners) is taken from it."""
    meshes: MeshDataConfig = field(default_factory=MeshDataConfig)
    """The meshes."""
    variants: int = 1
    """Fixed augmentations of each mesh, the first being none; so that codes can be kept."""
    text_drop: float = 0.1
    """Share of captions withheld in training, so that guidance has something to lead away from."""
    writing: WritingConfig = field(default_factory=WritingConfig)
    """Meshes that are written at each evaluation."""
    transformer: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How it learns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.variants >= 1, "variants", self.variants, "1 or more")
        share = self.text_drop
        require(0 <= share <= 1, "text_drop", share, "a share between 0 and 1")
