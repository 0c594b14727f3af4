"""Images from a folder, and the built-in procedural scenes.

A sample is {"image": uint8 (c, h, w), "text": str}. Its augmentation is drawn from its key; without
a key it is the largest centre crop, not flipped.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import torch

from quintet.engine.data.source import Source
from quintet.image.config import ImageDataConfig
from quintet.media.pixels import (
    SUFFIXES,
    UNREAD,
    Pixels,
    check_size,
    read_crop,
    read_image,
    upright_extent,
)
from quintet.media.splits import Builtin, InFolder, Key, Problem, Split, check_files
from quintet.shared.scenes import figures, scenes
from quintet.shared.tokenizer.pixels import check_channels, in_channels, random_crop


def _sample(pixels: Pixels, key: Key | None, config: ImageDataConfig, text: str) -> dict[str, Any]:
    """(h, w, 3 or 4) to a tensor (c, h, w), flipped horizontally for half of the keys."""
    pixels = in_channels(pixels, config.channels)
    if config.flip and key is not None and key.random("flip").random() < 0.5:
        pixels = pixels[:, ::-1]
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return {"image": image, "text": text}


class ImageFolder(InFolder):
    """Images of a folder, with captions from its metadata."""

    Config = ImageDataConfig

    suffixes, unread, what = SUFFIXES, UNREAD, "images"

    def range_settings(self) -> object:
        return self.config.max_pixels, self.config.max_bytes

    def examine(self, path: Path) -> float:
        check_size(path, self.config.max_pixels, self.config.max_bytes)
        return 0.0

    def ratios(self) -> list[float]:
        """Width for height of each image, as it is shown; 1 of an unreadable one."""
        limits = self.config.max_pixels, self.config.max_bytes
        ratios: list[float] = []
        for index in range(len(self)):
            try:
                width, height = upright_extent(self.path(index), *limits)
            except (OSError, ValueError):
                width = height = 1  # reading it raises the actual error
            ratios.append(width / height)
        return ratios

    def shaped(self, size: tuple[int, int], indices: Sequence[int]) -> "ImageFolder":
        """Some images, cropped to another size."""
        part = copy.copy(self)
        part.config = replace(self.config, size=size)
        part._names = [self._names[index] for index in indices]
        return part

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The image, cropped and flipped by the key, and its caption."""
        config = self.config
        pixels = read_crop(
            self.path(index),
            config.size,
            **random_crop(config, key),
            max_pixels=config.max_pixels,
            max_bytes=config.max_bytes,
            alpha=config.channels == 4,
        )
        return _sample(pixels, key, config, self.text(index))


def check(
    folder: Path | str,
    config: ImageDataConfig = ImageDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, Problem | None]]:
    """Each image of a folder, fully decoded, with its defect or None."""
    every = replace(config, valid_limit=maxsize, exclude_held_out=False)

    def examine(path: Path) -> None:
        read_image(path, max_pixels=config.max_pixels, max_bytes=config.max_bytes)

    return check_files(ImageFolder, folder, every, lambda _: examine)


class BuiltinImages(Builtin):
    """Procedural scenes with captions."""

    what = "scene"

    def scene(self, index: int) -> scenes.Scene:
        """The description of the image."""
        return scenes.compose(self.number(index), self.seed)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The image, flipped by the key, and its caption."""
        scene = self.scene(index)
        pixels = scenes.draw(scene, *self.config.size).transpose(1, 2, 0)
        return _sample(pixels, key, self.config, scene.caption)


class BuiltinFigures(Builtin):
    """Procedural pictures of a few plain figures, with captions that say all."""

    what = "picture"

    def scene(self, index: int) -> figures.Picture:
        """The description of the image."""
        single = self.config.builtin == "figure"
        return figures.compose(self.number(index), self.seed, single=single)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The image, never flipped, and its caption."""
        scene = self.scene(index)
        pixels = figures.draw(scene, *self.config.size).transpose(1, 2, 0)
        return _sample(pixels, None, self.config, scene.caption)


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch: images uint8 (b, c, h, w), texts a list."""
    return {
        "image": torch.stack([item["image"] for item in items]),
        "text": [item["text"] for item in items],
    }


def open_data(
    folder: Path | str | None, config: ImageDataConfig, split: Split, seed: int
) -> Source:
    """The images of a folder, or the built-in scenes without one.

    The seed chooses the validation images of a folder. The built-in scenes do not depend on it, so
    that runs with different seeds are evaluated on the same images.
    """
    check_channels(config.channels, (1, 3, 4), "image files")
    if folder is None:
        return (BuiltinImages if config.builtin == "scenes" else BuiltinFigures)(config, split)
    return ImageFolder(folder, config, split, seed)


Folder = ImageFolder
