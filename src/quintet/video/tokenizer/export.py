"""Graph export of the video tokenizer."""

from quintet.engine.models.export import Exportable
from quintet.shared.tokenizer.export import tokenizer_pieces
from quintet.video.tokenizer.config import VideoRecipe
from quintet.video.tokenizer.model import VideoTokenizer


def pieces(model: VideoTokenizer, recipe: VideoRecipe) -> Exportable:
    frames = recipe.videos.frames
    exportable = tokenizer_pieces(
        model, "videos", (model.config.channels, frames, *recipe.videos.size)
    )
    chunks = "Not exported: decoding in chunks (the layer states between chunks stay in Quintet)."
    return exportable._replace(left_out=f"{exportable.left_out} {chunks}")
