"""What can leave the image room as a graph."""

from quintet.engine.exporting import Exportable
from quintet.image.config import VQGanRecipe
from quintet.image.model import VQGanVAE
from quintet.shared.tokenizer_export import tokenizer_pieces


def pieces(model: VQGanVAE, recipe: VQGanRecipe) -> Exportable:
    return tokenizer_pieces(model, "images", (model.config.channels, *recipe.images.size))
