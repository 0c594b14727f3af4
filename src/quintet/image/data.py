"""Images from a folder, and the built-in procedural scenes.

A sample is {"image": uint8 (c, h, w), "text": str}. Its augmentation is drawn from its key; without
a key it is the largest centre crop, not flipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quintet.engine.data.source import Source
from quintet.image.config import ImageDataConfig
from quintet.media.pixels import SUFFIXES, UNREAD, check_size, read_crop, read_image
from quintet.media.splits import Builtin, InFolder, Key, Problem, Split
from quintet.shared.checking import check_files
from quintet.shared.scenes import figures, scenes
from quintet.shared.tokenizer.pixels import check_channels, in_channels


def _random_flip(pixels: npt.NDArray[np.uint8], key: Key | None, flip: bool) -> torch.Tensor:
    """(c, h, w) to a tensor, flipped horizontally for half of the keys."""
    if flip and key is not None and key.random("flip").random() < 0.5:
        pixels = pixels[:, :, ::-1]
    return torch.from_numpy(np.ascontiguousarray(pixels))


class ImageFolder(InFolder):
    """Images of a folder, with captions from its metadata."""

    Config = ImageDataConfig

    suffixes, unread, what = SUFFIXES, UNREAD, "images"

    def range_settings(self) -> object:
        return self.config.max_pixels, self.config.max_bytes

    def examine(self, path: Path) -> float:
        check_size(path, self.config.max_pixels, self.config.max_bytes)
        return 0.0

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The image, cropped and flipped by the key, and its caption."""
        pixels = _read_crop(self.path(index), self.config, key)
        pixels = in_channels(pixels, self.config.channels).transpose(2, 0, 1)
        image = _random_flip(pixels, key, self.config.flip)
        return {"image": image, "text": self.text(index)}


def _read_crop(path: Path, config: ImageDataConfig, key: Key | None) -> npt.NDArray[np.uint8]:
    scale, top, left = 1.0, 0.5, 0.5
    if key is not None and config.min_crop < 1:
        draw = key.random("crop")
        scale, top, left = draw.uniform(config.min_crop, 1), draw.random(), draw.random()
    return read_crop(
        path,
        config.size,
        scale=scale,
        top=top,
        left=left,
        max_pixels=config.max_pixels,
        max_bytes=config.max_bytes,
        alpha=config.channels == 4,
    )


def check(
    folder: Path | str,
    config: ImageDataConfig = ImageDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, Problem | None]]:
    """Each image of a folder, fully decoded, with its defect or None."""
    every = replace(config, valid_limit=maxsize)

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
        pixels = in_channels(pixels, self.config.channels).transpose(2, 0, 1)
        image = _random_flip(pixels, key, self.config.flip)
        return {"image": image, "text": scene.caption}


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
        pixels = in_channels(pixels, self.config.channels).transpose(2, 0, 1)
        return {"image": _random_flip(pixels, None, False), "text": scene.caption}


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
