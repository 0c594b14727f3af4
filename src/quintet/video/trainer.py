"""VideoTokenizerTrainer and VideoMaskGitTrainer: training of the video models from Python."""

from typing import Any

from torch import Tensor

from quintet.compat.keywords import renamed
from quintet.engine.keys import Key
from quintet.shared.maskgit.trainer import MaskedTrainer
from quintet.shared.tokenizer.trainer import OwnPixels, TokenizerTrainer
from quintet.video.config import VideoMaskGitRecipe, VideoRecipe
from quintet.video.data import open_data
from quintet.video.maskgit import VideoMaskGit
from quintet.video.maskgit_task import VideoMaskGitTask
from quintet.video.model import VideoTokenizer
from quintet.video.task import VideoTask


class OwnVideos(OwnPixels):
    """A window of `frames`, placed by the key, of a longer clip; an image repeated as a still."""

    fields = {
        "video": "video",
        "videos": "video",
        "image": "video",
        "images": "video",
        "text": "text",
    }
    shapes = {4: "a clip (c, t, h, w)", 3: "an image (c, h, w)"}

    def __init__(self, dataset: Any, frames: int, channels: int = 3):
        super().__init__(dataset, channels)
        self.frames = frames

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        sample = super().sample(fields, where, key)
        clip: Tensor = sample["video"]
        still = clip.ndim == 3
        if still:
            clip = clip[:, None].expand(-1, self.frames, -1, -1)
        spare = clip.shape[1] - self.frames
        if spare < 0:
            raise ValueError(
                f"{where} has {clip.shape[1]} frames, but frames is {self.frames}: lower frames, "
                "or drop the short clips"
            )
        first = key.random("window").randint(0, spare) if key is not None else spare // 2
        return {**sample, "video": clip[:, first : first + self.frames], "still": still}


class VideoTokenizerTrainer(TokenizerTrainer[VideoTokenizer]):
    """Train a VideoTokenizer on a folder of videos and images (`data`), on a data set, or on the
    built-in clips.

        tokenizer = VideoTokenizer(image_size=128, init_dim=64, codebook_size=1024)
        VideoTokenizerTrainer(tokenizer, data="videos", size=128, steps=10_000).train()

    Every setting of `VideoRecipe` is a keyword: `size`, `frames`, `adversarial` (none, hinge,
    relativistic), `adversarial_from`, `motion`, `frame_discriminator`, `motion_discriminator`,
    `penalty`, `perceptual`, `vgg` and the rest.
    """

    name = "video/tokenizer"
    main = "tokenizer"

    @renamed(model="tokenizer")
    def __init__(self, tokenizer: VideoTokenizer, dataset: Any = None, **keywords: Any):
        derived = {"model": tokenizer.config, "videos.channels": tokenizer.config.channels}
        super().__init__(tokenizer, VideoRecipe(), dataset, keywords, derived)

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


class VideoMaskGitTrainer(MaskedTrainer[VideoMaskGit]):
    """Train a VideoMaskGit around its trained tokenizer, on a folder of captioned videos (`data`),
    on a data set, or on the built-in figures; ids are computed once and cached.

        model = VideoMaskGit(tokenizer, image_size=128, frames=17, dim=768)
        trainer = VideoMaskGitTrainer(model, data="videos", steps=20_000)
        trainer.train()
        clips = trainer.generate(["a red star moves quickly upwards on white"], frames=65)

    Every setting of `VideoMaskGitRecipe` is a keyword: `videos`, `variants` (fixed augmentations of
    each clip), `text_drop`, `prefix_share` and the rest.
    """

    name = "video/maskgit"

    def __init__(self, model: VideoMaskGit, dataset: Any = None, **keywords: Any):
        frames, height, width = model.clip_shape
        derived = {
            "videos.frames": frames,
            "videos.size": (height, width),
            "videos.channels": model.tokenizer.config.channels,
        }
        super().__init__(model, VideoMaskGitRecipe(), dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VideoMaskGitRecipe) -> OwnVideos:
        return OwnVideos(dataset, recipe.videos.frames, recipe.videos.channels)

    def open(self, recipe: VideoMaskGitRecipe) -> Any:
        return open_data(recipe.data, recipe.videos, "train", recipe.seed)

    def task(self, recipe: VideoMaskGitRecipe) -> VideoMaskGitTask:
        return VideoMaskGitTask(recipe, self.model, self.sets)
