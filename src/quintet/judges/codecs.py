"""Audio codecs side by side: distortion, rate, speed and use of codes, on the same sounds.

files -> centre of each, at the rate and channels of a codec -> copy -> mono at the lowest rate
of all codecs -> scores with receipts
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.judges.base import Array
from quintet.judges.receipt import RESAMPLES, Receipt, Score, interval
from quintet.judges.tokenizers import Compared, Judged, judged_alike, timing
from quintet.media.audio import Samples, read_audio, resampled
from quintet.media.errors import BadFile
from quintet.nn.spectral_errors import mel_errors, si_sdr, stft_errors
from quintet.nn.spectrogram import LogMel
from quintet.shared.tokenizer.code_files import weights_digest

WINDOW = 2048
"""Window of the log-mels, in samples at the common rate; a sixteenth as many bins."""
FLOOR = 1e-5
FACTS = {
    "mel_error": {
        "what": "L1 of natural log-mels",
        "window": f"{WINDOW}, hop {WINDOW // 4}",
        "bins": str(WINDOW // 16),
        "floor": str(FLOOR),
    },
    "stft_error": {"what": "L1 of natural log-magnitudes, windows of 512, 1024 and 2048"},
    "si_sdr": {"what": "scale-invariant signal-to-distortion ratio, dB"},
    "kbit_per_second": {"bits": "log2(codebook size) for each id, without entropy coding"},
    "latents_per_second": {"numbers": "continuous, fp32; bits are not counted"},
    "codes_used": {"share": "codes that occur in any sound, of all codebooks or digits of ids"},
}


@dataclass(frozen=True)
class SoundComparison(Compared):
    rate: int
    """Samples per second at which copies are compared."""
    seconds: float
    tokenizers: list[Judged]
    """Sorted by kbit/s, continuous ones last; by mel_error among equals."""
    skipped: list[str]
    """Files that cannot be read, and why."""


def compare_codecs(
    files: Sequence[Path], codecs: Mapping[str, Any], seconds: float
) -> SoundComparison:
    """Codecs have `sample_rate`, `channels` and `chunk`, and are judged on their devices."""
    rate = min(codec.sample_rate for codec in codecs.values())
    mel = LogMel(rate, WINDOW, WINDOW // 4, WINDOW // 16, power=1.0, floor=FLOOR)
    trials = [_Trial(name, codec) for name, codec in codecs.items()]
    usable: list[Path] = []
    skipped: list[str] = []
    for path in files:
        try:
            reference = read_audio(path, rate=rate, seconds=seconds)
            for trial in trials:
                trial.add(path, seconds, reference, mel, rate)
        except BadFile as error:
            skipped.append(str(error))
            continue
        usable.append(path)
    if not usable:
        first = f"; the first: {skipped[0]}" if skipped else ""
        raise RunError(f"none of {len(files)} sounds can be read{first}")
    preparation = {
        "rate": f"{rate} Hz, resampled by soxr",
        "channels": "mono, copies too",
        "length": f"at most {seconds:g} s, from the middle",
    }
    judged = judged_alike(trials, usable, preparation)
    return SoundComparison(rate, seconds, sorted(judged, key=_order), skipped)


def _order(one: Judged) -> tuple[bool, float, float]:
    discrete = one.codebook_size is not None
    rate = one.scores["kbit_per_second" if discrete else "latents_per_second"].value
    return not discrete, rate, one.scores["mel_error"].value


@dataclass
class _Trial:
    """A codec at work, and what is kept of it."""

    name: str
    codec: Any
    rows: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    seconds: float = 0.0
    """Length of all sounds."""
    spent: list[float] = field(default_factory=list[float])
    """Milliseconds for a second of each sound."""
    numbers: int = 0
    """Latents of all sounds."""
    frames: int = 0
    """Frames of all sounds, of codecs with ids."""

    def __post_init__(self) -> None:
        self.device = next(self.codec.parameters()).device
        quantiser = self.codec.quantiser
        self.bases: tuple[int, ...] = ()
        """Sizes of all codebooks; digits of an id count as codebooks."""
        if quantiser.discrete:
            count = getattr(quantiser, "count", 1)
            self.bases = quantiser.digits or (quantiser.codebook_size,) * count
        self.used = [torch.zeros(n, dtype=torch.bool, device=self.device) for n in self.bases]

    def add(self, path: Path, seconds: float, reference: Samples, mel: LogMel, rate: int) -> None:
        codec = self.codec
        sound = read_audio(path, rate=codec.sample_rate, seconds=seconds, channels=codec.channels)
        batch = torch.from_numpy(np.atleast_2d(sound.T)).to(self.device)[None]
        if not self.spent:
            self.copy(batch)  # the first call also chooses kernels
        start = time.perf_counter()
        copy = self.copy(batch, counted=True)
        length = batch.shape[-1] / codec.sample_rate
        self.spent.append(1000 * (time.perf_counter() - start) / length)
        self.seconds += length
        if not copy.isfinite().all():
            raise RunError(f"copies of {self.name} are not finite; name another checkpoint")
        mono = resampled(copy[0].mean(0).cpu().numpy(), codec.sample_rate, rate)
        size = min(len(mono), len(reference))
        real, fake = (torch.from_numpy(x[:size].copy())[None] for x in (reference, mono))
        lengths = torch.tensor([size])
        scores = {
            "mel_error": mel_errors(real, fake, lengths, mel),
            "stft_error": stft_errors(real, fake, lengths),
            "si_sdr": si_sdr(real, fake, lengths),
        }
        for name, value in scores.items():
            self.rows.setdefault(name, []).append(value.double().numpy())

    @torch.no_grad()
    def copy(self, sound: Tensor, counted: bool = False) -> Tensor:
        """Split into chunks where the codec takes no more at once."""
        parts: list[Tensor] = []
        for part in sound.split(self.codec.chunk or sound.shape[-1], dim=-1):
            result = self.codec(part)
            parts.append(result.output)
            if counted and self.codec.quantiser.discrete:
                self.frames += result.ids.shape[-1]
                for row, ids in zip(self.used, self.split(result.ids[0])):
                    row[ids] = True
            elif counted:
                self.numbers += math.prod(self.codec.latent_shape(tuple(part.shape[1:])))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return torch.cat(parts, -1)

    def split(self, ids: Tensor) -> list[Tensor]:
        """(codebooks, frames), or the digits of (frames,)."""
        if ids.ndim > 1:
            return [*ids]
        digits: list[Tensor] = []
        for base in self.bases:
            digits.append(ids % base)
            ids = ids // base
        return digits

    def judged(self, receipt: Callable[[str, dict[str, str]], Receipt]) -> Judged:
        scores: dict[str, Score] = {}
        for name, values in self.rows.items():
            rows = np.concatenate(values)
            bounds = interval(rows, np.mean, RESAMPLES)
            scores[name] = Score(float(rows.mean()), *bounds, receipt(name, FACTS[name]))
        for name, value in self.values().items():
            about = {"precision": "fp32", "torch": torch.__version__}
            facts = FACTS.get(name) or {**timing(self.device, "sounds"), **about}
            scores[name] = Score(value, None, None, receipt(name, facts))
        weights = bytes(weights_digest(self.codec).tolist()).hex()[:16]
        size = self.codec.quantiser.codebook_size if self.bases else None
        return Judged(self.name, weights, self.codec.hop, size, scores)

    def values(self) -> dict[str, float]:
        speed = {"ms_per_second": float(np.median(self.spent))}
        if not self.bases:
            return {"latents_per_second": self.numbers / self.seconds, **speed}
        bits = sum(map(math.log2, self.bases)) * self.frames / self.seconds
        used = torch.cat(self.used).float().mean().item()
        return {"kbit_per_second": bits / 1000, **speed, "codes_used": used}
