"""Settings of mesh/autoencoder. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import log2, prod
from typing import Literal, NamedTuple

from quintet.engine.config import OptimizerConfig, Recipe, require, require_at_least
from quintet.mesh.config import MeshDataConfig
from quintet.nn.quantisers.config import CodebookConfig


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
    one code per corner, of a new vertex or an earlier one."""
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
    """pointer: number of most recent vertices that 2, 1 and 0 bits per axis can name."""

    def __post_init__(self) -> None:
        require_at_least(2, self, "bins")
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
class MeshAutoencoderRecipe(Recipe):
    """Complete configuration of an autoencoder run."""

    model: MeshAutoencoderConfig = field(default_factory=MeshAutoencoderConfig)
    """Autoencoder."""
    meshes: MeshDataConfig = field(default_factory=MeshDataConfig)
    """Data."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer."""
