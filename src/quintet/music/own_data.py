"""A user's own data set of sounds with captions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import Key
from quintet.shared.own_data import OwnData, as_ids, as_mono, as_tensor, kind_of


class OwnSounds(OwnData):
    """Items hold a sound (n,) or (channels, n), mixed down to mono, and its caption as a string or
    as token ids. A sound longer than `longest` samples is cropped, at random by its key."""

    fields = {
        "wavs": "wavs",
        "wav": "wavs",
        "audio": "wavs",
        "texts": "texts",
        "raw_texts": "raw_texts",
        "raw_text": "raw_texts",
        "text": "raw_texts",
        "caption": "raw_texts",
    }
    items = "floats are sounds, strings are raw_texts, integers are texts (token ids)"

    def __init__(self, dataset: Any, longest: int, names: Sequence[str] = ()):
        super().__init__(dataset, names)
        self.longest = longest

    def texts(self, index: int) -> list[str]:
        return [self.keyed(index, None)["text"]]

    def length(self, index: int) -> int:
        """The maximum: the length of a sound is known only once it is read."""
        return self.longest

    def field(self, name: str, value: Any) -> str:
        """Strings are never token ids, whatever their name."""
        return "raw_texts" if name == "texts" and isinstance(value, str) else self.fields[name]

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        if len(values) < 2:
            kind = type(values[0]).__name__ if values else "nothing"
            raise TypeError(
                f"{where} has only {kind}; items must be dicts, or tuples of a sound and a caption"
            )
        return [(self._by_type(value, where), value) for value in values]

    def _by_type(self, value: Any, where: str) -> str:
        value = as_tensor(value)
        if isinstance(value, str):
            return "raw_texts"
        if isinstance(value, Tensor) and value.is_floating_point():
            return "wavs"
        if isinstance(value, Tensor) and value.dtype == torch.int64:
            return "texts"
        raise TypeError(
            f"{where} has a field of {kind_of(value)}, which cannot be routed; {self.items}"
        )

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        if "wavs" not in fields:
            raise TypeError(f"{where} has no sound; {self.items}")
        if ("texts" in fields) == ("raw_texts" in fields):
            raise TypeError(f"{where} needs one caption, a string or token ids; {self.items}")
        wav = as_mono(fields["wavs"], f"the sound of {where}")
        if not wav.isfinite().all():
            raise ValueError(f"the sound of {where} has non-finite samples")
        wav = self._crop(wav, key)
        sample = {"wav": wav, "length": len(wav), "text": str(fields.get("raw_texts", ""))}
        if "texts" in fields:
            remedy = "token ids (t,), or strings as raw_texts"
            sample["tokens"] = as_ids(fields["texts"], f"texts of {where}", remedy)
        return sample

    def _crop(self, wav: Tensor, key: Key | None) -> Tensor:
        spare = len(wav) - self.longest
        if spare <= 0:
            return wav
        start = key.random("crop").random() if key is not None else 0.5
        first = round(start * spare)
        return wav[first : first + self.longest].clone()
