"""What can leave the video room as a graph."""

from quintet.engine.exporting import Exportable
from quintet.shared.tokenizer_export import tokenizer_pieces
from quintet.video.config import VideoRecipe
from quintet.video.model import VideoTokenizer


def pieces(model: VideoTokenizer, recipe: VideoRecipe) -> Exportable:
    frames = recipe.videos.frames
    found = tokenizer_pieces(model, "videos", (model.config.channels, frames, *recipe.videos.size))
    more = "Longer clips in chunks stay with Quintet: the states between chunks are no part of it."
    return found._replace(left_out=f"{found.left_out} {more}")
