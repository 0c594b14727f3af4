"""Clips that are generated in chunks, from nothing or from the start of a clip.

Each chunk begins with the last frames of the one before, encoded again: the first of them has a
latent frame of its own, as the first frame of a training clip has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.nn.attention import Context
from quintet.shared.generation.generator import Generator, Seed, sample_keys
from quintet.shared.generation.trainer import GeneratorTrainer
from quintet.shared.sampling import go_on
from quintet.video.data import open_data
from quintet.video.own_data import OwnVideos

if TYPE_CHECKING:
    from collections.abc import Callable


class ContinuingGenerator(Generator):
    """What the generators of clips share."""

    chunk: "Callable[[Tensor, int, Tensor, Context | None, Any], Tensor]"
    """Clips whose first `known` frames are those of `clips` (b, c, known, H, W), at the length of
    training; by keys, captions and settings."""

    @classmethod
    def grid_of(cls, tokenizer: Any, size: Any, frames: int | None = None) -> tuple[int, ...]:
        if tokenizer is None or size is None or frames is None:
            raise ValueError("give image_size and frames beside a tokenizer, or grid")
        tokenizer.check_length(frames, True)
        return 1 + (frames - 1) // tokenizer.time_factor, *tokenizer.grid_of(size)

    @property
    def clip_shape(self) -> tuple[int, int, int]:
        """Frames, height and width of a clip."""
        time, height, width = self.config.grid
        tokenizer = self.tokenizer
        frames = 1 + (time - 1) * tokenizer.time_factor
        return frames, height * tokenizer.factor, width * tokenizer.factor

    def continued(
        self,
        texts: Sequence[str] | str | None,
        count: int | None,
        clip: Tensor | None,
        frames: int | None,
        overlap: int | None,
        seed: Seed,
        first: int,
        settings: Any,
    ) -> Tensor:
        """Clips (b, c, t, H, W) in 0..1, of `frames` frames."""
        context, number, _ = self.prepared(texts, count, seed, first)
        length, height, width = self.clip_shape
        clips = torch.zeros(number, self.tokenizer.config.channels, 0, height, width)
        clips = clips.to(self.weight.device)
        if clip is not None:
            clips = self.checked(clip).expand(number, -1, -1, -1, -1)
        overlap = self.checked_overlap(overlap)
        if frames is None:  # of a clip that is as long already, one chunk more
            begun = clips.shape[2]
            more = length - self.known_frames(begun, overlap) if begun >= length else length - begun
            frames = begun + more
        if frames > length == 1:
            raise ValueError("this model generates single frames; train it with frames above 1")
        if frames < 1:
            raise ValueError(f"frames is {frames}; it must be 1 or more")
        if frames <= clips.shape[2]:
            raise ValueError(
                f"the clip has {clips.shape[2]} frames already; frames is {frames}: give a larger"
                " number, or a shorter clip"
            )
        numbers = range(first, first + number)
        while clips.shape[2] < frames:
            # The frame at which a chunk begins is part of its key: chunks are alike however a
            # clip came to its length.
            start = clips.shape[2]
            keys = sample_keys(seed_of_chunk(seed, start), numbers, self.key_name)
            known = self.known_frames(start, overlap)
            new = self.chunk(clips[:, :, start - known :], known, keys, context, settings)
            clips = torch.cat((clips, new[:, :, known : known + frames - start]), 2)
        return clips

    def known_frames(self, frames: int, overlap: int) -> int:
        """Frames that a chunk takes from a clip of so many."""
        step = self.tokenizer.time_factor
        return 1 + min(frames - 1, overlap) // step * step if frames else 0

    def checked(self, clip: Tensor) -> Tensor:
        clip = (clip[:, None] if clip.ndim == 3 else clip).to(self.weight.device)
        _, height, width = self.clip_shape
        channels = self.tokenizer.config.channels
        if clip.ndim != 4 or (clip.shape[0], *clip.shape[2:]) != (channels, height, width):
            raise ValueError(
                f"the clip is {tuple(clip.shape)}, but this model continues clips of {height} x"
                f" {width} pixels: give ({channels}, t, {height}, {width})"
            )
        return clip[None]

    def checked_overlap(self, overlap: int | None) -> int:
        """Frames, beside the first, that a chunk has in common with the one before."""
        latent, step = self.config.grid[0], self.tokenizer.time_factor
        most = (latent - 2) * step
        frames = (latent - 1) // 2 * step if overlap is None else overlap
        if not 0 <= frames <= max(most, 0):
            raise ValueError(f"overlap is {frames}; it must be 0 to {most} frames")
        return frames


def seed_of_chunk(seed: Seed, start: int) -> Seed:
    at_start = lambda own: fold(own, "chunk", start)
    return at_start(seed) if isinstance(seed, int) else [(at_start(own), n) for own, n in seed]


C = TypeVar("C", bound=ContinuingGenerator)


class ClipTrainer(GeneratorTrainer[C]):
    """What the trainers of generators of clips share."""

    Task: ClassVar[type[Any]]

    def __init__(self, model: C, dataset: Any = None, **keywords: Any):
        frames, height, width = model.clip_shape
        derived = {
            "videos.frames": frames,
            "videos.size": (height, width),
            "videos.channels": model.tokenizer.config.channels,
        }
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: Any) -> OwnVideos:
        return OwnVideos(dataset, recipe.videos.frames, recipe.videos.channels)

    def open(self, recipe: Any) -> Any:
        return open_data(recipe.data, recipe.videos, "train", recipe.seed)

    def task(self, recipe: Any) -> Any:
        return self.Task(recipe, self.model, self.sets)


def read_start(path: Path, size: tuple[int, int], channels: int) -> Tensor:
    """(c, t, h, w) in 0..1 of a video or an image, resized and cropped to a size."""
    import numpy as np

    from quintet.media.clips.reader import SUFFIXES, frames_of
    from quintet.media.pixels import read_image, resize_crop
    from quintet.shared.tokenizer.pixels import in_channels

    moving = path.suffix.lower() in SUFFIXES
    frames = frames_of(path) if moving else iter([read_image(path)])
    resized: list[Any] = []
    for frame in frames:
        go_on()
        resized.append(resize_crop(frame, size))
    array = in_channels(np.stack(resized), channels)
    return torch.from_numpy(array).permute(3, 0, 1, 2).float() / 255


def rate_of(clip: Path | None, fps: float | None, default: float) -> float:
    """Frames per second to write: as asked, else those of a video, else the default."""
    from quintet.media.clips.reader import SUFFIXES, probe

    moving = clip is not None and clip.suffix.lower() in SUFFIXES
    return fps or (probe(clip).rate if clip is not None and moving else default)
