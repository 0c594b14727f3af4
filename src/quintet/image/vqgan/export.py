"""Graph export of the image tokenizer."""

from quintet.engine.models.export import Exportable
from quintet.image.vqgan.config import VQGanRecipe
from quintet.image.vqgan.model import VQGanVAE
from quintet.shared.tokenizer.export import tokenizer_pieces


def pieces(model: VQGanVAE, recipe: VQGanRecipe) -> Exportable:
    return tokenizer_pieces(model, "images", (model.config.channels, *recipe.images.size))
