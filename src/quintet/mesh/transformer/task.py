"""Training task of the mesh transformer, with a single update.

meshes ─ frozen autoencoder ─> cached codes ─ transformer ─> cross-entropy of each code
validation captions ─ transformer ─> codes ─ autoencoder ─> generated meshes ─ metrics
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from quintet.engine.data.plans import LengthPlan
from quintet.engine.health import below
from quintet.engine.keys import fold, uniform
from quintet.engine.runs.frozen import digest
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
from quintet.media.meshes.polygons import closedness
from quintet.mesh import agreement as judge
from quintet.mesh import data
from quintet.mesh.autoencoder.model import MeshAutoencoder
from quintet.mesh.exhibits import Arrays, MeshSheet, mesh_of_corners
from quintet.mesh.measures import nearest, surface_points
from quintet.mesh.transformer.config import MeshTransformerRecipe
from quintet.mesh.transformer.data import CodeData, num_rows, pack
from quintet.mesh.transformer.model import MeshTransformer
from quintet.nn.text import PAD, TOKENIZERS, tokenizer_of
from quintet.shared.captions import TextTable, survey
from quintet.shared.code_cache import Collate
from quintet.shared.encoded import open_encoded

FEWEST_JUDGED = 5
"""Generated meshes below which a small share of valid ones may be chance."""
WINDOW = 64
"""Batches that are made even with one another."""


class TransformerTask(Task):
    main = "transformer"
    best = ("loss", "min")
    capturable = True

    def __init__(
        self, recipe: MeshTransformerRecipe, model: MeshTransformer | None = None, sets: Any = None
    ):
        assert recipe.autoencoder is not None, "resolved by the engine"
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.autoencoder = MeshAutoencoder.from_pretrained(recipe.autoencoder)
        self.weights = digest(Path(recipe.autoencoder))
        if model is None:
            config = replace(recipe.model, max_faces=recipe.meshes.max_faces)
            model = MeshTransformer(config, autoencoder=self.autoencoder)
        model.set_autoencoder(self.autoencoder)  # the copy in the run folder
        self.model, self.config = model, model.config
        self.parts = {
            "transformer": Part(model, recipe.optim),
            "autoencoder": Part(self.autoencoder, compiles=False),
        }
        self.updates = [Update("transformer", self.losses)]
        self.monitors = [
            below("val/valid", 0.2, "invalid meshes; train longer, or lower the temperature", 3)
        ]
        self.codes: dict[str, CodeData | None] = {}
        self.fixed_shapes = False
        self.unit = 1
        """Batches have a multiple of this number of rows."""
        self.texts: TextTable | None = None
        self.reference_points: Tensor | None = None

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """Compute or load the codes of all meshes, and frozen text embeddings of their captions."""
        recipe, collate = self.recipe, collate_of(self.recipe, self.autoencoder)
        sources = {split: self._meshes(split) for split in ("train", "valid")}
        if self.config.text != "none":
            survey([s for s in sources.values() if s is not None], self.model.text_sizes, world)
        for split, source in sources.items():
            self.codes[split] = None
            if source is not None and len(source):
                variants = recipe.variants if split == "train" else 1
                codes = CodeData(source, variants, self.weights)
                codes.reads_texts = self.config.text != "none"
                codes.fill(self.autoencoder, collate, world, recipe.workers)
                self.codes[split] = codes
        valid = self.codes["valid"]
        if min(recipe.generation.count, len(valid) if valid else 0) < FEWEST_JUDGED:
            self.monitors = []
        if self.config.text == "frozen":
            sets = [codes for codes in self.codes.values() if codes is not None]
            captions = sorted(
                {c.text(i) for c in sets for i in range(len(c)) if len(c.codes_of(i))}
            )
            self.texts = TextTable(self.config, captions, world)
        self.device = world.device
        self.fixed_shapes = world.device.type != "cpu" or world.compiles

    def _meshes(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        where = self.recipe.data, self.recipe.meshes, split, self.recipe.seed
        return open_encoded(*where) or data.open_data(*where)  # type: ignore[arg-type]

    @classmethod
    def to_encode(
        cls, recipe: MeshTransformerRecipe, tokenizer: MeshAutoencoder, weights: str
    ) -> tuple[CodeData, Collate]:
        """All meshes of a folder, of both splits, whose codes are not computed yet."""
        if tokenizer.label() != "mesh/autoencoder":
            raise TypeError(f"the model is {tokenizer.label()}; it takes a mesh/autoencoder")
        folder = data.MeshFolder.whole(recipe.data, recipe.meshes)
        return CodeData(folder, recipe.variants, weights), collate_of(recipe, tokenizer)

    def data(self, split: str) -> Any:
        """Codes, or the meshes themselves before `prepare`."""
        return self.codes[split] if self.codes else self._meshes(split)

    def collate(self, items: list[Any]) -> dict[str, Any]:
        texts = [item["text"] for item in items]
        packed = pack([item["codes"] for item in items], self.config.max_faces, self.unit)
        return {**packed, "caption": texts, **self._encode_captions(texts)}

    def plan(self, source: CodeData) -> LengthPlan:
        """Batches of nearly equal numbers of faces, so that one shape fits them closely."""
        lengths = [num_rows(count, self.config.max_faces) for count in source.lengths()]
        batch_size, seed = self.recipe.batch_size, self.recipe.seed
        if self.fixed_shapes:
            self.unit = data.capacity(lengths, batch_size, WINDOW)
        return LengthPlan(lengths, seed, batch_size=batch_size, window=WINDOW, even=True)

    def _encode_captions(self, texts: Sequence[str]) -> dict[str, Tensor]:
        if self.config.text in TOKENIZERS:
            ids = tokenizer_of(self.config).encode(texts)
            longest = ids.shape[1] if self.fixed_shapes else int((ids != PAD).sum(1).max())
            return {"text": ids[:, :longest]}
        if self.texts is not None:
            return self.texts(texts)
        return {}

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Cross-entropy averaged over all codes of the step, across micro-batches and processes."""
        counts = ((batch.data["codes"] >= 0).sum().float() for batch in batches)
        total = context.sum(sum(counts, torch.zeros((), device=self.device)))
        for batch in batches:
            drop = uniform(batch.keys, "text", ()) < self.recipe.text_drop
            losses = self._call(nets["transformer"], batch, drop)
            loss = losses.loss_sum.sum() / total
            tokens, share = losses.tokens.sum(), len(batch.ids) / context.samples
            metrics = {
                # Reports weight metrics by the share of samples; undo this for a loss per code.
                "loss": loss.detach() / share,
                "accuracy": losses.correct.sum() / tokens,
                "end": losses.end_loss.sum() / losses.decisions.sum(),
            }
            yield loss, metrics

    def _call(self, transformer: Any, batch: Batch, drop: Tensor) -> Any:
        codes, text, mask = (batch.data.get(name) for name in ("codes", "text", "mask"))
        return transformer(codes.long(), text, mask, drop, batch.data["lengths"])

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        # Both calls have the same signature, so that only one graph is compiled.
        drop = torch.ones(len(batch.ids), dtype=torch.bool, device=self.device)
        losses = self._call(nets["transformer"], batch, ~drop)
        without_text = self._call(nets["transformer"], batch, drop)
        tokens = losses.tokens.sum()
        metrics: dict[str, Tally | Rows] = {
            "loss": Tally(losses.loss_sum.sum(), tokens),
            "loss_without_text": Tally(without_text.loss_sum.sum(), tokens),
            "accuracy": Tally(losses.correct.sum(), tokens),
            "end_accuracy": Tally(losses.end_correct.sum(), losses.decisions.sum()),
        }
        count = self.recipe.generation.count
        rows = [row for row, index in enumerate(batch.ids) if index < count]
        if not rows:
            return metrics
        with torch.autocast(self.device.type, enabled=False):
            return metrics | self._evaluate_generation(batch, rows)

    def _evaluate_generation(self, batch: Batch, rows: list[int]) -> dict[str, Rows]:
        """Metrics of meshes generated from validation captions, one row each."""
        captions = [batch.data["caption"][row] for row in rows]
        codes, meshes = self.generate(captions, seed=batch.ids[rows[0]])
        num_faces = (codes[..., 0] >= 0).sum(1).tolist()
        true_codes = codes_of(batch)
        originals = self.decode([true_codes[row] for row in rows])
        reference_points = self._references()
        values = {
            # Ended before max_faces, without degenerate or duplicate faces.
            "valid": [
                length < self.config.max_faces and length == len(mesh[1]) and judge.valid(*mesh)
                for length, mesh in zip(num_faces, meshes)
            ],
            "faces_generated": num_faces,
            "closed": [closedness(mesh[1]) for mesh in meshes],
            "nearest_generated": nearest(self._points(meshes), reference_points).tolist(),
            "nearest_validation": nearest(self._points(originals), reference_points).tolist(),
        }
        if self.recipe.data is None:
            values["agrees"] = [judge.agrees(t, *mesh) for t, mesh in zip(captions, meshes)]
        return {name: Rows(torch.tensor(v, dtype=torch.float32)) for name, v in values.items()}

    def generate(self, captions: Sequence[str], seed: int = 0) -> tuple[Tensor, list[Arrays]]:
        """Generate codes and meshes for captions with the settings of the recipe's `generation`."""
        settings, model = self.recipe.generation, self.model
        context = None
        if self.config.text != "none":
            inputs = self._encode_captions(captions)
            inputs = {name: value.to(self.device) for name, value in inputs.items()}
            context = model.encode_inputs(**inputs)
        codes = model.generate_codes(
            context,
            len(captions),
            temperature=settings.temperature,
            top_k=settings.top_k,
            cond_scale=settings.cond_scale if context is not None else 1.0,
            seed=seed,
        )
        return codes, [(m.vertices.numpy(), m.faces.numpy()) for m in model.decode_meshes(codes)]

    def decode(self, rows: Sequence[Tensor]) -> list[Arrays]:
        """Decode codes (f, t) by the autoencoder, in batches."""
        meshes: list[Arrays] = []
        for begin in range(0, len(rows), 64):
            codes = pad_sequence(list(rows[begin : begin + 64]), True, -1).long().to(self.device)
            coordinates, mask = self.autoencoder.decode_codes(codes)
            meshes += [mesh_of_corners(*pair) for pair in zip(coordinates, mask)]
        return meshes

    def _points(self, meshes: Sequence[Arrays]) -> Tensor:
        return torch.from_numpy(np.stack([surface_points(*m) for m in meshes])).to(self.device)

    def _references(self) -> Tensor:
        """Surface points of the training meshes that generated ones are compared with."""
        if self.reference_points is None:
            train = self.codes["train"]
            assert train is not None
            rows = filter(len, map(train.codes_of, range(len(train))))
            references = islice(rows, self.recipe.generation.reference_count)
            self.reference_points = self._points(self.decode(list(references)))
        return self.reference_points

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        captions = list(batch.data["caption"][:6])
        with torch.autocast(self.device.type, enabled=False):
            originals = self.decode(codes_of(batch)[: len(captions)])
            samples = self.generate(captions * 3)[1]  # at once, as steps take most of the time
        rows = [[mesh, *samples[i :: len(captions)]] for i, mesh in enumerate(originals)]
        titles = ["validation", "generated 1", "generated 2", "generated 3"]
        return [MeshSheet("generated", rows, titles, captions)]


def collate_of(recipe: MeshTransformerRecipe, autoencoder: MeshAutoencoder) -> data.Collate:
    config = autoencoder.config
    return data.Collate(recipe.meshes.max_faces, config.corners, reach=config.reach)


def codes_of(batch: Batch) -> Sequence[Tensor]:
    """Codes (f, t) of each mesh, and a row of -1 for its end."""
    lengths = batch.data["lengths"].tolist()
    return batch.data["codes"][: sum(lengths)].split(lengths)


build = TransformerTask
to_encode = TransformerTask.to_encode
