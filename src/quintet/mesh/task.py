"""Which task a recipe of this room is for."""

from typing import Any

from quintet.mesh.autoencoder.task import AutoencoderTask
from quintet.mesh.config import MeshAutoencoderRecipe
from quintet.mesh.transformer.task import TransformerTask


def build(recipe: Any) -> AutoencoderTask | TransformerTask:
    if isinstance(recipe, MeshAutoencoderRecipe):
        return AutoencoderTask(recipe)
    return TransformerTask(recipe)
