"""Graph export of a masked generator of images."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.image.maskgit.model import MaskGit
from quintet.shared.maskgit.export import masked_pieces


def pieces(model: MaskGit, recipe: Any) -> Exportable:
    return masked_pieces(model, "images", recipe, fps=0)
