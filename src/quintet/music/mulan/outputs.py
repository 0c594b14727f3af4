"""Outputs of MuLaN: embeddings of sounds, to be found among those of their captions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quintet.engine.task import Batch
from quintet.music.mulan.task import MuLaNTask
from quintet.shared.outputs import Caption, Group, Outputs, Sound, sixteen_bits


class Embeddings(Outputs):
    task: MuLaNTask
    compares = "embeddings"

    def preparation(self) -> dict[str, str]:
        config = self.task.recipe.sounds
        return {
            "rate": f"{config.sample_rate} Hz, resampled by soxr",
            "length": f"at most {config.seconds:g} s, from the middle",
            "caption": "the first of each sound",
        }

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        rate = self.task.recipe.sounds.sample_rate
        sounds = [Sound(sixteen_bits(item["wav"]), rate, item["text"]) for item in items]
        rows = self.task.measure(self.nets, batch)
        audio, text = (rows[name].values.double().cpu().numpy() for name in ("audio", "text"))  # type: ignore[union-attr]
        chance = [np.random.default_rng(i).normal(size=audio.shape[1]) for i in batch.ids]
        captions = [Caption(item["text"], vector) for item, vector in zip(items, text)]
        return Group(sounds, [*audio], {"chance": chance}, references=captions)


outputs = Embeddings
