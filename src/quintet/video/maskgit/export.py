"""Graph export of a masked generator of clips."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.shared.maskgit.export import masked_pieces
from quintet.video.maskgit.model import VideoMaskGit


def pieces(model: VideoMaskGit, recipe: Any) -> Exportable:
    return masked_pieces(model, "clips", recipe, fps=16)
