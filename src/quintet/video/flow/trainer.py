"""VideoFlowTrainer: training of a flow generator of clips from Python."""

from typing import Any

from quintet.shared.generation.trainer import GeneratorTrainer
from quintet.video import recipes
from quintet.video.data import open_data
from quintet.video.flow.config import VideoFlowRecipe
from quintet.video.flow.model import VideoFlow
from quintet.video.flow.task import VideoFlowTask
from quintet.video.own_data import OwnVideos


class VideoFlowTrainer(GeneratorTrainer[VideoFlow]):
    """Train a VideoFlow around its trained tokenizer, on a folder of captioned videos (`data`),
    on a data set, or on the built-in figures; latents are computed once and cached.

        model = VideoFlow(tokenizer, image_size=128, frames=17, dim=512)
        trainer = VideoFlowTrainer(model, data="videos", steps=20_000)
        trainer.train()
        clips = trainer.generate(["a red star moves quickly upwards on white"], frames=65)

    Its defaults are those of the recipe `video/flow`, and every setting is a keyword: `videos`,
    `variants` (fixed augmentations of each clip), `text_drop`, `known_share` and the rest.
    """

    name = "video/flow"
    default_recipe = staticmethod(recipes.flow)

    def __init__(self, model: VideoFlow, dataset: Any = None, **keywords: Any):
        frames, height, width = model.clip_shape
        derived = {
            "videos.frames": frames,
            "videos.size": (height, width),
            "videos.channels": model.tokenizer.config.channels,
        }
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VideoFlowRecipe) -> OwnVideos:
        return OwnVideos(dataset, recipe.videos.frames, recipe.videos.channels)

    def open(self, recipe: VideoFlowRecipe) -> Any:
        return open_data(recipe.data, recipe.videos, "train", recipe.seed)

    def task(self, recipe: VideoFlowRecipe) -> VideoFlowTask:
        return VideoFlowTask(recipe, self.model, self.sets)
