"""Graph export of a flow generator of images."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.image.flow.model import ImageFlow
from quintet.shared.flow.export import flow_pieces


def pieces(model: ImageFlow, recipe: Any) -> Exportable:
    return flow_pieces(model, "images", recipe, fps=0)
