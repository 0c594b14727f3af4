"""VideoTokenizerTrainer: training of a video tokenizer from Python."""

from typing import Any

from torch import Tensor

from quintet.compat.keywords import renamed
from quintet.shared.tokenizer.trainer import TokenizerTrainer
from quintet.video import recipes
from quintet.video.data import open_data
from quintet.video.own_data import OwnVideos
from quintet.video.tokenizer.config import VideoRecipe
from quintet.video.tokenizer.model import VideoTokenizer
from quintet.video.tokenizer.task import VideoTask


class VideoTokenizerTrainer(TokenizerTrainer[VideoTokenizer]):
    """Train a VideoTokenizer on a folder of videos and images (`data`), on a data set, or on the
    built-in clips.

        tokenizer = VideoTokenizer(image_size=128, init_dim=64, codebook_size=1024)
        VideoTokenizerTrainer(tokenizer, data="videos", steps=10_000).train()

    Its defaults are those of the recipe `video/tokenizer`, and every setting is a keyword: `size`,
    `frames`, `adversarial` (none, hinge, relativistic), `adversarial_from`, `motion`,
    `frame_discriminator`, `motion_discriminator`, `penalty`, `perceptual`, `vgg` and the rest.
    """

    name = "video/tokenizer"
    default_recipe = staticmethod(recipes.tokenizer)
    main = "tokenizer"

    @renamed(model="tokenizer")
    def __init__(self, tokenizer: VideoTokenizer, dataset: Any = None, **keywords: Any):
        derived = {"model": tokenizer.config, "videos.channels": tokenizer.config.channels}
        if tokenizer.image_size is not None:
            derived["videos.size"] = (tokenizer.image_size,) * 2
        super().__init__(tokenizer, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VideoRecipe) -> OwnVideos:
        return OwnVideos(dataset, recipe.videos.frames, recipe.model.channels)

    def open(self, recipe: VideoRecipe) -> Any:
        return open_data(recipe.data, recipe.videos, "train", recipe.seed)

    def task(self, recipe: VideoRecipe) -> VideoTask:
        return VideoTask(recipe, self.model, self.sets)

    def tokenize(self, values: Tensor, chunk: int | None = None) -> Tensor:
        """Token ids of clips in 0..1, by the averaged weights; `chunk` frames at a time."""
        return self.averaged_model().tokenize(values.to(self._device), chunk)

    def reconstruct(self, values: Tensor, chunk: int | None = None) -> Tensor:
        """Reconstructions of clips through their token ids, by the averaged weights."""
        return self.averaged_model().reconstruct(values.to(self._device), chunk)
