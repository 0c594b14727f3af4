"""Pictures or clips with captions, whose codes are cached."""

from collections.abc import Sequence
from hashlib import blake2b, file_digest
from math import prod
from os import fsencode
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from quintet.engine.keys import Key
from quintet.media.errors import BadFile
from quintet.media.splits import Builtin, InFolder
from quintet.shared.captions import folder_caption
from quintet.shared.code_cache import CachedCodes, OfSource, VariantKey
from quintet.shared.scenes import figures

PREPARED = 2
"""Version of the preparation; increment on any change, to invalidate cached codes."""
PIXELS = 2**22
"""Pixels encoded together on CUDA: autoencoders of the size of Stable Diffusion's have about 2 GB
of activations in each of their widest layers then."""


class CaptionedPixels(OfSource):
    """Samples of a room with captions and digests: those of a folder, where a file without a
    caption has the name of its subfolder (a class); built-in ones; or a data set of the user."""

    def __init__(self, source: Any, field: str, config: Any):
        self.source, self.field = source, field
        crop = (config.size, config.channels, config.flip, config.min_crop)
        video = (getattr(config, name, None) for name in ("frames", "fps", "min_rate_factor"))
        self.pixels = prod(config.size) * (getattr(config, "frames", None) or 1)
        built_in = (config.builtin, figures.VERSION)
        self.settings = repr((PREPARED, crop, tuple(video), built_in)).encode()

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        item = self.source.keyed(index, key)
        if isinstance(self.source, InFolder):
            item["text"] = self.text(index)
        return item

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """A fixed augmentation, the same in every epoch; 0 is the original."""
        if not number:
            return self.keyed(index, None)
        own = not isinstance(self.source, (InFolder, Builtin))
        key: Any = Key(0, number, index) if own else VariantKey(self.name(index), number)
        return self.keyed(index, key)

    def text(self, index: int) -> str:
        if isinstance(self.source, InFolder):
            return self.source.text(index) or folder_caption(self.name(index))
        if isinstance(self.source, Builtin):
            return self.source.scene(index).caption  # type: ignore[attr-defined]
        return self.source.keyed(index, None)["text"]

    def digest(self, index: int) -> str:
        digest = blake2b(self.settings + fsencode(self.name(index)), digest_size=16)
        if isinstance(self.source, InFolder):
            digest.update(digest_of(self.source.path(index)))
        elif not isinstance(self.source, Builtin):
            pixels = self.source.keyed(index, None)[self.field]
            digest.update(np.ascontiguousarray(pixels.numpy()).tobytes())
        return digest.hexdigest()


def digest_of(path: Path) -> bytes:
    """Digest of the content of a file."""
    try:
        with path.open("rb") as file:
            return file_digest(file, blake2b).digest()
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})", "check it") from error


def in_floats(pixels: Tensor, network: Any) -> Tensor:
    """Pixels in 0..1, in the dtype of the network."""
    dtype = next(network.parameters()).dtype
    return pixels.to(dtype) / 255 if pixels.dtype == torch.uint8 else pixels.to(dtype)


class CodeData(CachedCodes):
    """Dataset of the codes of pictures or clips by a frozen tokenizer, and captions."""

    kind: ClassVar[str] = "codes"
    grid: tuple[int, ...] = ()
    """Codes along each axis."""

    def __init__(self, source: CaptionedPixels, variants: int, weights: str):
        self.cache, self.what = f"{source.field}-{self.kind}", f"{source.field}s"
        self.field = source.field
        self.batch = max(1, min(PIXELS // source.pixels, 256))
        super().__init__(source, variants, weights)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        return {**super().keyed(index, key), "grid": self.grid}

    @torch.no_grad()
    def encode(self, network: Any, batch: Any, device: torch.device) -> Sequence[Tensor]:
        with torch.autocast(device.type, enabled=False):
            codes = network.to_codes(in_floats(batch[self.field].to(device), network))
        return [*self.rows(codes).to(self.dtype_of(network)).cpu()]

    def rows(self, codes: Tensor) -> Tensor:
        """Codes (b, n, …), one row for each position."""
        return codes.flatten(1)
