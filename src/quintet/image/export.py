"""Graph export of the image tokenizer. The generator is not exportable."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.image.config import VQGanRecipe
from quintet.image.maskgit import MaskGit
from quintet.image.model import VQGanVAE
from quintet.shared.export import ADOPTED
from quintet.shared.maskgit.export import NOT_EXPORTABLE
from quintet.shared.tokenizer.export import tokenizer_pieces


def pieces(model: Any, recipe: VQGanRecipe) -> Exportable:
    if isinstance(model, MaskGit):
        return Exportable([], NOT_EXPORTABLE)
    if not isinstance(model, VQGanVAE):
        return Exportable([], ADOPTED)
    return tokenizer_pieces(model, "images", (model.config.channels, *recipe.images.size))
