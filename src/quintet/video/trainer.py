"""VideoTokenizerTrainer: the video room for Python users."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from quintet.engine.keys import Key
from quintet.engine.spellings import renamed
from quintet.shared.tokenizer_trainer import OwnData, TokenizerTrainer
from quintet.video.config import (
    FrameDiscriminatorConfig,
    TemporalDiscriminatorConfig,
    VideoDataConfig,
    VideoLossConfig,
    VideoRecipe,
)
from quintet.video.data import open_data
from quintet.video.model import VideoTokenizer
from quintet.video.task import VideoTask


class AsVideos(OwnData):
    """Of a longer clip a stretch of `frames`, placed by the key; an image stands still."""

    names = ("video", "videos", "image", "images")
    shapes = {4: "a clip (3, t, h, w)", 3: "an image (3, h, w)"}

    def __init__(self, source: Any, frames: int, channels: int = 3):
        super().__init__(source)
        self.frames, self.channels = frames, channels

    def sample(self, item: Tensor, text: str, index: int, key: Key | None) -> dict[str, Any]:
        if item.shape[0] != self.channels:  # not a ValueError: no sample of the set will do
            colours = self.channels
            raise TypeError(
                f"sample {index} is {tuple(item.shape)}, but the tokenizer takes clips ({colours}, "
                f"t, h, w) and images ({colours}, h, w): permute its axes"
            )
        still = item.ndim == 3
        if still:
            item = item[:, None].expand(-1, self.frames, -1, -1)
        spare = item.shape[1] - self.frames
        if spare < 0:
            raise ValueError(
                f"sample {index} has {item.shape[1]} frames, but num_frames is {self.frames}: "
                "lower num_frames, or leave the short clips out"
            )
        first = key.random("window").randint(0, spare) if key is not None else spare // 2
        return {"video": item[:, first : first + self.frames], "still": still, "text": text}


class VideoTokenizerTrainer(TokenizerTrainer):
    """Train a VideoTokenizer on a folder of videos and images, on a data set, or on built-in clips.

        tokenizer = VideoTokenizer(image_size=128, init_dim=64, codebook_size=1024)
        VideoTokenizerTrainer(tokenizer, folder="videos", num_train_steps=10_000).train()

    Beside what every trainer takes: `image_size`, `num_frames`, `adversarial` (none, hinge,
    relativistic), `adversarial_from` (share of the run before the critics start), `motion` (whether
    a second critic judges motion), `frame_discriminator` and `temporal_discriminator` (their
    settings), `penalty`, `penalty_every`, `perceptual` (weight), `perceptual_frames` and `vgg` (a
    local file of weights).
    """

    name = "video/tokenizer"
    main = "tokenizer"
    own = TokenizerTrainer.own | {"motion", "perceptual_frames"}

    @renamed(model="tokenizer", dataset_folder="folder")
    def __init__(
        self,
        tokenizer: VideoTokenizer,
        *,
        folder: str | Path | None = None,
        dataset: Any = None,
        image_size: int | tuple[int, int] = 128,
        num_frames: int = 17,
        frame_discriminator: FrameDiscriminatorConfig | None = None,
        temporal_discriminator: TemporalDiscriminatorConfig | None = None,
        **keywords: Any,
    ):
        shared, losses = self.keywords_of(keywords)
        wrap = partial(AsVideos, frames=num_frames, channels=tokenizer.config.channels)
        place, self.sets = self.sets_of(folder, dataset, shared, wrap)
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        videos = VideoDataConfig(frames=num_frames, size=size, valid_fraction=shared.valid_frac)
        train = self.sets["train"] if self.sets else open_data(place, videos, "train", shared.seed)
        recipe = shared.recipe(
            len(train),
            VideoRecipe,
            model=tokenizer.config,
            videos=videos,
            losses=VideoLossConfig(**losses),
            frame_critic=frame_discriminator or FrameDiscriminatorConfig(),
            motion_critic=temporal_discriminator or TemporalDiscriminatorConfig(),
            tokenizer=shared.optimiser(),
            critics=shared.optimiser(average=0.0),
            data=place,
        )
        super().__init__(tokenizer, shared, recipe)

    def task(self, recipe: VideoRecipe) -> VideoTask:
        return VideoTask(recipe, self.model, self.sets)  # type: ignore[arg-type]

    def tokenize(self, values: Tensor, chunk: int | None = None) -> Tensor:
        """Ids of clips in 0..1, by the averaged weights; long ones `chunk` frames at a time."""
        return self.averaged_model().tokenize(values.to(self._device), chunk)  # type: ignore[operator]

    def reconstruct(self, values: Tensor, chunk: int | None = None) -> Tensor:
        """Clips after a trip through their ids, by the averaged weights."""
        return self.averaged_model().reconstruct(values.to(self._device), chunk)  # type: ignore[operator]
