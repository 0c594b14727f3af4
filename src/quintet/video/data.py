"""Clips and images from a folder, and the built-in procedural clips.

A sample is {"video": uint8 (c, t, h, w), "still": bool, "text": str}. An image is a static clip,
marked by `still`, unless `pan` moves the crop over it. The augmentation of a sample is drawn from
its key; without a key it is the middle of the clip, the largest centre crop, not flipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import torch

from quintet.engine.data.source import Source
from quintet.media import pixels
from quintet.media.clips import reader as clips
from quintet.media.clips.whole import LARGEST, SHORT, whole_size
from quintet.media.clips.windows import Caps, Whole
from quintet.media.pixels import Pixels
from quintet.media.splits import Builtin, InFolder, Key, Problem, Split, check_files
from quintet.shared.scenes import figures
from quintet.shared.tokenizer.pixels import (
    check_channels,
    in_channels,
    random_crop,
    resize_crop_fast,
)
from quintet.video import motion
from quintet.video.clip_cache import ClipCache
from quintet.video.config import VideoDataConfig

SUFFIXES = tuple(dict.fromkeys((*clips.SUFFIXES, *pixels.SUFFIXES)))


def _sample(
    frames: Pixels, key: Key | None, config: VideoDataConfig, still: bool, text: str
) -> dict[str, Any]:
    """(t, h, w, 3) to a tensor (c, t, h, w), flipped horizontally for half of the keys."""
    frames = in_channels(frames, config.channels)
    if config.flip and key is not None and key.random("flip").random() < 0.5:
        frames = frames[:, :, ::-1]
    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(3, 0, 1, 2)))
    return {"video": video, "still": still, "text": text}


class VideoFolder(InFolder):
    """Videos and images of a folder, with captions from its metadata."""

    Config = VideoDataConfig

    suffixes, what = SUFFIXES, "videos or images"
    unread = (*clips.UNREAD, *pixels.UNREAD)

    def __init__(
        self, folder: Path | str, config: VideoDataConfig, split: Split, seed: int
    ) -> None:
        super().__init__(folder, config, split, seed)
        # Validation has one window for each clip.
        sizes = [int(self.extent(i)) if split == "train" else 0 for i in range(len(self))]
        self.cache = ClipCache(sizes, _decode_size(config), _caps(config))

    def range_settings(self) -> object:
        return _caps(self.config), _decode_size(self.config), SHORT, LARGEST

    def examine(self, path: Path) -> float:
        """The bytes of a short video decoded as a whole."""
        if path.suffix.lower() in clips.SUFFIXES:
            return whole_size(path, at_least=_decode_size(self.config), caps=_caps(self.config))
        pixels.check_size(path, self.config.max_pixels, self.config.max_bytes)
        return 0.0

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The clip, with start, rate, crop and flip by the key, and its caption."""
        path = self.path(index)
        still = _is_still(path, self.config)
        if still:
            frames = _read_still(path, self.config)
        else:
            whole = None if key is None else self.cache.whole(index, path)
            frames = _read_clip(path, self.config, key, whole)
        if still and self.config.pan and key is not None:
            still, cropped = False, _pan(frames[0], self.config, key)
        else:
            crop = random_crop(self.config, key)
            resample = clips.resize_crop_clip if still or key is None else resize_crop_fast
            cropped = resample(frames, self.config.size, **crop)
        if still:
            cropped = np.broadcast_to(cropped, (self.config.frames, *cropped.shape[1:]))
        return _sample(cropped, key, self.config, still, self.text(index))


def _caps(config: VideoDataConfig) -> Caps:
    return Caps(config.max_pixels, config.max_bytes, config.max_seconds, config.max_frames)


def _is_still(path: Path, config: VideoDataConfig) -> bool:
    """Whether it is an image or a GIF of one frame."""
    suffix = path.suffix.lower()
    if suffix == ".gif":
        return clips.probe(path, _caps(config)).frames == 1
    return suffix not in clips.SUFFIXES


def _decode_size(config: VideoDataConfig) -> int:
    # Twice the size of the crop, so that the final resampling is Lanczos.
    return int(2 * max(config.size) / config.min_crop)


def _read_still(path: Path, config: VideoDataConfig) -> Pixels:
    return pixels.read_image(
        path,
        max_pixels=config.max_pixels,
        max_bytes=config.max_bytes,
        at_least=_decode_size(config),
    )[None]


def _read_clip(path: Path, config: VideoDataConfig, key: Key | None, whole: Whole | None) -> Pixels:
    start, factor = 0.5, 1.0
    if key is not None:
        draw = key.random("window")
        start = draw.random()
        # Skip whole numbers of frames: fractions would make uniform motion stutter.
        factor = 1 / draw.randint(1, int(1 / config.min_rate_factor + 1e-6))
    return clips.read_clip(
        path,
        count=config.frames,
        start=start,
        rate=config.fps,
        rate_factor=factor,
        at_least=_decode_size(config),
        caps=_caps(config),
        whole=whole,
    )


def _pan(image: Pixels, config: VideoDataConfig, key: Key) -> Pixels:
    """A moving camera: crops on the way from one random crop towards another."""
    draw = key.random("crop")
    ends = [(draw.uniform(config.min_crop, 1), draw.random(), draw.random()) for _ in range(2)]
    glide = np.linspace(0, config.pan * draw.random(), config.frames)[:, None]
    crops = (1 - glide) * ends[0] + glide * ends[1]
    return np.stack(
        [
            pixels.resize_crop(image, config.size, scale=scale, top=top, left=left)
            for scale, top, left in crops.tolist()
        ]
    )


def check(
    folder: Path | str,
    config: VideoDataConfig = VideoDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, Problem | None]]:
    """Each file of a folder with its defect or None.

    Images are fully decoded; of videos the first and the last window, which detects truncation.
    """
    every = replace(config, valid_limit=maxsize, exclude_held_out=False)

    def examine(path: Path) -> None:
        if _is_still(path, config):
            _read_still(path, config)
        else:
            clips.check_clip(path, count=config.frames, caps=_caps(config))

    return check_files(VideoFolder, folder, every, lambda _: examine)


class BuiltinClips(Builtin):
    """Procedural clips with captions."""

    what = "clip"

    def scene(self, index: int) -> motion.Scene:
        """The description of the clip."""
        return motion.compose(self.number(index), self.seed)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The clip, flipped by the key, and its caption."""
        scene = self.scene(index)
        frames = motion.draw(scene, self.config.frames, *self.config.size)
        return _sample(frames, key, self.config, False, scene.caption)


class BuiltinFigures(Builtin):
    """Procedural clips of one plain figure, with captions that say all."""

    what = "clip"

    def scene(self, index: int) -> figures.Picture:
        """The description of the clip."""
        single = self.config.builtin == "figure"
        return figures.compose(self.number(index), self.seed, moving=True, single=single)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The clip, never flipped, and its caption."""
        scene = self.scene(index)
        frames = figures.draw_clip(scene, self.config.frames, *self.config.size)
        return _sample(frames, None, self.config, False, scene.caption)


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch: videos uint8 (b, c, t, h, w), still bool (b,), texts a list."""
    dtypes = {item["video"].dtype for item in items}
    if len(dtypes) > 1:  # stacking would promote uint8 to floats 255 times too large
        mixed = " and ".join(sorted(map(str, dtypes)))
        raise TypeError(f"clips of one batch are {mixed}: use uint8 for all, or floats for all")
    return {
        "video": torch.stack([item["video"] for item in items]),
        "still": torch.tensor([item["still"] for item in items]),
        "text": [item["text"] for item in items],
    }


def open_data(
    folder: Path | str | None, config: VideoDataConfig, split: Split, seed: int
) -> Source:
    """The videos and images of a folder, or the built-in clips without one.

    The seed chooses the validation files of a folder. The built-in clips do not depend on it, so
    that runs with different seeds are evaluated on the same clips.
    """
    check_channels(config.channels, (1, 3), "clips from files")
    if folder is None:
        return (BuiltinClips if config.builtin == "scenes" else BuiltinFigures)(config, split)
    return VideoFolder(folder, config, split, seed)


Folder = VideoFolder
