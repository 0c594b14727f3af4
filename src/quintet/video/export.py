"""Graph export of the video tokenizer. The generator is not exportable."""

from typing import Any

from quintet.engine.models.export import Exportable
from quintet.shared.export import ADOPTED
from quintet.shared.maskgit.export import NOT_EXPORTABLE
from quintet.shared.tokenizer.export import tokenizer_pieces
from quintet.video.config import VideoRecipe
from quintet.video.maskgit import VideoMaskGit
from quintet.video.model import VideoTokenizer


def pieces(model: Any, recipe: VideoRecipe) -> Exportable:
    if isinstance(model, VideoMaskGit):
        return Exportable([], NOT_EXPORTABLE)
    if not isinstance(model, VideoTokenizer):
        return Exportable([], ADOPTED)
    frames = recipe.videos.frames
    exportable = tokenizer_pieces(
        model, "videos", (model.config.channels, frames, *recipe.videos.size)
    )
    chunks = "Not exported: decoding in chunks (the layer states between chunks stay in Quintet)."
    return exportable._replace(left_out=f"{exportable.left_out} {chunks}")
