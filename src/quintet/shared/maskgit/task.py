"""Training task of a masked generator, with a single update.

pixels ─ frozen tokenizer ─> cached ids ─ some masked ─ transformer ─> cross-entropy of those
validation captions ─ transformer ─> ids ─ tokenizer ─> generated pixels ─ metrics
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.errors import RunError
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
from quintet.nn.attention import Context
from quintet.nn.text import PAD, TOKENIZERS, tokenizer_of
from quintet.shared.captions import TextTable, survey
from quintet.shared.maskgit.config import MaskedRecipe
from quintet.shared.maskgit.data import CaptionedPixels, IdData
from quintet.shared.maskgit.decoding import Decoding, sample_keys
from quintet.shared.maskgit.generator import MaskedGenerator, check_tokenizer
from quintet.shared.maskgit.model import random_mask

DECODED = 32
"""Samples that the tokenizer decodes together."""
SHOWN, DRAWS = 6, 3
"""Captions of an exhibit, and samples generated for each."""
COMPARED = 32
"""Side of the thumbnails whose distance is measured."""


class MaskedTask(Task):
    main = "transformer"
    best = ("loss", "min")
    capturable = True
    field: ClassVar[str]
    """Name of the pixels in a sample."""
    Model: ClassVar[type[MaskedGenerator]]
    room: ClassVar[Any]
    """Module with `open_data` and `collate`."""
    settings: ClassVar[str]
    """Name of the data settings in the recipe."""
    prefix = 0.0

    def __init__(
        self, recipe: MaskedRecipe, model: MaskedGenerator | None = None, sets: Any = None
    ) -> None:
        assert recipe.tokenizer is not None, "resolved by the engine"
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        kind = self.Model.tokenizer_class()
        self.tokenizer = kind.from_pretrained(recipe.tokenizer)
        self.weights = digest(Path(recipe.tokenizer))
        try:
            check_tokenizer(self.tokenizer, kind)
            grid = self.grid()
            if model is None:
                config = replace(recipe.model, grid=grid)  # type: ignore[attr-defined]
                model = self.Model(config, tokenizer=self.tokenizer)
        except ValueError as error:
            raise RunError(str(error)) from None
        if model.config.grid != grid:
            raise RunError(f"the model has a grid of {model.config.grid} ids, the data {grid}")
        model.set_tokenizer(self.tokenizer)  # the copy in the run folder
        self.model, self.config = model, model.config
        self.parts = {
            "transformer": Part(model, recipe.optim),
            "tokenizer": Part(self.tokenizer, compiles=False),
        }
        self.updates = [Update("transformer", self.losses)]
        self.ids: dict[str, IdData | None] = {}
        self.fixed_shapes = False
        self.texts: TextTable | None = None
        self.references: tuple[Tensor, Tensor] | None = None

    # -- what a room says -----------------------------------------------------------------------

    def grid(self) -> tuple[int, ...]:
        """Ids along each axis."""
        raise NotImplementedError

    @property
    def pixel_config(self) -> Any:
        return getattr(self.recipe, self.settings)

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        """Whether a generated sample shows a caption of built-in figures."""
        raise NotImplementedError

    def sheet(self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]) -> Any:
        raise NotImplementedError

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """Compute or load the ids of all samples, and frozen text embeddings of their captions."""
        recipe = self.recipe
        sources = {split: self._pixels(split) for split in ("train", "valid")}
        if self.config.text != "none":
            survey([s for s in sources.values() if s is not None], self.model.text_sizes, world)
        for split, source in sources.items():
            self.ids[split] = None
            if source is not None and len(source):
                ids = IdData(source, recipe.variants if split == "train" else 1, self.weights)
                ids.reads_texts = self.config.text != "none"
                ids.fill(self.tokenizer, self.room.collate, world, recipe.workers)
                other = next((n for n in ids.lengths() if n not in (0, self.config.tokens)), None)
                if other is not None:
                    raise RunError(
                        f"a sample has {other} ids, but the grid {self.config.grid} has"
                        f" {self.config.tokens}: give samples of one size, and size= to the model"
                    )
                self.ids[split] = ids
        if self.config.text == "frozen":
            sets = [ids for ids in self.ids.values() if ids is not None]
            captions = sorted({s.text(i) for s in sets for i in range(len(s))})
            self.texts = TextTable(self.config, captions, world)
        self.device = world.device
        self.fixed_shapes = world.device.type != "cpu" or world.compiles

    def _pixels(self, split: str) -> CaptionedPixels | None:
        recipe, config = self.recipe, self.pixel_config
        if self.sets is None:
            source = self.room.open_data(recipe.data, config, split, recipe.seed)
        else:
            source = self.sets[split]
        return None if source is None else CaptionedPixels(source, self.field, config)

    def data(self, split: str) -> Any:
        """Ids, or the samples themselves before `prepare`."""
        return self.ids[split] if self.ids else self._pixels(split)

    def collate(self, items: list[Any]) -> dict[str, Any]:
        texts = [item["text"] for item in items]
        ids = torch.stack([item["codes"] for item in items])
        return {"ids": ids, "caption": texts, **self._encode_captions(texts)}

    def _encode_captions(self, texts: Sequence[str]) -> dict[str, Tensor]:
        if self.config.text in TOKENIZERS:
            ids = tokenizer_of(self.config).encode(texts)
            longest = ids.shape[1] if self.fixed_shapes else int((ids != PAD).sum(1).max())
            return {"text": ids[:, :longest]}
        return {} if self.texts is None else self.texts(texts)

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Cross-entropy averaged over all masked ids of the step, of all processes."""
        masks = [random_mask(b.keys, self.config.grid, self.prefix) for b in batches]
        local = sum((mask.sum() for mask in masks), torch.zeros((), device=self.device))
        total = context.sum(local)
        for batch, masked in zip(batches, masks):
            drop = uniform(batch.keys, "text", ()) < self.recipe.text_drop
            losses = self._call(nets["transformer"], batch, masked, drop)
            loss, share = losses.loss_sum.sum() / total, len(batch.ids) / context.samples
            # Reports weight metrics by the share of samples; undo this for a loss per id.
            correct = losses.correct.sum() / losses.masked.sum()
            yield loss, {"loss": loss.detach() / share, "accuracy": correct}

    def _call(self, transformer: Any, batch: Batch, masked: Tensor, drop: Tensor) -> Any:
        text, mask = (batch.data.get(name) for name in ("text", "mask"))
        return transformer(batch.data["ids"].long(), masked, text, mask, drop)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        keys = sample_keys(0, batch.ids).to(self.device)  # the same ids are masked every time
        masked = random_mask(keys, self.config.grid, self.prefix)
        drop = torch.ones(len(batch.ids), dtype=torch.bool, device=self.device)
        losses = self._call(nets["transformer"], batch, masked, ~drop)
        without_text = self._call(nets["transformer"], batch, masked, drop)
        count = losses.masked.sum()
        metrics: dict[str, Tally | Rows] = {
            "loss": Tally(losses.loss_sum.sum(), count),
            "loss_without_text": Tally(without_text.loss_sum.sum(), count),
            "accuracy": Tally(losses.correct.sum(), count),
        }
        rows = [row for row, index in enumerate(batch.ids) if index < self.recipe.generation.count]
        if not rows:
            return metrics
        with torch.autocast(self.device.type, enabled=False):
            return metrics | self._evaluate_generation(batch, rows)

    def _evaluate_generation(self, batch: Batch, rows: list[int]) -> dict[str, Rows]:
        """Metrics of samples generated from validation captions, one row each."""
        captions = [batch.data["caption"][row] for row in rows]
        generated = self.generate(captions, [batch.ids[row] for row in rows])
        originals = self.decode(batch.data["ids"][rows])
        near, expected = (self._nearest(pixels)[0] for pixels in (generated, originals))
        values = {
            "nearest_generated": near,
            "nearest_validation": expected,
            "nearer": (near < expected).float(),
        }
        if self.judged:
            agree = [float(self.agrees(*pair)) for pair in zip(captions, generated)]
            ceiling = [float(self.agrees(*pair)) for pair in zip(captions, originals)]
            values["agrees"], values["agrees_tokenizer"] = torch.tensor([agree, ceiling])
        return {name: Rows(value) for name, value in values.items()}

    @property
    def judged(self) -> bool:
        return self.recipe.data is None and self.pixel_config.builtin != "scenes"

    def generate(self, captions: Sequence[str], numbers: Sequence[int], seed: int = 0) -> Tensor:
        """Samples by the recipe's `generation`; functions of caption, number and seed."""
        settings, model = self.recipe.generation, self.model
        context = self.context(captions)
        scale = 1.0 if self.config.text == "none" else settings.cond_scale
        decoding = Decoding(
            steps=settings.sampling_steps,
            order=settings.order,
            temperature=settings.temperature,
            choice_temperature=settings.choice_temperature,
            cond_scale=scale,
        )
        blank = model.blank_ids(len(captions))
        return self.decode(model.complete(blank, sample_keys(seed, numbers), context, decoding))

    def context(self, captions: Sequence[str]) -> Context | None:
        if self.config.text == "none":
            return None
        inputs = {n: v.to(self.device) for n, v in self._encode_captions(captions).items()}
        return self.model.encode_inputs(**inputs)

    def decode(self, ids: Tensor) -> Tensor:
        """Pixels in 0..1 of ids (b, n)."""
        return self.model.decode_ids(ids.long().to(self.device)).float()

    def _nearest(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Distance and codes of the nearest training sample of each, both through the tokenizer."""
        codes, references = self._references()
        points = thumbnails(pixels)
        distances, rows = torch.cdist(points, references).min(1)
        return distances.cpu() / points.shape[1] ** 0.5, codes[rows.cpu()]

    def _references(self) -> tuple[Tensor, Tensor]:
        """Codes and thumbnails of training samples."""
        if self.references is None:
            train = self.ids["train"]
            assert train is not None
            rows = (train.codes_of(index) for index in range(len(train)))
            chosen = islice(
                (row for row in rows if len(row)), self.recipe.generation.reference_count
            )
            codes = torch.stack([*chosen])
            parts = [thumbnails(self.decode(part)) for part in codes.split(DECODED)]
            self.references = codes, torch.cat(parts)
        return self.references

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        """For the first captions: the real sample, generated ones, and the training sample that the
        first of these is nearest to, to tell what was learned from what was remembered."""
        captions, numbers = list(batch.data["caption"][:SHOWN]), batch.ids[:SHOWN]
        with torch.autocast(self.device.type, enabled=False):
            originals = self.decode(batch.data["ids"][:SHOWN])
            draws = [self.generate(captions, numbers, seed) for seed in range(DRAWS)]
            nearest = self.decode(self._nearest(draws[0])[1])
        columns = [originals, nearest, *draws]
        rows = [[column[i] for column in columns] for i in range(len(captions))]
        titles = ["validation", "nearest to 1", *(f"generated {n + 1}" for n in range(DRAWS))]
        return [self.sheet(rows, titles, captions)]


def thumbnails(pixels: Tensor) -> Tensor:
    """(b, m): pictures, or the first, middle and last frames of clips, made small."""
    if pixels.ndim == 5:
        count = pixels.shape[2]
        pixels = pixels[:, :, [0, count // 2, count - 1]].flatten(1, 2)
    side = min(COMPARED, *pixels.shape[-2:])
    return F.interpolate(pixels, (side, side), mode="area").flatten(1)
