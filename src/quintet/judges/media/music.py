"""Judges of music: the Frechet audio distance of two sets (arXiv 1812.08466), and retrieval.

`fad` is the published distance and needs the weights of VGGish; `fad_mel` is our own, on plain
statistics of the same spectrograms, and needs nothing: its values compare only with themselves.
Recall judges take embeddings of any model in place of files, so they are in `EMBEDDING_JUDGES`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.judges import networks, vggish, weights
from quintet.judges.base import Array, Judge, Options, PairJudge, SetJudge
from quintet.judges.frechet import frechet_distance, ragged, rows_of
from quintet.judges.media.speech import preparation
from quintet.judges.mmd import Kernel, KernelSets, gaussian, median_distance
from quintet.media import audio
from quintet.media.audio import Samples, read_audio
from quintet.shared.outputs import Caption

RATE = vggish.RATE
SUFFIXES = audio.SUFFIXES
ONLY_BY_NAME = True
WEIGHTS = "vggish"
WEIGHTS_ARE = (
    "VGGish with the names of its port to PyTorch "
    "(https://github.com/harritaylor/torchvggish/releases/download/v0.1/vggish-10086976.pth)"
)


class Recording(NamedTuple):
    wav: Samples
    rate: int
    path: Path


def read(path: Path | str, rate: int = RATE) -> Recording:
    return Recording(read_audio(path, rate=rate), rate, Path(path))


def sample_of(embedding: Array) -> Array:
    return embedding


class _FrechetJudge(SetJudge):
    medium, better = "music", "lower"
    between: ClassVar[str] = "of normal distributions over all windows of a set"

    def facts(self) -> dict[str, str]:
        return {
            "spectrogram": "log(0.01 + mel magnitudes), 64 bands of 125-7500 Hz, 25 ms every 10 ms",
            "windows": "0.96 s side by side, the rest dropped, shorter sounds padded with zeros",
            "distance": self.between,
        }

    def features(self, samples: Sequence[Recording]) -> Array:
        """(n, w, d): those of each window; NaN where a sound has fewer than the longest."""
        return self.joined([self.embed(_windows(one)).double().numpy()[None] for one in samples])

    def joined(self, features: Sequence[Array]) -> Array:
        return ragged(features)

    def distance(self, references: Array, outputs: Array) -> float:
        first, second = rows_of(references), rows_of(outputs)
        if min(len(first), len(second)) < 2:
            raise RunError(f"{self.name} needs two windows of 0.96 s or more in each set")
        return frechet_distance(first, second)

    @abstractmethod
    def embed(self, windows: Tensor) -> Tensor:
        """(w, 96, 64) -> (w, d)."""


def _windows(recording: Recording) -> Tensor:
    if recording.rate != RATE:
        raise RunError(f"this judge needs {RATE} Hz, and {recording.path} has another rate")
    return vggish.log_mel_windows(torch.from_numpy(recording.wav))


@cache
def _network() -> tuple[vggish.VGGish, str]:
    tensors, _ = weights.load(WEIGHTS, WEIGHTS_ARE)
    network = networks.filled(vggish.VGGish, tensors, str(weights.find(WEIGHTS)))
    return network, weights.digest_of_tensors(tensors)


class AudioDistance(_FrechetJudge):
    name = "fad"
    about = "Frechet audio distance of two sets, on the embeddings of VGGish."
    needs = f"weights: {WEIGHTS_ARE} as {WEIGHTS}.pth"

    def problem(self) -> str | None:
        return weights.missing(WEIGHTS, WEIGHTS_ARE)

    def facts(self) -> dict[str, str]:
        layer = "VGGish, last layer without ReLU, without PCA"
        return {**super().facts(), "features": layer, "weights": _network()[1]}

    def embed(self, windows: Tensor) -> Tensor:
        with torch.no_grad():
            return _network()[0](windows.float())


class MelDistance(_FrechetJudge):
    name = "fad_mel"
    about = (
        "Frechet distance of two sets on means and deviations of log-mel bands: our own measure, "
        "not the published FAD."
    )

    def facts(self) -> dict[str, str]:
        layer = "mean and standard deviation over time of each band (128), no network"
        return {**super().facts(), "features": layer}

    def embed(self, windows: Tensor) -> Tensor:
        return torch.cat([windows.mean(1), windows.std(1, correction=0)], 1)


class _KernelJudge(KernelSets):
    """KAD (arXiv 2502.15602) with the factor of its toolkit, on features of a Frechet judge."""

    scale = 100.0
    between = (
        "100 times the squared maximum mean discrepancy of all windows, unbiased; Gaussian kernel "
        "as wide as the median distance of reference windows"
    )

    def kernel(self, references: Tensor) -> Kernel:
        return gaussian(max(median_distance(references), 1e-6))


class KernelDistance(_KernelJudge, AudioDistance):
    name, source = "kad", "fad"
    about = "Kernel audio distance of two sets, on the embeddings of VGGish: unbiased."


class MelKernelDistance(_KernelJudge, MelDistance):
    name, source = "kad_mel", "fad_mel"
    about = "Kernel distance of two sets on the features of fad_mel: our own measure, unbiased."


JUDGES: tuple[type[Judge], ...] = (AudioDistance, KernelDistance, MelDistance, MelKernelDistance)


_CHUNK = 1024
_ROUNDING = 1e-12
"""Equal embeddings may differ by so much in similarity, which is computed in fp64."""


def _hits(audio: Array, text: Array, k: int, captions: Sequence[str] | None) -> Array:
    """(n, 2): whether the counterpart of each is found, in both directions."""
    a, t = _units(audio, "audio"), _units(text, "text")
    if a.shape != t.shape:
        raise RunError(f"embeddings of shapes {a.shape} and {t.shape} are not pairs")
    groups = np.arange(len(a)) if captions is None else np.unique(captions, return_inverse=True)[1]
    ranks = [_ranks(a, t, groups), _ranks(t, a, groups)]
    return (np.stack(ranks, 1) < k).astype(np.float64)


def _ranks(queries: Array, targets: Array, groups: Array) -> Array:
    """(n,): targets of other groups at least as similar as the best of its own."""
    ranks: list[Array] = []
    for start in range(0, len(queries), _CHUNK):
        similar = queries[start : start + _CHUNK] @ targets.T
        is_own = groups[start : start + _CHUNK, None] == groups
        own = np.where(is_own, similar, -np.inf).max(1, keepdims=True) - _ROUNDING
        ranks.append(((similar >= own) & ~is_own).sum(1))
    return np.concatenate(ranks)


def _units(embeddings: Array, what: str) -> Array:
    rows = np.asarray(embeddings, np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise RunError(f"{what} embeddings hold rows that are zero or not finite")
    return rows / norms


class _RecallJudge(PairJudge):
    medium, better = "music", "higher"
    joint = True
    k: int
    column: slice = slice(None)
    """Columns of rows that count: texts of sounds, sounds of texts, or both."""

    def facts(self) -> dict[str, str]:
        ties = "ties count against, sounds with equal captions are equally right"
        return {"convention": f"cosine in fp64, rank at most {self.k}, {ties}"}

    def rows(self, references: Sequence[Caption], outputs: Sequence[Array]) -> Array:
        """(n, 2) of captions and embeddings of sounds: text of audio, audio of text."""
        texts = np.stack([caption.vector for caption in references])
        captions = [caption.text for caption in references]
        return _hits(np.stack(outputs), texts, self.k, captions)

    def mean(self, rows: Array) -> float:
        return float(rows[:, self.column].mean())


class RecallAt1(_RecallJudge):
    name = "recall_at_1"
    about = "Share of sounds and texts whose counterpart is the nearest; mean of both directions."
    k = 1


class RecallAt10(_RecallJudge):
    name = "recall_at_10"
    about = "Share of sounds and texts whose counterpart is among the ten nearest; mean of both."
    k = 10


OF_TEXT, OF_AUDIO = slice(0, 1), slice(1, 2)


class RecallAt1OfText(RecallAt1):
    name, column = "recall_at_1_of_text", OF_TEXT
    about = "Share of sounds whose text is the nearest."


class RecallAt1OfAudio(RecallAt1):
    name, column = "recall_at_1_of_audio", OF_AUDIO
    about = "Share of texts whose sound is the nearest."


class RecallAt10OfText(RecallAt10):
    name, column = "recall_at_10_of_text", OF_TEXT
    about = "Share of sounds whose text is among the ten nearest."


class RecallAt10OfAudio(RecallAt10):
    name, column = "recall_at_10_of_audio", OF_AUDIO
    about = "Share of texts whose sound is among the ten nearest."


EMBEDDING_JUDGES: tuple[type[Judge], ...] = (
    RecallAt1, RecallAt1OfText, RecallAt1OfAudio, RecallAt10, RecallAt10OfText, RecallAt10OfAudio,
)  # fmt: skip


def reader(options: Options) -> tuple[Callable[[Path], Recording], dict[str, str]]:
    rate = options.rate or RATE
    return partial(read, rate=rate), preparation(rate)
