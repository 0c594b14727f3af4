"""The transformer's task: the codes of meshes and their captions, one update.

meshes ─ frozen autoencoder, once ─> codes, kept ─ transformer ─> likelihood of each code
held-out captions ─ transformer writes ─> codes ─ autoencoder ─> meshes ─ judged
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

from quintet.engine.frozen import digest
from quintet.engine.health import below
from quintet.engine.keys import fold, uniform
from quintet.engine.task import At, Batch, Exhibit, Loss, Measured, Part, Rows, Tally, Task, Update
from quintet.engine.world import World
from quintet.mesh import data, judge
from quintet.mesh.autoencoder import MeshAutoencoder
from quintet.mesh.codes import CodeData
from quintet.mesh.config import MeshTransformerRecipe
from quintet.mesh.exhibits import Arrays, MeshSheet, mesh_of_corners
from quintet.mesh.measures import nearest, surface_points
from quintet.mesh.transformer import MeshTransformer
from quintet.mesh.writer import Sampling
from quintet.nn.text import ByteTokenizer
from quintet.shared.captions import TextTable


class TransformerTask(Task):
    main = "transformer"
    best = ("loss", "min")

    def __init__(
        self, recipe: MeshTransformerRecipe, model: MeshTransformer | None = None, sets: Any = None
    ):
        assert recipe.autoencoder is not None, "the engine has settled the stages"
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.autoencoder = MeshAutoencoder.from_pretrained(recipe.autoencoder)
        self.weights = digest(Path(recipe.autoencoder))
        if model is None:
            wanted = replace(recipe.model, max_faces=recipe.meshes.max_faces)
            model = MeshTransformer(wanted, autoencoder=self.autoencoder)
        model.hold(self.autoencoder)  # the run's own, whichever was handed over
        self.model, self.config = model, model.config
        self.parts = {
            "transformer": Part(model, recipe.transformer),
            "autoencoder": Part(self.autoencoder, compiles=False),
        }
        self.updates = [Update("transformer", self.losses)]
        self.monitors = [
            below("val/valid", 0.2, "written meshes are broken; train longer, or tamer writing", 3)
        ]
        self.codes: dict[str, CodeData | None] = {}
        self.texts: TextTable | None = None
        self.known: Tensor | None = None

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """Codes of all meshes, and what a frozen text encoder makes of their captions."""
        recipe, corners = self.recipe, self.config.corners
        collate = data.Collate(recipe.meshes.max_faces, corners)
        for split in ("train", "valid"):
            source = self._meshes(split)
            self.codes[split] = None
            if source is not None and len(source):
                variants = recipe.variants if split == "train" else 1
                found = CodeData(source, variants, self.weights)
                found.fill(self.autoencoder, collate, world, recipe.workers)
                self.codes[split] = found
        if self.config.text == "frozen":
            sets = [codes for codes in self.codes.values() if codes is not None]
            captions = sorted(
                {c.text(i) for c in sets for i in range(len(c)) if len(c.codes_of(i))}
            )
            self.texts = TextTable(self.config, captions, world)
        self.device = world.device

    def _meshes(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        recipe = self.recipe
        return data.open_data(recipe.data, recipe.meshes, split, recipe.seed)  # type: ignore[arg-type]

    def data(self, split: str) -> Any:
        return self.codes[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        shape = (len(items), self.config.max_faces, self.config.tokens)
        codes = torch.full(shape, -1, dtype=torch.int32)
        for row, item in zip(codes, items):
            row[: len(item["codes"])] = item["codes"]
        texts = [item["text"] for item in items]
        return {"codes": codes, "caption": texts, **self._read(texts)}

    def _read(self, texts: Sequence[str]) -> dict[str, Tensor]:
        if self.config.text == "bytes":
            return {"text": ByteTokenizer(self.config.text_length).encode(texts)}
        if self.texts is not None:
            return self.texts(texts)
        return {}

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], at: At) -> Iterator[Loss]:
        """Each code of the step weighs the same, whichever micro-batch or process it is in."""
        mine = sum((codes_in(batch) for batch in batches), torch.zeros((), device=self.device))
        everywhere = at.sum(mine)
        for batch in batches:
            drop = uniform(batch.keys, "text", ()) < self.recipe.text_drop
            written = self._call(nets["transformer"], batch, drop)
            loss = written.loss_sum.sum() / everywhere
            tokens, share = written.tokens.sum(), len(batch.ids) / at.samples
            metrics = {
                # Reports add metrics up weighed by share of the step, as a loss per code is not.
                "loss": loss.detach() / share,
                "accuracy": written.correct.sum() / tokens,
                "end": written.end_loss.sum() / written.decisions.sum(),
            }
            yield loss, metrics

    def _call(self, transformer: Any, batch: Batch, drop: Tensor) -> Any:
        found = batch.data
        return transformer(found["codes"].long(), found.get("text"), found.get("mask"), drop)

    # -- measuring and showing ------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        # Both calls have the same arguments, so that compiling knows only one.
        told = torch.zeros(len(batch.ids), dtype=torch.bool, device=self.device)
        written = self._call(nets["transformer"], batch, told)
        alone = self._call(nets["transformer"], batch, ~told)
        tokens = written.tokens.sum()
        found: dict[str, Tally | Rows] = {
            "loss": Tally(written.loss_sum.sum(), tokens),
            "loss_without_text": Tally(alone.loss_sum.sum(), tokens),
            "accuracy": Tally(written.correct.sum(), tokens),
            "end_accuracy": Tally(written.end_correct.sum(), written.decisions.sum()),
        }
        asked = [i for i, index in enumerate(batch.ids) if index < self.recipe.writing.count]
        with torch.autocast(self.device.type, enabled=False):
            return found | self._judged(batch, asked) if asked else found

    def _judged(self, batch: Batch, rows: list[int]) -> dict[str, Rows]:
        """What meshes written for held-out captions are worth, one row for each."""
        captions = [batch.data["caption"][row] for row in rows]
        codes, meshes = self.write(captions, seed=batch.ids[rows[0]])
        lengths = (codes[..., 0] >= 0).sum(1).tolist()
        real = self.decode([batch.data["codes"][row] for row in rows])
        known = self._known()
        shares = {
            # It ended by itself, and nothing had to be mended: no face without area, none twice.
            "valid": [
                length < self.config.max_faces and length == len(mesh[1]) and judge.valid(*mesh)
                for length, mesh in zip(lengths, meshes)
            ],
            "faces_written": lengths,
            "closed": [judge.closedness(mesh[1]) for mesh in meshes],
            "nearest_written": nearest(self._points(meshes), known).tolist(),
            "nearest_held_out": nearest(self._points(real), known).tolist(),
        }
        if self.recipe.data is None:
            shares["agrees"] = [judge.agrees(t, *mesh) for t, mesh in zip(captions, meshes)]
        return {name: Rows(torch.tensor(v, dtype=torch.float32)) for name, v in shares.items()}

    def write(self, captions: Sequence[str], seed: int = 0) -> tuple[Tensor, list[Arrays]]:
        """Codes and meshes for captions, as the recipe's `writing` says; the same every time."""
        settings, model = self.recipe.writing, self.model
        context = None
        if self.config.text != "none":
            read = {name: value.to(self.device) for name, value in self._read(captions).items()}
            context = model.look(len(captions), read["text"], read.get("mask"))
        codes = model.write(
            context,
            len(captions),
            sampling=Sampling(
                temperature=settings.temperature,
                top_k=settings.top_k,
                cond_scale=settings.cond_scale if context is not None else 1.0,
                seed=seed,
            ),
        )
        return codes, [(m.vertices.numpy(), m.faces.numpy()) for m in model.meshes(codes)]

    def decode(self, rows: Sequence[Tensor]) -> list[Arrays]:
        """What the autoencoder makes of codes (f, t), a batch at a time."""
        meshes: list[Arrays] = []
        for begin in range(0, len(rows), 64):
            codes = pad_sequence(list(rows[begin : begin + 64]), True, -1).long().to(self.device)
            places, mask = self.autoencoder.decode_codes(codes)
            meshes += [mesh_of_corners(*pair) for pair in zip(places, mask)]
        return meshes

    def _points(self, meshes: Sequence[Arrays]) -> Tensor:
        return torch.from_numpy(np.stack([surface_points(*m) for m in meshes])).to(self.device)

    def _known(self) -> Tensor:
        """Points of the training meshes that written ones are compared with."""
        if self.known is None:
            train = self.codes["train"]
            assert train is not None
            rows = (train.codes_of(index) for index in range(len(train)))
            sound = islice((row for row in rows if len(row)), self.recipe.writing.compared)
            self.known = self._points(self.decode(list(sound)))
        return self.known

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        captions = list(batch.data["caption"][:6])
        with torch.autocast(self.device.type, enabled=False):
            real = self.decode(list(batch.data["codes"][: len(captions)]))
            tries = [self.write(captions, seed)[1] for seed in (0, 1, 2)]
        rows = [[mesh, *(written[i] for written in tries)] for i, mesh in enumerate(real)]
        titles = ["held out", "written 1", "written 2", "written 3"]
        return [MeshSheet("written", rows, titles, captions)]


def codes_in(batch: Batch) -> Tensor:
    return (batch.data["codes"] >= 0).sum().float()
