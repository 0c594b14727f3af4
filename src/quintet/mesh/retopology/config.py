"""Settings of mesh/retopology. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field

from quintet.engine.config import OptimizerConfig, Recipe, require, require_at_least
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.retopology.scan_config import ScanConfig
from quintet.mesh.transformer.config import MeshTransformerConfig

MAX_BINS = 128
"""Most bins of an axis: the kernels of generation compare each value with each."""


@dataclass(frozen=True, kw_only=True)
class RetopologyConfig:
    """An encoder of surface points, and a transformer over the faces of a mesh."""

    bins: int = 128
    """Bins of each axis: the grid that vertices lie on."""
    points: int = 4096
    """Surface points with normals that the encoder reads."""
    latents: int = 512
    """Points, out of those, that summarise the others for the transformer."""
    point_layers: int = 4
    """Layers of the encoder."""
    max_faces: int = 800
    """Faces that the transformer sees at once; longer meshes are trained and sampled in windows."""
    dim: int = 512
    """Model width."""
    layers: int = 12
    """Layers over faces."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 64
    """Channels per head."""
    fine_layers: int = 2
    """Layers over the nine coordinates of a face."""
    fine_heads: int = 8
    """Their attention heads."""
    fine_head_dim: int = 32
    """Channels per head of the fine layers."""
    dropout: float = 0.0
    """Dropout probability of the residual branches."""

    def __post_init__(self) -> None:
        require(2 <= self.bins <= MAX_BINS, "bins", self.bins, f"between 2 and {MAX_BINS}")
        require_at_least(1, self, "points", "latents", "point_layers")
        most = self.points
        require(self.latents <= most, "latents", self.latents, f"at most points = {most}")
        require_at_least(2, self, "max_faces")
        self.transformer  # noqa: B018  checks the rest

    @property
    def transformer(self) -> MeshTransformerConfig:
        """The transformer: coordinates z, y, x of each corner are its codes, and what the encoder
        makes of the points stands where embeddings of a caption do."""
        return MeshTransformerConfig(
            depth=3,
            codebook_size=self.bins,
            levels=(self.bins,),
            text="frozen",
            text_dim=self.dim,
            text_length=self.latents + 1,
            max_faces=self.max_faces,
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            head_dim=self.head_dim,
            fine_layers=self.fine_layers,
            fine_heads=self.fine_heads,
            fine_head_dim=self.fine_head_dim,
            dropout=self.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class RetopologyGeneration:
    """Generation of meshes during evaluation."""

    count: int = 32
    """Meshes generated from the points of validation meshes per evaluation; 0 disables it."""
    temperature: float = 0.5
    """Sampling temperature; 0 is greedy."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "count", "temperature")


@dataclass(frozen=True, kw_only=True)
class RetopologyRecipe(Recipe):
    """Complete configuration of a retopology run."""

    model: RetopologyConfig = field(default_factory=RetopologyConfig)
    """Network."""
    meshes: MeshDataConfig = field(default_factory=lambda: MeshDataConfig(rotation=180))
    """Data: the clean meshes."""
    scans: ScanConfig = field(default_factory=ScanConfig)
    """What is made of them for the input."""
    mirror: bool = True
    """Augmentation: half of the meshes are mirrored."""
    count_drop: float = 0.1
    """Fraction of meshes that are trained without the wished number of faces."""
    generation: RetopologyGeneration = field(default_factory=RetopologyGeneration)
    """Generation during evaluation."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.count_drop <= 1, "count_drop", self.count_drop, "between 0 and 1")
