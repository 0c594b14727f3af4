"""Training of an adopted CLIP: its loss is that of the global batch (shared/contrastive.py)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.keys import fold
from quintet.engine.task import Batch, Exhibit, Measured, Part, Rows, Update, World
from quintet.files import reading_once
from quintet.image.clip.config import ClipRecipe
from quintet.image.clip.data import open_captioned
from quintet.image.data import collate
from quintet.image.sheets import PictureSheet
from quintet.media.errors import printable
from quintet.nn.contrastive import similarities
from quintet.shared.adopt.clip import AdoptedClip
from quintet.shared.captions import survey
from quintet.shared.contrastive import ContrastiveTask
from quintet.shared.exhibits import Lines, SimilarityMatrix, best_captions

MATRIX_SIZE = 64
"""Pairs in the similarity matrix."""
EXHIBITED, TOP = 6, 3
"""Images shown at each evaluation, and captions of each."""


class ClipTask(ContrastiveTask):
    """Steps are neither captured nor compiled: the length of texts varies, and transformers may
    read tensors on the host."""

    main, medium = "clip", "image"
    capturable = False

    def __init__(self, recipe: ClipRecipe) -> None:
        assert recipe.clip is not None, "a run keeps its own copy before the task is built"
        self.recipe = recipe
        self.model = AdoptedClip.from_pretrained(recipe.clip)
        self.config = self.model.config
        check_images(recipe, self.model)
        self.model.train_only(recipe.train)
        self.parts = {"clip": Part(self.model, recipe.optim, compiles=False)}
        self.updates = [Update("clip", self.losses)]
        self.opened: dict[str, Any] = {}

    def prepare(self, world: World) -> None:
        self.watch(world)
        with reading_once():
            sources = [self.data("train"), self.data("valid")]
        survey(sources, self.model.text_sizes, world)

    def data(self, split: str) -> Any:
        if split not in self.opened:
            recipe = self.recipe
            self.opened[split] = open_captioned(recipe.data, recipe.images, split, recipe.seed)  # type: ignore[arg-type]
        return self.opened[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        batch = collate(items)
        texts = batch.pop("text")
        return {**batch, "texts": texts, "text": self.model.tokenize(texts)[0]}

    def check(self, data: Any) -> None:
        most, known = int(data["text"].max()), self.config.vocab_size
        if most >= known:
            raise ValueError(
                f"the tokenizer has id {most}, but the model {known} tokens; give the folder its"
                " own tokenizer"
            )

    def inputs(self, batch: Batch, augment: bool = False) -> tuple[Any, ...]:
        """Images are augmented by the data."""
        return batch.data["image"], batch.data["text"]

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        output = nets["clip"](*self.inputs(batch))
        captions = [fold(text) for text in batch.data["texts"]]
        rows = {
            "image": output.media,
            "text": output.text,
            "caption": torch.tensor(captions, device=output.media.device),
            "log_temperature": output.log_temperature.expand(batch.size),
        }
        return {name: Rows(values) for name, values in rows.items()}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        return self.compared(rows)

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        output = nets["clip"](*self.inputs(batch))
        similarity = similarities(output.media, output.text).cpu()
        texts, images = batch.data["texts"], batch.data["image"][:EXHIBITED]
        best = [
            [printable(text), *(f"  {line}" for line in best_captions(row, texts, TOP)), ""]
            for text, row in zip(texts, similarity[:EXHIBITED])
        ]
        return [
            SimilarityMatrix("similarity", similarity[:MATRIX_SIZE, :MATRIX_SIZE]),
            PictureSheet("images", [[image / 255] for image in images], [""], texts[:EXHIBITED]),
            Lines("captions", [line for lines in best for line in lines]),
        ]


def check_images(recipe: ClipRecipe, model: AdoptedClip) -> None:
    side = model.config.image_size
    if recipe.images.size != (side, side):
        raise RunError(
            f"this model takes images of {side} x {side}; set --images.size {side} {side}"
        )
    if recipe.images.channels != 3:
        raise RunError(f"images.channels is {recipe.images.channels}; this model takes 3 (RGB)")


build = ClipTask
