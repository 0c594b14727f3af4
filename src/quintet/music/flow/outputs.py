"""Outputs of a flow generator of music: what it makes of held-out captions."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.engine.task import Batch
from quintet.music.flow.data import sounds_of
from quintet.shared.generation.outputs import Generated
from quintet.shared.outputs import Group, Sound, sixteen_bits


class GeneratedMusic(Generated):
    task: Any

    def preparation(self) -> dict[str, str]:
        return {
            "rate": f"{self.task.rate} Hz, resampled by soxr",
            "length": f"the middle {self.task.recipe.sounds.seconds:g} s, mixed to mono",
        }

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        """As sounds, in mono."""
        group = super().make(items, batch)
        captions = batch.data["text"]
        heard = lambda sounds: [
            Sound(sound, self.task.rate, text) for sound, text in zip(sounds, captions)
        ]
        baselines = {name: heard(sounds) for name, sounds in group.baselines.items()}
        return Group(
            heard(group.originals), heard(group.outputs), baselines, captions=group.captions
        )

    def _pixels(self, item: Any) -> Tensor:
        return sounds_of(item["audio"][None])[0]

    def shown(self, pixels: Tensor) -> Any:
        """int16 as a file holds it."""
        return sixteen_bits(pixels.mean(0))


outputs = GeneratedMusic
