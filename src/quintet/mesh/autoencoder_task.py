"""The autoencoder's task: meshes to codes and back, one update.

meshes ─ collate ─> vertices, faces, neighbours ─ autoencoder ─> bins ─ likelihood of the true ones
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quintet.engine.health import below
from quintet.engine.keys import fold
from quintet.engine.task import (
    At,
    Batch,
    Exhibit,
    Loss,
    Measured,
    Part,
    Rows,
    Tally,
    Task,
    Update,
    each,
)
from quintet.mesh import data
from quintet.mesh.autoencoder import MeshAutoencoder, Reconstruction
from quintet.mesh.config import MeshAutoencoderRecipe
from quintet.mesh.exhibits import MeshSheet, mesh_of_corners
from quintet.mesh.geometry import undiscretise
from quintet.mesh.measures import chamfer


class AutoencoderTask(Task):
    main = "autoencoder"
    best = ("within_one", "max")

    def __init__(
        self, recipe: MeshAutoencoderRecipe, model: MeshAutoencoder | None = None, sets: Any = None
    ):
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        model = model if model is not None else MeshAutoencoder(recipe.model)
        self.config = model.config
        self._collate = data.Collate(recipe.meshes.max_faces, self.config.corners)
        self.parts = {"autoencoder": Part(model, recipe.autoencoder)}
        self.updates = [Update("autoencoder", each(self.loss))]
        self.monitors = [
            below("val/codebook_use", 0.01, "the codes have collapsed; try fsq", 2),
            below("val/within_one", 0.1, "vertices are lost; are the meshes in -1..1?", 2),
        ]

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        recipe = self.recipe
        return data.open_data(recipe.data, recipe.meshes, split, recipe.seed)  # type: ignore[arg-type]

    def collate(self, items: list[Any]) -> Any:
        return self._collate(items)

    def check(self, data: Any) -> None:
        check_meshes(data)

    def loss(self, nets: Mapping[str, Any], batch: Batch, at: At) -> Loss:
        made = reconstruct(nets["autoencoder"], batch)
        hits = agreement(made, 0)
        metrics = {
            "loss": made.loss,
            "coordinate": made.coordinate_loss.mean(),
            "quantiser": made.quantiser_loss,
            "exact": hits.sum() / count(made),
        }
        return made.loss, metrics

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        made = reconstruct(nets["autoencoder"], batch)
        coordinates = count(made)
        faces = made.mask.sum()
        whole = agreement(made, 0).flatten(2).all(-1) & made.mask
        return {
            "loss": Rows(made.coordinate_loss),
            "exact": Tally(agreement(made, 0).sum(), coordinates),
            "within_one": Tally(agreement(made, 1).sum(), coordinates),
            "triangles": Tally(whole.sum(), faces),
            "chamfer_bins": Rows(self._chamfer(made)),
            "codes": Rows(made.codes.flatten(1)),
        }

    def _chamfer(self, made: Reconstruction) -> Tensor:
        """In widths of a bin, between the corners as they were and as they come back."""
        real = made.mask[..., None].expand(made.bins.shape[:-1]).flatten(1)
        found, true = made.bins.flatten(1, 2).float(), made.target.flatten(1, 2).float()
        return chamfer(found, true, real, real)

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        depth, size = self.config.depth, self.config.codebook_size
        codes = rows["codes"].reshape(-1, depth)
        codes = codes[codes[:, 0] >= 0]
        used = [codes[:, level].unique().numel() / size for level in range(depth)]
        vertices = len(codes.unique(dim=0))
        return {
            "loss": rows["loss"].double().mean().item(),
            "chamfer_bins": rows["chamfer_bins"].double().mean().item(),
            **{f"codebook_use_{level}": share for level, share in enumerate(used)},
            "codebook_use": sum(used) / depth,
            "vertices_per_code": vertices / size,
        }

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        made = reconstruct(nets["autoencoder"], batch)
        pairs = []
        for index in range(min(6, len(made.mask))):
            sides = (made.target[index], made.bins[index])
            pairs.append([mesh_of_corners(self._places(side), made.mask[index]) for side in sides])
        texts = list(batch.data["text"][:6])
        return [MeshSheet("reconstructions", pairs, ["original", "reconstruction"], texts)]

    def _places(self, bins: Tensor) -> Tensor:
        return undiscretise(bins.clamp_min(0), self.config.bins)  # type: ignore[return-value]


def reconstruct(autoencoder: Any, batch: Batch) -> Reconstruction:
    meshes = batch.data
    return autoencoder(meshes["vertices"], meshes["faces"], neighbours=meshes["neighbours"])


def agreement(made: Reconstruction, bins: int) -> Tensor:
    """(b, f, k, 3): which coordinates come back within so many bins; false in padding."""
    near = (made.bins - made.target).abs() <= bins
    return near & made.mask[..., None, None]


def count(made: Reconstruction) -> Tensor:
    """How many coordinates there are."""
    return made.mask.sum() * made.target.shape[2] * 3


def check_meshes(meshes: Mapping[str, Any]) -> None:
    """Raise ValueError where the model would learn nonsense from these."""
    vertices, faces = meshes["vertices"], meshes["faces"]
    reach = vertices.abs().max().item()
    if not reach <= 1 + 1e-3:  # NaN is not
        raise ValueError(
            f"vertices reach {reach:.3g}, but the model takes -1 to 1: "
            "centre each mesh and divide it by half its longest side"
        )
    if not bool((faces[..., 0] >= 0).any(1).all()):
        raise ValueError("a mesh has no faces: give faces (f, 3) of vertex numbers")
