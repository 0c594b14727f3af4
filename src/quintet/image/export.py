"""Graph export of the image tokenizer. The generator is not exportable."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.image.config import VQGanRecipe
from quintet.image.model import VQGanVAE
from quintet.shared.maskgit.export import NOT_EXPORTABLE
from quintet.shared.tokenizer.export import tokenizer_pieces


def pieces(model: Any, recipe: VQGanRecipe) -> Exportable:
    if not isinstance(model, VQGanVAE):
        return Exportable([], NOT_EXPORTABLE)
    return tokenizer_pieces(model, "images", (model.config.channels, *recipe.images.size))
