"""Windows of songs with captions: of a folder, a data set of the user's, or built in.

A sample is {"audio": (n,) or (n, channels), "text": str}, float32 or int16 (shared/segments.py).
"""

from collections.abc import Sequence
from hashlib import blake2b
from os import fsencode
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.data.source import Source
from quintet.engine.data.wire import Fractions, to_floats
from quintet.engine.keys import Key
from quintet.media.audio import to_16_bits
from quintet.media.splits import Builtin, InFolder, Split
from quintet.music import songs
from quintet.music.data import Captions, described
from quintet.music.flow.config import SongDataConfig
from quintet.shared import segments
from quintet.shared.captions import folder_caption
from quintet.shared.code_cache import OfSource, VariantKey
from quintet.shared.flow.data import LatentData
from quintet.shared.generation.data import digest_of
from quintet.shared.own_data import as_tensor
from quintet.shared.segments import Recordings, Segments

PREPARED = 1
"""Version of the preparation and of the built-in songs; increment on any change, to invalidate
cached latents."""
SAMPLES = 2**24
"""Samples encoded together on CUDA."""


class SongFolder(Recordings):
    """Windows of the recordings of a folder, with captions of its metadata, of text files, or of
    the names of its subfolders."""

    Config = SongDataConfig
    what = "songs"
    described = staticmethod(described)

    def usable(self, names: list[str]) -> list[str]:
        self._captions = Captions(self.folder, names)
        return names

    def text(self, index: int) -> str:
        name = self.name(index)
        if self.shards is not None:
            row = self.row(index)
            return str(row.get("text") or next(iter(row.get("texts") or ()), "")) or (
                folder_caption(name)
            )
        return self._captions.of(name)[0] if name in self._captions else folder_caption(name)


class BuiltinSongs(Builtin):
    what = "song"

    def __init__(self, config: SongDataConfig, split: Split, windows: Segments) -> None:
        super().__init__(config, split)
        self.windows = windows

    def text(self, index: int) -> str:
        return songs.compose(self.number(index), self.config.builtin).caption

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        windows, number = self.windows, self.number(index)
        seconds = windows.train / windows.rate
        place = None if key is None else windows.start(key)
        audio = songs.play(number, self.config.builtin, seconds, windows.rate, place)
        sound = torch.from_numpy(to_16_bits(audio))
        channels = windows.channels
        return {"audio": sound if channels == 1 else sound[:, None].expand(-1, channels)}


class OwnSongs(segments.OwnSounds):
    """A user's own data set: dicts with a sound (n,) or (channels, n) and a caption, or pairs."""

    fields = {**segments.OwnSounds.fields, "text": "text", "caption": "text"}
    items = "give a dict with 'audio' and 'text', or a sound and its caption"

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        if len(values) < 2:
            raise TypeError(f"{where} has no caption; {self.items}")
        return [("audio", values[0]), ("text", values[1])]

    def sample(self, fields: dict[str, Any], where: str, key: Any) -> dict[str, Any]:
        return {**super().sample(fields, where, key), "text": str(fields.get("text", ""))}

    def whole(self, index: int) -> bytes:
        """All samples of a sound, of which a window is taken."""
        where = f"sample {self.indices[index]}"
        fields = self.route(self.source.keyed(self.indices[index], None), where)
        return np.ascontiguousarray(as_tensor(fields["audio"]).numpy()).tobytes()


def open_songs(
    folder: str | None, config: SongDataConfig, split: Split, seed: int, windows: Segments
) -> Source:
    if folder is None:
        return BuiltinSongs(config, split, windows)
    return SongFolder(folder, config, split, seed, windows)  # type: ignore[arg-type]


class CaptionedSongs(OfSource):
    """Windows with captions and digests, for the cache of latents."""

    field = "song"
    """A noun for the cache and for messages."""

    def __init__(self, source: Any, config: SongDataConfig, windows: Segments) -> None:
        self.source, self.config = source, config
        self.pixels = windows.train * windows.channels
        window = (windows.train, windows.rate, windows.channels)
        about = (PREPARED, window, songs.KINDS[config.builtin])
        self.settings = repr(about).encode()

    def text(self, index: int) -> str:
        if isinstance(self.source, OwnSongs):
            return self.source.keyed(index, None)["text"]
        return self.source.text(index)

    def keyed(self, index: int, key: Any) -> dict[str, Any]:
        return {**self.source.keyed(index, key), "text": self.text(index)}

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """A window at a place that stays the same; 0 is the middle."""
        if not number:
            return self.keyed(index, None)
        own = isinstance(self.source, OwnSongs)
        key: Any = Key(0, number, index) if own else VariantKey(self.name(index), number)
        return self.keyed(index, key)

    def digest(self, index: int) -> str:
        digest = blake2b(self.settings + fsencode(self.name(index)), digest_size=16)
        if isinstance(self.source, InFolder):
            digest.update(digest_of(self.source.path(index)))
        elif not isinstance(self.source, Builtin):
            digest.update(self.source.whole(index))
        return digest.hexdigest()


class SongLatents(LatentData):
    """Latents of windows; a short sound is padded with silence."""

    def __init__(self, source: CaptionedSongs, variants: int, weights: str) -> None:
        super().__init__(source, variants, weights)  # type: ignore[arg-type]
        self.batch = max(1, min(SAMPLES // source.pixels, 256))

    @torch.no_grad()
    def encode(self, network: Any, batch: Any, device: torch.device) -> list[Tensor]:
        sounds = sounds_of(batch["audio"]).to(device)
        with torch.autocast(device.type, enabled=False):
            codes = network.to_codes(sounds.to(next(network.parameters()).dtype))
        return [*self.rows(codes).to(self.dtype_of(network)).cpu()]


def sounds_of(audio: Any) -> Tensor:
    """(b, c, n) of what `segments.collate` makes."""
    values = to_floats(audio.values if isinstance(audio, Fractions) else audio)
    return values[:, None] if values.ndim == 2 else values.mT.contiguous()
