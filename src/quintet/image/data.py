"""Images from a folder, and the built-in procedural scenes.

A sample is {"image": uint8 (3, h, w), "text": str}. What is random about it is drawn from its key;
without a key it is the largest centre crop, not mirrored.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from os import fsencode
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from quintet.image.config import ImageDataConfig
from quintet.media import scenes
from quintet.media.errors import BadFile
from quintet.media.folder import files, read_metadata, relative_name
from quintet.media.pixels import SUFFIXES, read_image, resize_crop

Split = Literal["train", "valid"]


class Key(Protocol):
    """Randomness that belongs to one sample of one epoch."""

    def random(self, name: str) -> Random: ...
    def numpy(self, name: str) -> np.random.Generator: ...


class ImageData(Protocol):
    """What both kinds of data offer."""

    def __len__(self) -> int: ...
    def keyed(self, index: int, key: Key | None) -> dict[str, Any]: ...
    def name(self, index: int) -> str: ...


def _check_split(split: str) -> None:
    if split not in ("train", "valid"):
        raise ValueError(f"split is {split!r}: give 'train' or 'valid'")


def _rank(seed: int, name: str) -> int:
    """A number of 64 bits that depends on nothing but the seed and the file's name."""
    # fsencode, because a name on disk need not be valid UTF-8.
    return int.from_bytes(blake2b(b"%d/" % seed + fsencode(name), digest_size=8).digest(), "big")


def split_names(
    names: Sequence[str], fraction: float, seed: int, limit: int | None = None
) -> tuple[list[str], list[str]]:
    """Names for training and for validation, each in the order given.

    Every name decides for itself, so new files move no old ones. Only where one side would be empty
    the nearest name changes sides; a single file is for training. Past `limit` the held-out names
    that rank last are left out of both.
    """
    ranks = {name: _rank(seed, name) for name in names}
    ordered = sorted(names, key=lambda name: ranks[name])
    held = sum(rank < fraction * 2**64 for rank in ranks.values())
    held = min(max(held, 1), len(names) - 1) if len(names) > 1 else 0
    valid = set(ordered[:held])
    kept = set(ordered[: held if limit is None else min(held, limit)])
    return [n for n in names if n not in valid], [n for n in names if n in kept]


def _mirrored(pixels: npt.NDArray[np.uint8], key: Key | None, wanted: bool) -> torch.Tensor:
    """A tensor of (3, h, w); for half of the keys flipped."""
    if wanted and key is not None and key.random("flip").random() < 0.5:
        pixels = pixels[:, :, ::-1]
    return torch.from_numpy(np.ascontiguousarray(pixels))


class ImageFolder:
    """Images under a folder, with the captions of its metadata.

    Nothing is opened before it is asked for: a damaged image raises BadFile when it is read.
    """

    def __init__(
        self, folder: Path | str, config: ImageDataConfig, split: Split, seed: int
    ) -> None:
        _check_split(split)
        self.folder = Path(folder)
        self.config = config
        found = _find(self.folder)
        names = [relative_name(self.folder, path) for path in found]
        limit = config.valid_limit if split == "valid" else None
        train, valid = split_names(names, config.valid_fraction, seed, limit)
        self._names = train if split == "train" else valid
        self._texts = _texts(self.folder, names)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """The image's path under the folder."""
        return self._names[index]

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The image, cropped and mirrored by the key, and its caption."""
        name = self._names[index]
        pixels = _read_crop(self.folder / name, self.config, key).transpose(2, 0, 1)
        image = _mirrored(pixels, key, self.config.flip)
        return {"image": image, "text": self._texts.get(name, "")}


def _find(folder: Path) -> list[Path]:
    found = files(folder, SUFFIXES)
    if not found:
        reason = f"holds no images ({', '.join(SUFFIXES)})"
        remedy = "put images there or in sub-folders; links that lead out of it are not followed"
        raise BadFile(folder, reason, remedy)
    return found


def _texts(folder: Path, names: Sequence[str]) -> dict[str, str]:
    metadata = read_metadata(folder)
    if metadata and not any(name in metadata for name in names):
        reason = f"its metadata names none of its {len(names)} images"
        raise BadFile(folder, reason, "give paths under the folder in the column `file_name`")
    return {name: row["text"] for name, row in metadata.items() if row.get("text")}


def _read_crop(path: Path, config: ImageDataConfig, key: Key | None) -> npt.NDArray[np.uint8]:
    scale, top, left = 1.0, 0.5, 0.5
    if key is not None and config.min_crop < 1:
        draw = key.random("crop")
        scale, top, left = draw.uniform(config.min_crop, 1), draw.random(), draw.random()
    # Twice what the crop needs, so that the last and best resampling is Lanczos and not the JPEG's.
    at_least = int(2 * max(config.size) / config.min_crop)
    pixels = read_image(
        path, max_pixels=config.max_pixels, max_bytes=config.max_bytes, at_least=at_least
    )
    return resize_crop(pixels, config.size, scale=scale, top=top, left=left)


def check(
    folder: Path | str,
    config: ImageDataConfig = ImageDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, str | None]]:
    """Each image of a folder, read in full, with what is wrong with it or None."""
    for path in _find(Path(folder)):
        try:
            read_image(path, max_pixels=config.max_pixels, max_bytes=config.max_bytes)
        except BadFile as bad:
            yield path, str(bad)
        else:
            yield path, None


class BuiltinImages:
    """Procedural scenes with captions, no two alike, the same in every run.

    Training scenes have even numbers and held-out ones odd numbers, so they never meet.
    """

    def __init__(self, config: ImageDataConfig, split: Split, seed: int = 0) -> None:
        _check_split(split)
        self.config = config
        self.split = split
        self.seed = seed

    def __len__(self) -> int:
        return self.config.builtin_count if self.split == "train" else self.config.valid_limit

    def scene(self, index: int) -> scenes.Scene:
        """What the picture shows."""
        if not 0 <= index < len(self):
            raise IndexError(f"scene {index} of {len(self)}")
        return scenes.compose(2 * index + (self.split == "valid"), self.seed)

    def name(self, index: int) -> str:
        """The scene's place in the built-in data."""
        return f"built-in {self.split} scene {index}"

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The picture, mirrored by the key, and its caption."""
        scene = self.scene(index)
        image = _mirrored(scenes.draw(scene, *self.config.size), key, self.config.flip)
        return {"image": image, "text": scene.caption}


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch: images uint8 (b, 3, h, w), texts a list."""
    return {
        "image": torch.stack([item["image"] for item in items]),
        "text": [item["text"] for item in items],
    }


def open_data(
    folder: Path | str | None, config: ImageDataConfig, split: Split, seed: int
) -> ImageData:
    """The images of a folder, or the built-in scenes where none is given.

    The seed chooses which of a folder's images are held out. The built-in scenes do not depend on
    it, so that runs with different seeds are measured on the same pictures.
    """
    if folder is None:
        return BuiltinImages(config, split)
    return ImageFolder(folder, config, split, seed)
