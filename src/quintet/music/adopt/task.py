"""Training of an adopted codec (music/coding.py)."""

import torch

from quintet.engine.keys import fold
from quintet.music.adopt.config import CodecAdoptRecipe
from quintet.music.adopt.model import AdoptedCodec
from quintet.music.coding import CodingTask
from quintet.shared.adopt.task import Adopting, adopted


class CodecAdoptTask(Adopting, CodingTask):
    """Steps are not captured as CUDA graphs: those of Oobleck and Mimi cannot be."""

    def __init__(self, recipe: CodecAdoptRecipe) -> None:
        model, self.unused = adopted(AdoptedCodec, recipe)
        if recipe.codebooks:
            model.use_codebooks(recipe.codebooks)
        torch.manual_seed(fold(recipe.seed, "weights"))
        super().__init__(recipe, model)
        self.leave_eager()


build = CodecAdoptTask
