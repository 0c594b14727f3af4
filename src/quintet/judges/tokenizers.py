"""Image tokenizers side by side: distortion, rate, speed and use of codes, on the same pictures.

    files -> one crop for all -> each tokenizer: codes -> pictures, 8 bits -> scores with receipts

All pictures have the same size, so that every tokenizer is timed on the same work: the largest that
all files have with sides that are multiples of every downsampling factor, or a size that is asked.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.machine.hardware import processor
from quintet.judges.base import Array, PairJudge
from quintet.judges.media.image import LpipsAlex, LpipsVgg, Psnr, Ssim
from quintet.judges.receipt import Receipt, Score, check_comparable, of_rows, set_digest
from quintet.media.errors import BadFile
from quintet.media.pixels import Pixels, middle, read_image, resize_crop
from quintet.nn.similarity import WINDOW
from quintet.shared.tokenizer.code_files import weights_digest
from quintet.shared.tokenizer.model import TokenizerModel

SIMILAR = 1.1
"""Rates of a group of the table: at most so many times its lowest."""
Size = tuple[int, int]
JUDGES: tuple[type[PairJudge], ...] = (Psnr, Ssim, LpipsVgg, LpipsAlex)
"""Judges of pairs of pictures; those without weights are left out."""


@dataclass(frozen=True)
class Judged:
    """A tokenizer and its scores, by name: those of the judges, ms_per_picture, and bits_per_pixel
    and codes_used, or channels_per_position of continuous latents."""

    name: str
    weights: str
    """Digest, equal for a checkpoint and its export."""
    factor: int
    codebook_size: int | None
    """None: continuous."""
    scores: dict[str, Score]

    def as_json(self) -> dict[str, Any]:
        about = {"name": self.name, "weights": self.weights, "factor": self.factor}
        scores = {name: score.as_json() for name, score in self.scores.items()}
        return {**about, "codebook_size": self.codebook_size, "scores": scores}


class Compared:
    """What comparisons of tokenizers and of codecs share."""

    tokenizers: list[Judged]

    @property
    def receipts(self) -> dict[str, Receipt]:
        """Receipts of each measure that any tokenizer has; they are the same for all."""
        scores = (one.scores for one in self.tokenizers)
        return {name: score.receipt for one in scores for name, score in one.items()}


def judged_alike(
    trials: Sequence[Any], files: Sequence[Path], preparation: dict[str, str]
) -> list[Judged]:
    """Scores of all trials on these files; an error if they cannot be compared."""
    reference = set_digest(files)

    def receipt(name: str, facts: dict[str, str]) -> Receipt:
        return Receipt(name, facts, reference, preparation, len(files))

    judged: list[Judged] = [trial.judged(receipt) for trial in trials]
    for measure in {measure: None for one in judged for measure in one.scores}:
        check_comparable({one.name: one.scores[measure] for one in judged if measure in one.scores})
    return judged


def timing(device: torch.device, over: str) -> dict[str, str]:
    """What decides a measured time."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else processor()
    threads = {} if on_gpu else {"threads": str(torch.get_num_threads())}
    return {"what": f"encode and decode, median over {over}", "device": name, **threads}


@dataclass(frozen=True)
class Comparison(Compared):
    size: Size
    multiple: int
    """Least common multiple of the downsampling factors; both sides are multiples of it."""
    preparation: dict[str, str]
    tokenizers: list[Judged]
    """Sorted by `ordered`."""
    originals: list[Pixels]
    """A few pictures to look at."""
    reconstructions: dict[str, list[Pixels]]
    """The same by every tokenizer."""
    skipped: list[str]
    """Files that cannot be read, and why."""
    missing: list[str]
    """Judges that do not work here, and why."""


def compare(
    files: Sequence[Path],
    tokenizers: Mapping[str, TokenizerModel],
    *,
    size: Size | None = None,
    batch_size: int = 8,
    shown: int = 4,
    judges: Sequence[PairJudge] | None = None,
) -> Comparison:
    """Pictures are resampled to `size` (height, width), or only cropped. Devices stay."""
    judges = [judge() for judge in JUDGES] if judges is None else judges
    missing = [f"{judge.name} {problem}" for judge in judges if (problem := judge.problem())]
    judges = [judge for judge in judges if not judge.problem()]
    multiple = math.lcm(*(tokenizer.factor for tokenizer in tokenizers.values()))
    usable, extents, skipped = _readable(files)
    resample, size = size is not None, size or _common_size(extents, multiple)
    _check_size(size, multiple)
    preparation = _preparation(size, resample)
    trials = [_Trial(name, tokenizer, judges) for name, tokenizer in tokenizers.items()]
    originals: list[Pixels] = []
    for batch in _batches(usable, size, resample, batch_size):
        originals += _to_bytes(batch[: shown - len(originals)])
        for trial in trials:
            trial.add(batch, shown)
    judged = judged_alike(trials, usable, preparation)
    reconstructions = {trial.name: trial.shown for trial in trials}
    return Comparison(
        size, multiple, preparation, ordered(judged), originals, reconstructions, skipped, missing
    )


def ordered(judged: Sequence[Judged]) -> list[Judged]:
    """Groups of similar bits per pixel (SIMILAR), the lowest first; by PSNR within a group.
    Continuous latents follow, in groups of similar numbers per pixel."""
    groups: list[list[Judged]] = []
    for one in sorted(judged, key=_rate):
        continuous, rate = _rate(groups[-1][0]) if groups else (False, -1.0)
        if _rate(one) > (continuous, SIMILAR * rate):
            groups.append([])
        groups[-1].append(one)
    return [
        one
        for group in groups
        for one in sorted(group, key=lambda one: one.scores["psnr"].value, reverse=True)
    ]


def _rate(one: Judged) -> tuple[bool, float]:
    if one.codebook_size is None:
        return True, one.scores["channels_per_position"].value / one.factor**2
    return False, one.scores["bits_per_pixel"].value


def _readable(files: Sequence[Path]) -> tuple[list[Path], list[Size], list[str]]:
    """Files that can be read, their heights and widths, and the problems of the others."""
    usable: list[Path] = []
    extents: list[Size] = []
    problems: list[str] = []
    for path in files:
        try:
            height, width = read_image(path).shape[:2]
        except BadFile as error:
            problems.append(str(error))
            continue
        usable.append(path)
        extents.append((height, width))
    if not usable:
        first = f"; the first: {problems[0]}" if problems else ""
        raise RunError(f"none of {len(files)} pictures can be read{first}")
    return usable, extents, problems


def _common_size(extents: Sequence[Size], multiple: int) -> Size:
    height, width = (min(sides) // multiple * multiple for sides in zip(*extents))
    return height, width


def _check_size(size: Size, multiple: int) -> None:
    if min(size) < WINDOW:
        raise RunError(
            f"the pictures have no common crop of at least {WINDOW} pixels a side with sides "
            f"divisible by {multiple}: remove the smallest, or give a size"
        )
    if any(side % multiple for side in size):
        raise RunError(
            f"size is {size[0]} x {size[1]}; both must be divisible by {multiple}, as the "
            "tokenizers require"
        )


def _preparation(size: Size, resample: bool) -> dict[str, str]:
    """How files become pictures, in words for a receipt."""
    return {
        "orientation": "upright by EXIF",
        "transparency": "on white",
        "rounding": "8 bits, reconstructions too",
        "crop": "largest of this shape in the centre" if resample else "centre",
        "filter": "Lanczos with antialiasing (Pillow)" if resample else "none",
        "size": f"{size[0]} x {size[1]}",
    }


def _batches(files: Sequence[Path], size: Size, resample: bool, count: int) -> Iterator[Tensor]:
    """(b, 3, h, w) in 0..1."""
    cut = resize_crop if resample else middle
    for start in range(0, len(files), count):
        pictures = [cut(read_image(path), size) for path in files[start : start + count]]
        yield torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def _to_bytes(pictures: Tensor) -> list[Pixels]:
    return list((pictures * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy())


@dataclass
class _Trial:
    """A tokenizer at work, and what is kept of it."""

    name: str
    model: TokenizerModel
    judges: Sequence[PairJudge]
    rows: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    milliseconds: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Size of a batch, and time for a picture of it."""
    codes: Tensor | None = None
    """Ids or latents of one picture."""
    pixels: int = 0
    """Height times width."""
    shown: list[Pixels] = field(default_factory=list[Pixels])

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.codebook_size = self.model.codebook_size if self.model.quantiser.discrete else None
        self.used = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Distinct ids."""

    def add(self, originals: Tensor, shown: int) -> None:
        pictures = originals.to(self.device)
        if not self.milliseconds:
            self.reconstruct(pictures)  # the first call also chooses kernels
        start = time.perf_counter()
        codes, output = self.reconstruct(pictures)
        seconds = time.perf_counter() - start
        self.milliseconds.append((len(pictures), 1000 * seconds / len(pictures)))
        if not output.isfinite().all():
            raise RunError(
                f"reconstructions of {self.name} are not finite; name another checkpoint"
            )
        self.codes, self.pixels = codes[0], math.prod(originals.shape[2:])
        if self.model.quantiser.discrete:
            self.used = torch.cat([self.used, codes.flatten()]).unique()
        output = (output * 255).round().cpu() / 255
        self.shown += _to_bytes(output[: shown - len(self.shown)])
        for judge in self.judges:
            self.rows.setdefault(judge.name, []).append(judge.rows([*originals], [*output]))

    def reconstruct(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.model.to_codes(pictures)
        output = self.model.decode_from_codes(codes)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return codes, output

    def judged(self, receipt: Callable[[str, dict[str, str]], Receipt]) -> Judged:
        scores: dict[str, Score] = {}
        for judge in self.judges:
            rows, about = np.concatenate(self.rows[judge.name]), receipt(judge.name, judge.facts())
            scores[judge.name] = of_rows(judge, rows, about)
        for measure, value in self.values().items():
            scores[measure] = Score(value, None, None, receipt(measure, self.facts(measure)))
        weights = bytes(weights_digest(self.model).tolist()).hex()[:16]
        return Judged(self.name, weights, self.model.factor, self.codebook_size, scores)

    def values(self) -> dict[str, float]:
        assert self.codes is not None
        if self.codebook_size is None:
            return {"channels_per_position": len(self.codes), "ms_per_picture": self.speed}
        bits = self.codes.numel() * math.log2(self.codebook_size)
        return {
            "bits_per_pixel": bits / self.pixels,
            "ms_per_picture": self.speed,
            "codes_used": len(self.used) / self.codebook_size,
        }

    @property
    def largest(self) -> int:
        return max(count for count, _ in self.milliseconds)

    @property
    def speed(self) -> float:
        """Median of full batches: a smaller one at the end takes more time for each picture."""
        return median(value for count, value in self.milliseconds if count == self.largest)

    def facts(self, measure: str) -> dict[str, str]:
        if measure == "bits_per_pixel":
            return {"bits": "log2(codebook size) for each id, without entropy coding"}
        if measure == "channels_per_position":
            return {"channels": "continuous, fp32; bits are not counted"}
        if measure == "codes_used":
            return {"share": "codes that occur in any picture, of the codebook"}
        tf32 = self.device.type == "cuda" and torch.backends.cudnn.allow_tf32
        return {
            **timing(self.device, "batches"),
            "batch": str(self.largest),
            "precision": "fp32, convolutions in TF32" if tf32 else "fp32",
            "torch": torch.__version__,
        }
