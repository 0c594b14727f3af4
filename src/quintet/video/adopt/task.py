"""Training of an adopted autoencoder of clips, as of a VideoTokenizer."""

from typing import Any, cast

from quintet.shared.adopt.task import Adopting, adopted
from quintet.video.adopt.config import VideoAdoptRecipe
from quintet.video.adopt.model import AdoptedClips
from quintet.video.tokenizer.task import VideoTask


class VideoAdoptTask(Adopting, VideoTask):
    def __init__(self, recipe: VideoAdoptRecipe) -> None:
        videos = recipe.videos
        model, self.unused = adopted(
            AdoptedClips, recipe, (videos.channels, videos.frames, *videos.size)
        )
        super().__init__(cast(Any, recipe), cast(Any, model))
        self.leave_eager()


build = VideoAdoptTask
