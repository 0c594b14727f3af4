"""Training of a codec (music/coding.py), and what its copies are compared with: silence, the same
segments resampled to as many numbers as the latents have, and through Opus and MP3."""

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
        copies: dict[str, Tensor] = {}
        if not self.model.quantiser.discrete:
            copies["resampled"] = resampled(real, self.numbers / self.model.channels)
        if not lossy.missing():
            copies |= {n: self._lossy_copies(real, *LOSSY[n]) for n in LOSSY}
        for name, other in copies.items():
            errors |= {f"{name}_{n}": rows for n, rows in self.errors(real, other, batch).items()}
        return errors

    @property
    def numbers(self) -> float:
        """Numbers of continuous latents for a sample of sound."""
        return self.model.config.latent_channels / self.model.hop

    def _lossy_copies(self, real: Tensor, kind: str, kbit: int) -> Tensor:
        """Encoders work outside of Python's lock."""
        with ThreadPoolExecutor() as pool:
            sounds = [sound.T.float().cpu().numpy() for sound in real]
            copies = pool.map(
                lambda sound: lossy.lossy_copy(sound, self.model.sample_rate, kind, kbit), sounds
            )
            return torch.stack([torch.from_numpy(copy).T for copy in copies]).to(real)

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        metrics, rate = super().summarise(rows), self.model.config.kbit_per_second
        if "kl_bits" in metrics:  # what a code of the noisy latents needs (bits back)
            rate = metrics["kl_bits"] * self.numbers * self.model.sample_rate / 1000
        return metrics if rate is None else {**metrics, "kbit_per_second": rate}


def resampled(sounds: Tensor, share: float) -> Tensor:
    """Through this share of the sample rate and back, without loss but of the frequencies above."""
    spectrum = torch.fft.rfft(sounds.float())
    spectrum[..., round(share * spectrum.shape[-1]) :] = 0
    return torch.fft.irfft(spectrum, sounds.shape[-1])


build = CodecTask
