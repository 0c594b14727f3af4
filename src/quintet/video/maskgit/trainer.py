"""VideoMaskGitTrainer: training of a generator of clips from Python."""

from typing import Any

from quintet.shared.generation.trainer import GeneratorTrainer
from quintet.video import recipes
from quintet.video.data import open_data
from quintet.video.maskgit.config import VideoMaskGitRecipe
from quintet.video.maskgit.model import VideoMaskGit
from quintet.video.maskgit.task import VideoMaskGitTask
from quintet.video.own_data import OwnVideos


class VideoMaskGitTrainer(GeneratorTrainer[VideoMaskGit]):
    """Train a VideoMaskGit around its trained tokenizer, on a folder of captioned videos (`data`),
    on a data set, or on the built-in figures; ids are computed once and cached.

        model = VideoMaskGit(tokenizer, image_size=128, frames=17, dim=768)
        trainer = VideoMaskGitTrainer(model, data="videos", steps=20_000)
        trainer.train()
        clips = trainer.generate(["a red star moves quickly upwards on white"], frames=65)

    Its defaults are those of the recipe `video/maskgit`, and every setting is a keyword: `videos`,
    `variants` (fixed augmentations of each clip), `text_drop`, `prefix_share` and the rest.
    """

    name = "video/maskgit"
    default_recipe = staticmethod(recipes.maskgit)

    def __init__(self, model: VideoMaskGit, dataset: Any = None, **keywords: Any):
        frames, height, width = model.clip_shape
        derived = {
            "videos.frames": frames,
            "videos.size": (height, width),
            "videos.channels": model.tokenizer.config.channels,
        }
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VideoMaskGitRecipe) -> OwnVideos:
        return OwnVideos(dataset, recipe.videos.frames, recipe.videos.channels)

    def open(self, recipe: VideoMaskGitRecipe) -> Any:
        return open_data(recipe.data, recipe.videos, "train", recipe.seed)

    def task(self, recipe: VideoMaskGitRecipe) -> VideoMaskGitTask:
        return VideoMaskGitTask(recipe, self.model, self.sets)
