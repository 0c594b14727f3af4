"""Settings of simulated scans. Imports no torch: help must be instant."""

from dataclasses import dataclass

from quintet.engine.config import require, require_finite


@dataclass(frozen=True, kw_only=True)
class ScanConfig:
    """What the points of a clean mesh go through to look like those of a scan or a dense mesh.

    With `remesh`, `holes` and `noise` 0, all are clean samples of the surface.
    """

    clean: float = 0.15
    """Share of meshes whose samples are clean."""
    remesh: float = 0.4
    """Share of the others that are remeshed from voxels, and perhaps smoothed."""
    min_resolution: int = 20
    """Smallest number of voxels on the longest side; drawn log-uniformly."""
    max_resolution: int = 64
    """Largest number of voxels on the longest side."""
    noise: float = 0.02
    """Largest standard deviation of the noise, relative to the longest side; small is likelier."""
    normal_noise: float = 0.4
    """Largest standard deviation of the noise of each component of the normals."""
    holes: float = 0.1
    """Largest share of the points that is removed around a few of them."""
    uneven: float = 0.4
    """Share of meshes that are not clean whose density varies over the surface."""

    def __post_init__(self) -> None:
        require_finite(self)
        for name in ("clean", "remesh", "uneven"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        low, high = self.min_resolution, self.max_resolution
        require(8 <= low <= high, "min_resolution", low, "8 up to max_resolution")
        require(high <= 256, "max_resolution", high, "at most 256")
        require(0 <= self.noise <= 0.2, "noise", self.noise, "between 0 and 0.2")
        require(0 <= self.normal_noise <= 2, "normal_noise", self.normal_noise, "between 0 and 2")
        require(0 <= self.holes <= 0.5, "holes", self.holes, "between 0 and 0.5")
