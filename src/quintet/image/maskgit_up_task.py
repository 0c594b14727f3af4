"""Training of the super-resolution generator: pairs of fine and coarse ids of an image.

image ─ fine tokenizer ──────────> ids (n,)  ┐
image, made small ─ coarse one ──> ids (m,)  ┴─ cached as one row
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.runs.frozen import digest
from quintet.engine.task import Batch, Exhibit, Part
from quintet.image.config import MaskGitUpRecipe
from quintet.image.maskgit_task import MaskGitTask, PictureSheet
from quintet.image.maskgit_up import MaskGitUp, TwoTokenizers
from quintet.nn.attention import Context
from quintet.shared.maskgit.data import in_floats
from quintet.shared.maskgit.task import open_stage


class MaskGitUpTask(MaskGitTask):
    Model = MaskGitUp
    recipe: MaskGitUpRecipe  # type: ignore[assignment]
    model: MaskGitUp

    def __init__(self, recipe: MaskGitUpRecipe, model: MaskGitUp | None = None, sets: Any = None):
        assert recipe.coarse_tokenizer is not None, "resolved by the engine"
        coarse = open_stage(recipe, "coarse_tokenizer", MaskGitUp.tokenizer_class())
        self.coarse_tokenizer = coarse
        super().__init__(recipe, model, sets)
        self.model.set_coarse_tokenizer(coarse)
        size = self.model.coarse_size
        self.weights += f"/{digest(Path(recipe.coarse_tokenizer))}/{size}"
        self.parts["coarse_tokenizer"] = Part(coarse, compiles=False)
        self.encoder = TwoTokenizers(self.tokenizer, coarse, size)
        self.length += self.model.config.coarse_grid[0] * self.model.config.coarse_grid[1]

    def new_model(self, grid: tuple[int, ...]) -> MaskGitUp:
        recipe = self.recipe
        return MaskGitUp(
            recipe.model,
            self.coarse_tokenizer,
            tokenizer=self.tokenizer,
            image_size=recipe.images.size,
            coarse_size=recipe.coarse_size,
        )

    def codes_of(self, items: Sequence[Any]) -> Tensor:
        images = torch.stack([item["image"] for item in items]).to(self.device)
        return self.encoder.tokenize(in_floats(images, self.tokenizer))

    def _call(self, transformer: Any, batch: Batch, masked: Tensor, drop: Tensor) -> Any:
        codes, count = batch.data["ids"].long(), self.config.tokens
        text, mask = (batch.data.get(name) for name in ("text", "mask"))
        return transformer(codes[:, :count], masked, text, mask, drop, codes[:, count:])

    def context(self, captions: Sequence[str], codes: Tensor | None) -> Context:
        assert codes is not None
        coarse = codes[:, self.config.tokens :].long().to(self.device)
        return self.model.with_coarse(super().context(captions, codes), coarse)

    def decode(self, ids: Tensor) -> Tensor:
        """Of the fine ids."""
        return super().decode(ids[:, : self.config.tokens])

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        """With the small image beside the real one."""
        sheets = super().exhibit(nets, batch)
        (sheet,) = sheets
        assert isinstance(sheet, PictureSheet)
        codes = batch.data["ids"][: len(sheet.rows), self.config.tokens :].long()
        small = self.model.decode_coarse(codes)
        rows = [[row[0], each, *row[1:]] for row, each in zip(sheet.rows, small)]
        titles = [sheet.titles[0], "coarse", *sheet.titles[1:]]
        return [PictureSheet(sheet.name, rows, titles, sheet.texts)]
