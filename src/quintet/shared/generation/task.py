"""Training task of a generator over the codes of a tokenizer: data, and what it generates.

pixels ─ frozen tokenizer ─> cached codes ─ a family's network ─> its loss
validation captions ─ network ─> codes ─ tokenizer ─> generated pixels ─ metrics
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.errors import RunError
from quintet.engine.keys import fold
from quintet.engine.runs.frozen import digest
from quintet.engine.task import Batch, Exhibit, Part, Rows, Task, Update, World
from quintet.nn.attention import Context
from quintet.nn.text import PAD, TOKENIZERS, tokenizer_of
from quintet.shared.captions import TextTable, survey
from quintet.shared.code_cache import Collate
from quintet.shared.encoded import open_encoded
from quintet.shared.generation.config import GeneratorRecipe
from quintet.shared.generation.data import CaptionedPixels, CodeData

DECODED = 32
"""Samples that the tokenizer decodes together."""
SHOWN, DRAWS = 6, 3
"""Captions of an exhibit, and samples generated for each."""
COMPARED = 32
"""Side of the thumbnails whose distance is measured."""


class GeneratorTask(Task):
    main = "transformer"
    best = ("loss", "min")
    capturable = True
    field: ClassVar[str]
    """Name of the pixels in a sample."""
    recipe: Any
    """A `GeneratorRecipe` with the settings of the family."""
    Model: ClassVar[type[Any]]
    """A `Generator`."""
    Codes: ClassVar[type[CodeData]]
    room: ClassVar[Any]
    """Module with `open_data` and `collate`."""
    settings: ClassVar[str]
    """Name of the data settings in the recipe."""

    def __init__(self, recipe: GeneratorRecipe, model: Any = None, sets: Any = None) -> None:
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        path = self.tokenizer_path()
        held = None if model is None else model.held_tokenizer
        self.tokenizer, self.weights = self.Model.load_tokenizer(path, held), digest(path)
        try:
            self.Model.check_tokenizer(self.tokenizer)
            self.check_channels()
            grid = self.grid()
            model = model or self.new_model(grid)
        except (TypeError, ValueError) as error:
            raise RunError(str(error)) from None
        if model.config.grid != grid:
            kind = self.Codes.kind
            raise RunError(f"the model has a grid of {model.config.grid} {kind}, the data {grid}")
        model.set_tokenizer(self.tokenizer)  # the copy in the run folder
        self.model, self.config = model, model.config
        self.parts = {
            "transformer": Part(model, recipe.optim),
            "tokenizer": Part(self.tokenizer, compiles=False),
        }
        self.updates = [Update("transformer", self.losses)]
        self.codes: dict[str, Any] = {}
        """Data sets of codes, by split."""
        self.fixed_shapes = False
        self.texts: TextTable | None = None
        self.references: tuple[Tensor, Tensor] | None = None

    # -- what a family and a room say -----------------------------------------------------------

    def tokenizer_path(self) -> Path:
        """The copy of the tokenizer in the run folder."""
        return Path(self.recipe.tokenizer)

    def new_model(self, grid: tuple[int, ...]) -> Any:
        """The network at the start of a run."""
        recipe, kind = self.recipe, self.Model
        config = replace(recipe.model, grid=grid)
        return kind(config, tokenizer=self.tokenizer)

    def losses(self, nets: Any, batches: Sequence[Batch], context: Any) -> Any:
        raise NotImplementedError

    def grid(self) -> tuple[int, ...]:
        """Codes along each axis."""
        raise NotImplementedError

    def check_channels(self) -> None:
        own, asked = self.tokenizer.config.channels, self.pixel_config.channels
        if own != asked:
            flag = f"--{self.settings}.channels"
            raise ValueError(
                f"the tokenizer has {own} channels, and the data {asked}: set {flag} to {own}, or"
                " choose another tokenizer"
            )

    @property
    def pixel_config(self) -> Any:
        return getattr(self.recipe, self.settings)

    @property
    def generation(self) -> Any:
        """Settings of generation during evaluation."""
        return self.recipe.generation

    def generate(self, captions: Sequence[str], numbers: Sequence[int], seed: int = 0) -> Tensor:
        """Pixels in 0..1 by the recipe's `generation`; functions of caption, number and seed."""
        raise NotImplementedError

    def conditions_of(self, originals: Sequence[Tensor]) -> dict[str, Any]:
        """What `generate` takes beside captions, for held-out pixels in 0..1."""
        return {}

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels in 0..1 of codes as a batch has them."""
        raise NotImplementedError

    def points(self, pixels: Tensor) -> Tensor:
        """(b, m): samples made small, whose distances are measured."""
        return thumbnails(pixels)

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        """Whether a generated sample shows a caption of built-in figures."""
        raise NotImplementedError

    def shown(self, captions: Sequence[str], samples: Tensor) -> dict[str, Tensor]:
        """Further metrics of samples of built-in captions, one row each."""
        return {}

    def sheet(self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]) -> Any:
        raise NotImplementedError

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """Compute or load the codes of all samples, and frozen embeddings of their captions."""
        sources = {split: self._pixels(split) for split in ("train", "valid")}
        if self.config.text != "none":
            survey([s for s in sources.values() if s is not None], self.model.text_sizes, world)
        for split, source in sources.items():
            self.codes[split] = None
            if source is not None and len(source):
                self.codes[split] = self.encoded(split, source, world)
        if self.config.text == "frozen":
            sets = [codes for codes in self.codes.values() if codes is not None]
            captions = sorted({s.text(i) for s in sets for i in range(len(s))})
            self.texts = TextTable(self.config, captions, world)
        self.device = world.device
        self.fixed_shapes = world.device.type != "cpu" or world.compiles

    def encoded(self, split: str, source: CaptionedPixels, world: World) -> Any:
        """The codes of all samples of a split."""
        return self.filled(split, source, world, self.config.grid)

    def filled(
        self, split: str, source: CaptionedPixels, world: World, grid: tuple[int, ...]
    ) -> CodeData:
        """Codes of samples of one size."""
        recipe = self.recipe
        codes = self.uncoded(source, recipe.variants if split == "train" else 1)
        codes.reads_texts, codes.grid = self.config.text != "none", grid
        codes.fill(self.tokenizer, self.room.collate, world, recipe.workers)
        tokens = torch.Size(grid).numel()
        other = next((n for n in codes.lengths() if n not in (0, tokens)), None)
        if other is not None:
            raise RunError(
                f"a sample has {other} {codes.kind}, but the grid {grid} has {tokens}: give samples"
                " of one size, and size= to the model"
            )
        return codes

    def uncoded(self, source: CaptionedPixels, variants: int) -> CodeData:
        """The data set of codes, before they are computed."""
        return self.Codes(source, variants, self.weights)

    @classmethod
    def to_encode(
        cls, recipe: GeneratorRecipe, tokenizer: Any, weights: str
    ) -> tuple[CodeData, Collate]:
        """All samples of a folder, of both splits, whose codes are not computed yet."""
        cls.Model.check_tokenizer(tokenizer)
        config = getattr(recipe, cls.settings)
        folder = cls.room.Folder.whole(recipe.data, config)
        source = CaptionedPixels(folder, cls.field, config)
        return cls.Codes(source, recipe.variants, weights), cls.room.collate

    def _pixels(self, split: str) -> CaptionedPixels | None:
        recipe, config = self.recipe, self.pixel_config
        source = open_encoded(recipe.data, config, split, recipe.seed)  # type: ignore[arg-type]
        if self.sets is not None:
            source = self.sets[split]
        elif source is None:
            source = self.room.open_data(recipe.data, config, split, recipe.seed)
        return None if source is None else CaptionedPixels(source, self.field, config)

    def data(self, split: str) -> Any:
        """Codes, or the samples themselves before `prepare`."""
        return self.codes[split] if self.codes else self._pixels(split)

    def collate(self, items: list[Any]) -> dict[str, Any]:
        texts = [item["text"] for item in items]
        codes = torch.stack([item["codes"] for item in items])
        codes = self.arranged(codes, items[0]["grid"])
        return {"codes": codes, "caption": texts, **self._encode_captions(texts)}

    def arranged(self, rows: Tensor, grid: tuple[int, ...]) -> Tensor:
        """Cached codes (b, n, …) as a batch has them."""
        return rows

    def _encode_captions(self, texts: Sequence[str]) -> dict[str, Tensor]:
        if self.config.text in TOKENIZERS:
            ids = tokenizer_of(self.config).encode(texts)
            longest = ids.shape[1] if self.fixed_shapes else int((ids != PAD).sum(1).max())
            return {"text": ids[:, :longest]}
        return {} if self.texts is None else self.texts(texts)

    # -- evaluation -----------------------------------------------------------------------------

    def measure_generation(self, batch: Batch) -> dict[str, Rows]:
        """Metrics of samples generated from validation captions, one row each."""
        rows = [row for row, index in enumerate(batch.ids) if index < self.generation.count]
        if not rows:
            return {}
        with torch.autocast(self.device.type, enabled=False):
            return self._measure_generation(batch, rows)

    def _measure_generation(self, batch: Batch, rows: list[int]) -> dict[str, Rows]:
        captions = [batch.data["caption"][row] for row in rows]
        generated = self.generate(captions, [batch.ids[row] for row in rows])
        originals = self.decode(batch.data["codes"][rows])
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
            values |= self.shown(captions, generated)
        return {name: Rows(value) for name, value in values.items()}

    @property
    def judged(self) -> bool:
        return self.recipe.data is None and self.pixel_config.builtin != "scenes"

    def context(self, captions: Sequence[str]) -> Context | None:
        if self.config.text == "none":
            return None
        inputs = {n: v.to(self.device) for n, v in self._encode_captions(captions).items()}
        return self.model.encode_inputs(**inputs)

    def _nearest(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Distance and codes of the nearest training sample of each, both through the tokenizer."""
        codes, references = self._references()
        points = self.points(pixels)
        distances, rows = torch.cdist(points, references).min(1)
        return distances.cpu() / points.shape[1] ** 0.5, codes[rows.cpu()]

    def _references(self) -> tuple[Tensor, Tensor]:
        """Codes and thumbnails of training samples."""
        if self.references is None:
            train, tokens = self.codes["train"], self.config.tokens
            rows = (train.codes_of(index) for index in range(len(train)))
            usable = (row for row in rows if len(row) == tokens)
            chosen = [*islice(usable, self.generation.reference_count)]
            codes = self.arranged(torch.stack(chosen), self.config.grid)
            parts = [self.points(self.decode(part)) for part in codes.split(DECODED)]
            self.references = codes, torch.cat(parts)
        return self.references

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        """For the first captions: the real sample, generated ones, and the training sample that the
        first of these is nearest to, to tell what was learned from what was remembered."""
        captions, numbers = list(batch.data["caption"][:SHOWN]), batch.ids[:SHOWN]
        with torch.autocast(self.device.type, enabled=False):
            originals = self.decode(batch.data["codes"][:SHOWN])
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
