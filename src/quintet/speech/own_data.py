"""A user's own data set of recordings."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.engine.keys import Key
from quintet.shared.own_data import OwnData, as_ids, as_sound, as_tensor, kind_of
from quintet.speech.data import Buckets


class OwnRecordings(OwnData):
    """Items are recordings alone, tuples of a recording and its text, or dicts.

    A recording is a sound (n,) or (channels, n), mixed down to mono, or latents (t, c). Its text is
    a string, or ids (m,) of the user's own; without one the model learns to continue speech.
    """

    fields = {
        "audio": "audio",
        "wav": "audio",
        "wave": "audio",
        "latents": "audio",
        "text": "text",
        "texts": "text",
        "transcript": "text",
        "ids": "ids",
        "phoneme_ids": "ids",
        "semantic_token_ids": "ids",
    }
    items = "give a sound, (sound, text), or a dict of them"

    def __init__(self, dataset: Any, buckets: Buckets):
        super().__init__(dataset)
        self.buckets = buckets

    def size(self, index: int) -> tuple[int, int]:
        """Frames and characters; for an unusable sample the largest possible."""
        try:
            item = self.keyed(index, None)
        except ValueError:
            return self.buckets.largest
        ids = item["ids"] if "ids" in item else self.buckets.ids(item["text"])
        per_frame = self.buckets.model.text == "given"
        return self.buckets.num_frames(len(item["audio"])), 0 if per_frame else len(ids)

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        if len(values) > 2:
            raise TypeError(f"{where} has {len(values)} fields; {self.items}")
        names = ["audio", *("text" if isinstance(value, str) else "ids" for value in values[1:])]
        return list(zip(names, values))

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        if "audio" not in fields:
            raise TypeError(f"{where} has no audio; {self.items}")
        model, config = self.buckets.model, self.buckets.config
        audio = as_audio(fields["audio"], model.n_mels if self.buckets.latents else None, where)
        if not self.buckets.latents and len(audio) > config.max_seconds * model.sample_rate:
            raise ValueError(
                f"{where} lasts {len(audio) / model.sample_rate:.1f} s, more than max_seconds ="
                f" {config.max_seconds:g}; cut it, or raise max_seconds"
            )
        sample: dict[str, Any] = {"audio": audio, "text": None}
        if model.text == "none":
            return sample
        if "ids" in fields:
            ids = as_ids(fields["ids"], f"ids of {where}", "(m,) integers")
            frames = self.buckets.num_frames(len(audio))
            if model.text == "given" and len(ids) != frames:
                raise TypeError(
                    f"{where} has {len(ids)} ids and {frames} frames; give one per frame"
                )
            return sample | {"ids": ids}
        if model.text == "given":
            raise TypeError(f"{where} has no ids, but this model takes one per frame")
        if fields.get("text") is not None:
            sample["text"] = self.buckets.check(len(audio), str(fields["text"]))
        return sample


def as_audio(value: Any, width: int | None, where: str) -> Tensor:
    """(n,) samples, or (t, width) latents."""
    what = f"the audio of {where}"
    if width is None:
        return as_sound(value, 1, what)
    audio = as_tensor(value)
    if not isinstance(audio, Tensor) or not audio.is_floating_point():
        raise TypeError(f"{what} is {kind_of(audio)}; give floating-point latents")
    audio = audio.detach().float()
    if audio.ndim != 2 or audio.shape[1] != width or not len(audio):
        raise TypeError(f"{what} has shape {tuple(audio.shape)}; give (t, {width})")
    if not audio.isfinite().all():
        raise ValueError(f"{what} has values that are not finite")
    return audio
