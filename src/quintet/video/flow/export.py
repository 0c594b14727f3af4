"""Graph export of a flow generator of clips."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.shared.flow.export import flow_pieces
from quintet.video.flow.model import VideoFlow


def pieces(model: VideoFlow, recipe: Any) -> Exportable:
    return flow_pieces(model, "clips", recipe, fps=16)
