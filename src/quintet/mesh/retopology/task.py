"""Training task of retopology, with a single update.

clean meshes ─ scans ─> points ─ encoder ─┐
             └ codes ─ transformer <──────┴─> cross-entropy of each coordinate
validation points ─> generated meshes ─ distances to the clean mesh
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.health import below
from quintet.engine.keys import fold, uniform
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
)
from quintet.mesh import data
from quintet.mesh.agreement import valid
from quintet.mesh.exhibits import Arrays, MeshSheet
from quintet.mesh.retopology.codes import mesh_of
from quintet.mesh.retopology.config import RetopologyRecipe
from quintet.mesh.retopology.data import Scans, collate, open_scans
from quintet.mesh.retopology.measures import compare, exact_faces
from quintet.mesh.retopology.model import Retopology, limits
from quintet.mesh.transformer.data import num_rows

COMPARED = 1024
"""Points of a surface that are compared."""
FEWEST_JUDGED = 5
"""Generated meshes below which a small share of valid ones may be chance."""


class RetopologyTask(Task):
    main = "retopology"
    best = ("loss", "min")
    capturable = True

    def __init__(
        self, recipe: RetopologyRecipe, model: Retopology | None = None, sets: Any = None
    ) -> None:
        self.recipe, self.sets, self.fixed_shapes, self.unit = recipe, sets, False, 1
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.model = model if model is not None else Retopology(recipe.model)
        self.config = self.model.config
        self.parts = {"retopology": Part(self.model, recipe.optim)}
        self.updates = [Update("retopology", self.losses)]
        judged = recipe.generation.count >= FEWEST_JUDGED
        reason = "invalid meshes; train longer, or lower the temperature"
        self.monitors = [below("val/valid", 0.2, reason, 3)] if judged else []

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        self.device = world.device
        self.fixed_shapes = world.device.type != "cpu" or world.compiles

    def data(self, split: str) -> Any:
        if self.sets is None:
            return open_scans(self.recipe, split)
        own = self.sets[split]
        return None if own is None else Scans(own, self.recipe)

    def collate(self, items: list[Any]) -> dict[str, Any]:
        return collate(items, self.config.max_faces, self.unit)

    def plan(self, source: Scans) -> None:
        """Batches of batch_size meshes, of any number of faces, as of the mesh autoencoder."""
        if self.fixed_shapes:
            most = self.config.max_faces
            known = data.some_lengths(source.source, self.recipe.seed) or [most]
            lengths = [num_rows(count, most) for count in known]
            self.unit = data.capacity(lengths, self.recipe.batch_size)

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Cross-entropy averaged over all codes of the step, across micro-batches and processes."""
        counts = ((batch.data["codes"] >= 0).sum().float() for batch in batches)
        total = context.sum(sum(counts, torch.zeros((), device=self.device)))
        for batch in batches:
            told = uniform(batch.keys, "faces", ()) >= self.recipe.count_drop
            losses = self._call(nets["retopology"], batch, batch.data["faces"] * told)
            share = len(batch.ids) / context.samples
            loss = losses.loss_sum.sum() / total
            metrics = {
                # Reports weight metrics by the share of samples; undo this for a loss per code.
                "loss": loss.detach() / share,
                "accuracy": losses.correct.sum() / losses.tokens.sum(),
                "end": losses.end_loss.sum() / losses.decisions.sum(),
            }
            yield loss, metrics

    def _call(self, network: Any, batch: Batch, faces: Tensor, points: Tensor | None = None) -> Any:
        codes, lengths, own, first = (
            batch.data[name] for name in ("codes", "lengths", "points", "first")
        )
        return network(codes.long(), lengths, own if points is None else points, faces, first)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        network, faces = nets["retopology"], batch.data["faces"]
        losses = self._call(network, batch, faces)
        # Each mesh with the points of another: what is known without looking.
        others = self._call(network, batch, faces, batch.data["points"].roll(1, 0))
        tokens = losses.tokens.sum()
        metrics: dict[str, Tally | Rows] = {
            "loss": Tally(losses.loss_sum.sum(), tokens),
            "accuracy": Tally(losses.correct.sum(), tokens),
            "end_accuracy": Tally(losses.end_correct.sum(), losses.decisions.sum()),
        }
        if len(batch.ids) > 1:
            metrics["loss_other_points"] = Tally(others.loss_sum.sum(), tokens)
        count, lengths = self.recipe.generation.count, batch.data["lengths"].tolist()
        # A mesh in windows has no whole to compare with.
        whole = (batch.data["faces"] < self.config.max_faces).tolist()
        rows = [row for row, index in enumerate(batch.ids) if index < count and whole[row]]
        if not rows:
            return metrics
        meshes = batch.data["codes"][: sum(lengths)].split(lengths)  # padding may follow
        originals = [meshes[row] for row in rows]
        with torch.autocast(self.device.type, enabled=False):
            generated = self.generate(batch, rows)
        return metrics | self._compare(generated, [codes[codes[:, 0] >= 0] for codes in originals])

    def generate(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        points, faces = (batch.data[name][list(rows)] for name in ("points", "faces"))
        temperature = self.recipe.generation.temperature
        seed = fold(self.recipe.seed, batch.ids[rows[0]])
        return self.model.generate_codes(points, faces, seed=seed, temperature=temperature)

    def _compare(self, codes: Tensor, originals: Sequence[Tensor]) -> dict[str, Rows]:
        """Each mesh against the original; distances in percent of its longest side."""
        values: dict[str, list[float]] = {}
        for rows, true in zip(codes.cpu(), originals):
            mesh, original = self._mesh(rows), self._mesh(true.cpu())
            count, wished = int((rows[:, 0] >= 0).sum()), len(true)
            ended = count < int(limits(torch.tensor(wished), self.config.max_faces))
            distances = compare(mesh, original, COMPARED)
            measured = {
                "valid": float(ended and count == len(mesh[1]) and valid(*mesh)),
                "exact": float(exact_faces(mesh, original, self.config.bins)[1]),
                "face_error": abs(count / wished - 1),
                "boundary": distances["boundary"],
                "chamfer": 100 * distances["chamfer"],
                "hausdorff": 100 * distances["hausdorff"],
                "normals": distances["normal_consistency"],
            }
            for name, value in measured.items():
                values.setdefault(name, []).append(value)
        return {name: Rows(torch.tensor(column)) for name, column in values.items()}

    def _mesh(self, codes: Tensor) -> Arrays:
        mesh = mesh_of(codes.long(), self.config.bins)
        return mesh.vertices.numpy(), mesh.faces.numpy()

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        lengths = batch.data["lengths"].tolist()
        rows = range(min(6, len(batch.ids)))
        with torch.autocast(self.device.type, enabled=False):
            codes = self.generate(batch, rows)
        meshes = batch.data["codes"][: sum(lengths)].split(lengths)
        originals = [self._mesh(meshes[row].cpu()) for row in rows]
        made = [self._mesh(each) for each in codes.cpu()]
        titles = ["validation", "generated"]
        texts = [batch.data["text"][row] for row in rows]
        return [MeshSheet("retopology", [*map(list, zip(originals, made))], titles, texts)]


build = RetopologyTask
