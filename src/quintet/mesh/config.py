"""Settings that the families of meshes share. Imports no torch: help must be instant."""

from dataclasses import dataclass
from typing import Literal

from quintet.engine.config import require, require_at_least
from quintet.shared.config import DataConfig


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
