"""Training task of the mesh autoencoder, with a single update.

meshes ─ collate ─> vertices, faces, neighbours ─ autoencoder ─> logistics ─ NLL of the true bins
"""

from collections.abc import Mapping
from math import log2
from typing import Any

import torch
from torch import Tensor

from quintet.engine.health import below
from quintet.engine.keys import fold
from quintet.engine.task import (
    Batch,
    Exhibit,
    Loss,
    Measured,
    Part,
    Rows,
    StepContext,
    Tally,
    Task,
    Update,
    World,
    each,
)
from quintet.mesh import data
from quintet.mesh.autoencoder.config import MeshAutoencoderRecipe
from quintet.mesh.autoencoder.model import MeshAutoencoder, Reconstruction
from quintet.mesh.exhibits import MeshSheet, mesh_of_corners
from quintet.mesh.geometry import undiscretise
from quintet.mesh.measures import chamfer
from quintet.nn.packing import Packing
from quintet.nn.quantisers.codebook import expected_usage
from quintet.nn.quantisers.config import COLLAPSED

POOR = "poor reconstruction; check that vertices are in -1..1"


class AutoencoderTask(Task):
    main = "autoencoder"
    best = ("within_one", "max")
    capturable = True

    def __init__(
        self, recipe: MeshAutoencoderRecipe, model: MeshAutoencoder | None = None, sets: Any = None
    ):
        self.recipe, self.sets, self.fixed_shapes = recipe, sets, False
        torch.manual_seed(fold(recipe.seed, "weights"))
        model = model if model is not None else MeshAutoencoder(recipe.model)
        self.config = model.config
        corners, reach = self.config.corners, self.config.reach
        self._collate = data.Collate(recipe.meshes.max_faces, corners, reach=reach)
        self.parts = {"autoencoder": Part(model, recipe.optim)}
        self.updates = [Update("autoencoder", each(self.loss))]
        begun = recipe.optim.warmup_steps
        self.monitors = [below("val/within_one", 0.1, POOR, 2, after=begun)]
        if collapsed := COLLAPSED.get(self.config.quantiser):
            self.monitors += [below("val/codebook_coverage", 0.05, collapsed, 2, after=begun)]

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        recipe = self.recipe
        return data.open_data(recipe.data, recipe.meshes, split, recipe.seed)  # type: ignore[arg-type]

    def prepare(self, world: World) -> None:
        self.fixed_shapes = world.device.type != "cpu" or world.compiles

    def collate(self, items: list[Any]) -> Any:
        return self._collate(items)

    def plan(self, source: Any) -> None:
        """Batches of batch_size meshes, of any number of faces: it is known only once a mesh was
        read and augmented. Some meshes tell how many rows a batch needs."""
        if self.fixed_shapes:
            lengths = data.some_lengths(source, self.recipe.seed)
            limit = self.recipe.meshes.max_faces
            self._collate.unit = data.capacity(lengths or [limit], self.recipe.batch_size)

    def loss(self, nets: Mapping[str, Any], batch: Batch, context: StepContext) -> Loss:
        output = reconstruct(nets["autoencoder"], batch)
        metrics = {
            "loss": output.loss,
            "coordinate": output.coordinate_loss.mean(),
            "quantiser": output.quantiser_loss,
            "exact": within(output, 0).sum() / num_coordinates(output),
        }
        return output.loss, metrics

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        output = self._padded(nets, batch)
        coordinates = num_coordinates(output)
        faces = output.mask.sum()
        exact_faces = within(output, 0).flatten(2).all(-1) & output.mask
        return {
            "loss": Rows(output.coordinate_loss),
            "exact": Tally(within(output, 0).sum(), coordinates),
            "within_one": Tally(within(output, 1).sum(), coordinates),
            "triangles": Tally(exact_faces.sum(), faces),
            "chamfer_bins": Rows(self._chamfer(output)),
            "bits_per_face": Tally(faces * self.config.bits_per_face, faces),
            "distinct_bits_per_face": Tally(self._distinct_bits(output), faces),
            "codes": Rows(output.codes.flatten(1)),
            "positions": Rows(self._positions(output)),
        }

    def _padded(self, nets: Mapping[str, Any], batch: Batch) -> Reconstruction:
        """Reconstruction with tensors (b, max_faces, ...), -1 in padding."""
        output, limit = reconstruct(nets["autoencoder"], batch), self.recipe.meshes.max_faces
        packing = Packing.of(batch.data["lengths"][:, 0], output.mask.shape[1], limit)
        names = ("bins", "target", "codes")
        padded = {name: packing.pad(getattr(output, name)[0] + 1) - 1 for name in names}
        return output._replace(mask=packing.pad(output.mask[0]), **padded)

    def _distinct_bits(self, output: Reconstruction) -> Tensor:
        """Bits of the codes, counting the corners of a vertex once. Each pointer is different."""
        depth, size = self.config.depth, self.config.codebook_size
        codes = output.codes.unflatten(-1, (-1, depth)).flatten(1, 2)
        if self.config.quantiser == "pointer":
            count = (codes[..., 0] >= 0).sum()
        else:
            powers = size ** torch.arange(depth, device=codes.device)
            keys = torch.where(codes[..., 0] >= 0, (codes * powers).sum(-1), -1).sort(1).values
            changed = torch.ones_like(keys, dtype=torch.bool)
            changed[:, 1:] = keys[:, 1:] != keys[:, :-1]
            count = (changed & (keys >= 0)).sum()
        return count * (depth * log2(size))

    def _positions(self, output: Reconstruction) -> Tensor:
        """(b, f k): one integer for each position of a corner; -1 in padding."""
        x, y, z = output.target.flatten(1, 2).unbind(-1)
        return torch.where(x >= 0, (x * self.config.bins + y) * self.config.bins + z, -1)

    def _chamfer(self, output: Reconstruction) -> Tensor:
        """Chamfer distance in bins between the original and the reconstructed corners."""
        real = output.mask[..., None].expand(output.bins.shape[:-1]).flatten(1)
        reconstructed, true = output.bins.flatten(1, 2).float(), output.target.flatten(1, 2).float()
        return chamfer(reconstructed, true, real, real)

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        depth, size = self.config.depth, self.config.codebook_size
        codes = rows["codes"].reshape(-1, depth)
        codes = codes[codes[:, 0] >= 0]
        used = [codes[:, level].unique().numel() / size for level in range(depth)]
        vertices = len(codes.unique(dim=0))
        positions = rows["positions"].unique()
        expected = expected_usage(int((positions >= 0).sum()), size)
        return {
            "loss": rows["loss"].double().mean().item(),
            "chamfer_bins": rows["chamfer_bins"].double().mean().item(),
            **{f"codebook_usage_{level}": share for level, share in enumerate(used)},
            "codebook_usage": sum(used) / depth,
            "codebook_coverage": sum(used) / depth / expected,
            "vertices_per_code": vertices / size,
        }

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        output = self._padded(nets, batch)
        sides = [
            undiscretise(x.clamp_min(0), self.config.bins) for x in (output.target, output.bins)
        ]
        texts = list(batch.data["text"][:6])
        pairs = [
            [mesh_of_corners(side[index], output.mask[index]) for side in sides]
            for index in range(len(texts))
        ]
        return [MeshSheet("reconstructions", pairs, ["original", "reconstruction"], texts)]


def reconstruct(autoencoder: Any, batch: Batch) -> Reconstruction:
    """The output for packed meshes; its tensors are (1, f, ...)."""
    names = ("neighbours", "lengths", "ranks")
    tables = {name: batch.data[name] for name in names if name in batch.data}
    return autoencoder(batch.data["vertices"], batch.data["faces"], **tables)


def within(output: Reconstruction, bins: int) -> Tensor:
    """(b, f, k, 3): coordinates reconstructed within this many bins; false in padding."""
    near = (output.bins - output.target).abs() <= bins
    return near & output.mask[..., None, None]


def num_coordinates(output: Reconstruction) -> Tensor:
    """Number of coordinates, without padding."""
    return output.mask.sum() * output.target.shape[2] * 3


build = AutoencoderTask
