"""Training of a codec (music/coding.py), and what its copies are compared with: silence, and the
same segments through Opus and MP3."""

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.engine.task import Batch, Measured, Rows, World
from quintet.media import lossy
from quintet.music.codec.config import CodecRecipe
from quintet.music.codec.model import Codec
from quintet.music.coding import CodingTask
from quintet.shared import segments

LOSSY = {"opus_12": ("opus", 12), "opus_24": ("opus", 24), "mp3_32": ("mp3", 32)}
"""Codec and kbit/s of each copy; of stereo both channels together."""


class CodecTask(CodingTask):
    capturable = True
    model: Codec

    def __init__(self, recipe: CodecRecipe, model: Codec | None = None, sets: Any = None) -> None:
        torch.manual_seed(fold(recipe.seed, "weights"))
        super().__init__(recipe, model if model is not None else Codec(recipe.model), sets)
        self.parts[self.main].compiles_captured = False  # it was not measured
        self.others: dict[int, dict[str, Tensor]] = {}
        """Errors of other copies of the held-out sounds, by index."""

    def prepare(self, world: World) -> None:
        missing = lossy.missing()
        if missing and world.is_main:
            sys.stderr.write(
                f"quintet: {' and '.join(missing)} not installed: evaluations are without Opus and"
                " MP3 (pip install 'quintet[audio,video]')\n"
            )

    def check(self, data: Any) -> None:
        segments.check_peak(data["audio"])

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        """Errors of copies, beside those of other codecs, which are computed once."""
        if not all(index in self.others for index in batch.ids):
            rows = self.other_copies(batch)
            for row, index in enumerate(batch.ids):
                self.others[index] = {name: value[row] for name, value in rows.items()}
        known = [self.others[index] for index in batch.ids]
        others = {name: torch.stack([each[name] for each in known]) for name in known[0]}
        return {**super().measure(nets, batch), **{n: Rows(rows) for n, rows in others.items()}}

    def other_copies(self, batch: Batch) -> dict[str, Tensor]:
        real = self.real(batch)
        silence = self.errors(real, torch.zeros_like(real), batch)
        errors = {"mel_error_silence": silence["mel_error"]}
        for name, (kind, kbit) in LOSSY.items() if not lossy.missing() else ():
            copies = self._lossy_copies(real, kind, kbit)
            errors |= {f"{name}_{n}": rows for n, rows in self.errors(real, copies, batch).items()}
        return errors

    def _lossy_copies(self, real: Tensor, kind: str, kbit: int) -> Tensor:
        """Encoders work outside of Python's lock."""
        with ThreadPoolExecutor() as pool:
            sounds = [sound.T.float().cpu().numpy() for sound in real]
            copies = pool.map(
                lambda sound: lossy.lossy_copy(sound, self.model.sample_rate, kind, kbit), sounds
            )
            return torch.stack([torch.from_numpy(copy).T for copy in copies]).to(real)

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        rate = self.model.config.kbit_per_second
        return super().summarise(rows) | ({} if rate is None else {"kbit_per_second": rate})


build = CodecTask
