"""Judges of pictures: PSNR, SSIM (Wang et al., 2004), LPIPS (arXiv 1801.03924) and FID (arXiv
1706.08500).

A sample is a picture (3, h, w) in 0..1. Judges round it to 8 bits first, as a file would: numbers
of tensors and of the files written from them are the same.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from quintet.engine.errors import RunError
from quintet.judges import networks, onnx, weights
from quintet.judges.base import Array, Judge, Options, PairJudge, SetJudge
from quintet.judges.clip_score import ClipScore
from quintet.judges.frechet import frechet_from
from quintet.judges.inception import Inception
from quintet.judges.mmd import Kernel, KernelSets, polynomial
from quintet.judges.networks import batches, device, eight_bit, exact
from quintet.media import pixels
from quintet.nn import lpips
from quintet.nn.similarity import psnr, ssim
from quintet.shared.outputs import cropped

SUFFIXES = pixels.SUFFIXES
TRUNKS = {
    "vgg16": "torchvision's VGG16 (https://download.pytorch.org/models/vgg16-397923af.pth)",
    "alexnet": "torchvision's AlexNet "
    "(https://download.pytorch.org/models/alexnet-owt-7be5be79.pth)",
}


def read(path: Path | str, size: int | None) -> Tensor:
    """A picture (3, size, size), or as large as it is; whole 8-bit levels, in 0..1."""
    picture = pixels.read_image(path)
    if size is not None:
        picture = pixels.resize_crop(picture, (size, size))
    return torch.from_numpy(picture).permute(2, 0, 1) / 255


def sample_of(picture: Tensor) -> Tensor:
    """What `read` returns for the file that `write` writes of a uint8 picture (3, h, w)."""
    return picture / 255


def write(stem: Path, picture: Tensor) -> None:
    pixels.write_png(stem.with_suffix(".png"), picture.permute(1, 2, 0).numpy())


def preparation(size: int | None) -> dict[str, str]:
    """What `read` does, in words for a receipt."""
    reading = {"orientation": "upright by EXIF", "transparency": "on white", "rounding": "8 bits"}
    return {**reading, **cropping(size)}


def cropping(size: int | None) -> dict[str, str]:
    if size is None:
        return {"size": "as stored", "crop": "none", "filter": "none"}
    return {**cropped((size, size)), "crop": "largest square in the centre"}


def reader(options: Options) -> tuple[Callable[[Path], Tensor], dict[str, str]]:
    return partial(read, size=options.size), preparation(options.size)


class PicturePairs(PairJudge):
    medium = "image"

    @abstractmethod
    def measure(self, references: Tensor, outputs: Tensor) -> Tensor:
        """(b, 3, h, w) twice, in 0..1 and fp64 -> (b,)."""

    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        for one, other in zip(references, outputs, strict=True):
            if one.shape != other.shape:
                sizes = " and ".join(f"{x.shape[-1]} x {x.shape[-2]}" for x in (one, other))
                raise RunError(f"a picture and its reference are {sizes} pixels; give one size")
        pairs = [torch.stack(pair) for pair in zip(references, outputs)]
        with exact():
            values = [
                self.measure(*(eight_bit(both).double() / 255).unbind(1)).double().cpu()
                for both in batches(pairs)
            ]
        return torch.cat(values).numpy()


class Psnr(PicturePairs):
    name, better, unit = "psnr", "higher", "dB"
    about = "Peak signal-to-noise ratio of each picture, averaged."

    def facts(self) -> dict[str, str]:
        error = "mean over pixels and RGB channels of a picture"
        return {"error": error, "mean": "of decibels; equal pictures count 100"}

    def measure(self, references: Tensor, outputs: Tensor) -> Tensor:
        return psnr(references, outputs)


class Ssim(PicturePairs):
    name, better = "ssim", "higher"
    about = "Structural similarity, of RGB channels."

    def facts(self) -> dict[str, str]:
        window = "Gaussian of 11 pixels and sigma 1.5, inside the picture only"
        return {"window": window, "constants": "0.01, 0.03", "channels": "mean of RGB"}

    def measure(self, references: Tensor, outputs: Tensor) -> Tensor:
        return ssim(references, outputs)


class Lpips(PicturePairs):
    """Both trunk and heads in one file, or the heads alone and the trunk in a file of its own."""

    better = "lower"
    trunk: ClassVar[lpips.Trunk]
    file: ClassVar[str]
    trunk_file: ClassVar[str]

    def problem(self) -> str | None:
        path = weights.find(self.file)
        if path is None:
            what = f"the LPIPS heads of {self.trunk.name} (version 0.1), alone or with the trunk"
            return weights.missing(self.file, what)
        # Heads are 1,472 numbers at most, trunks millions: no need to open the file.
        if path.stat().st_size < 1_000_000:
            return weights.missing(self.trunk_file, TRUNKS[self.trunk_file])
        return None

    @cached_property
    def loaded(self) -> tuple[lpips.LPIPS, str]:
        if problem := self.problem():
            raise RunError(f"the judge {self.name} {problem}")
        tensors, digest = weights.load(self.file, "")
        tensors = lpips.plain_names(tensors)
        if not any(name.startswith("features.") for name in tensors):
            trunk, other = weights.load(self.trunk_file, TRUNKS[self.trunk_file])
            tensors, digest = {**lpips.plain_names(trunk), **tensors}, f"{digest} on {other}"
        try:
            if lpips.heads_of(tensors, self.trunk, self.file) is None:
                raise ValueError(f"{weights.find(self.file)} has no LPIPS heads, lin0 to lin4")
            return lpips.LPIPS(tensors, self.trunk).to(device()), digest
        except ValueError as error:
            raise RunError(str(error)) from error

    def facts(self) -> dict[str, str]:
        return {"version": "0.1", "trunk": self.trunk.name, "weights": self.loaded[1]}

    def measure(self, references: Tensor, outputs: Tensor) -> Tensor:
        return self.loaded[0](*(x.float().to(device()) for x in (references, outputs)))


class LpipsVgg(Lpips):
    name = file = "lpips_vgg"
    about = "Learned perceptual distance on VGG16."
    needs = "weights lpips_vgg, and vgg16 if these are heads alone"
    trunk, trunk_file = lpips.VGG16, "vgg16"


class LpipsAlex(Lpips):
    name = file = "lpips_alex"
    about = "Learned perceptual distance on AlexNet, the default of lpips."
    needs = "weights lpips_alex, and alexnet if these are heads alone"
    trunk, trunk_file = lpips.ALEXNET, "alexnet"


class FrechetSets(SetJudge):
    better = "lower"

    def distance(self, references: Array, outputs: Array) -> float:
        return self.distance_from(references)(outputs)

    def distance_from(self, references: Array) -> Callable[[Array], float]:
        return frechet_from(references)


class FeatureSets(FrechetSets):
    """The Fréchet distance on features of a network."""

    batch: ClassVar[int] = networks.BATCH
    file: ClassVar[str]
    what: ClassVar[str]

    def problem(self) -> str | None:
        return weights.missing(self.file, self.what)

    @cached_property
    def loaded(self) -> tuple[nn.Module, str]:
        """The network, of samples in 0..255, and the digest of its weights."""
        tensors, digest = weights.load(self.file, self.what)
        return self.network(tensors, str(weights.find(self.file))).to(device()), digest

    @abstractmethod
    def network(self, tensors: Mapping[str, Tensor], source: str) -> nn.Module: ...

    def features(self, samples: Sequence[Any]) -> Array:
        network, _ = self.loaded
        with exact():
            rows = [network(eight_bit(x.to(device()))).cpu() for x in batches(samples, self.batch)]
        return np.asarray(torch.cat(rows).numpy())


class Fid(FeatureSets):
    """Network, resize and range are those of torch-fidelity and of the evaluator of ADM (arXiv
    2105.05233), so equal sets of 8-bit pictures have equal FIDs but for rounding. Published numbers
    differ in what the receipt holds besides: ADM's are of 50,000 samples against its own reference
    sets, cropped with box and bicubic filters; torch-fidelity takes any two folders as they are.
    pytorch-fid has the same network and weights, but resizes with pixels as areas (half-pixel
    centres) and scales to 2x - 1. The value falls with the count of samples; rFID is the FID of
    reconstructions against their originals.
    """

    name, medium = "fid", "image"
    about = "Fréchet Inception distance; rFID if the outputs are reconstructions."
    needs = "weights inception"
    file = "inception"
    what = (
        "the Inception-v3 of FID (https://github.com/mseitzer/pytorch-fid/releases/download/"
        "fid_weights/pt_inception-2015-12-05-6726825d.pth)"
    )

    def facts(self) -> dict[str, str]:
        return {
            "network": "Inception-v3 of TensorFlow, 2015-12-05, pool3 (2048)",
            "resize": "TF1 bilinear to 299, as torch-fidelity and ADM (pytorch-fid: half-pixel)",
            "range": "(x - 128) / 128 of 8-bit levels",
            "covariance": "over n - 1",
            "weights": self.loaded[1],
        }

    def network(self, tensors: Mapping[str, Tensor], source: str) -> nn.Module:
        return networks.filled(Inception, tensors, source)


class Kid(KernelSets, Fid):
    """torch-fidelity and others take the mean over random subsets of 1,000 samples; all pairs have
    the same expected value and vary less."""

    name, source = "kid", "fid"
    about = "Kernel Inception distance: like fid, but unbiased, for any number of samples."

    def facts(self) -> dict[str, str]:
        facts = {name: fact for name, fact in super().facts().items() if name != "covariance"}
        return {**facts, "kernel": "(x y / d + 1)^3", "estimator": "unbiased, all pairs"}

    def kernel(self, references: Tensor) -> Kernel:
        return polynomial


class PooledTrunk(nn.Module):
    """Pictures (b, 3, h, w) in 0..255 -> (b, 512): the last features of VGG16, averaged."""

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.register_buffer("mean", torch.tensor(lpips.MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(lpips.STD).view(3, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.trunk((pictures / 255 - self.mean) / self.std).mean((2, 3))


class FrechetVgg(FeatureSets):
    name, medium = "frechet_vgg", "image"
    about = "Fréchet distance on the last features of VGG16; no published convention."
    needs = "weights vgg16"
    file, what = "vgg16", TRUNKS["vgg16"]

    def facts(self) -> dict[str, str]:
        return {
            "network": "VGG16, relu5_3 (512), mean over positions",
            "resize": "none",
            "covariance": "over n - 1",
            "weights": self.loaded[1],
        }

    def network(self, tensors: Mapping[str, Tensor], source: str) -> nn.Module:
        try:
            return PooledTrunk(lpips.trunk_of(lpips.plain_names(tensors), lpips.VGG16, source))
        except ValueError as error:
            raise RunError(str(error)) from error


class FrechetOnnx(FrechetSets):
    name, medium = "frechet_onnx", "image"
    about = "Fréchet distance on features of any network, an ONNX file; no published convention."
    needs = "weights features.onnx, and quintet[onnx]"
    file: ClassVar[str] = "features.onnx"
    shape: ClassVar[str] = "pictures (b, 3, h, w)"
    rank: ClassVar[int] = 4

    def problem(self) -> str | None:
        return onnx.problem(weights.folder() / self.file, self.shape)

    @cached_property
    def network(self) -> onnx.OnnxNetwork:
        if problem := self.problem():
            raise RunError(f"the judge {self.name} {problem}")
        return onnx.OnnxNetwork(weights.folder() / self.file, self.rank)

    def facts(self) -> dict[str, str]:
        return dict(self.network.facts())

    def features(self, samples: Sequence[Any]) -> Array:
        rows = [self.network(eight_bit(sample)) for sample in samples]
        return np.asarray(torch.cat(rows).numpy())


JUDGES: tuple[type[Judge], ...] = (
    Psnr, Ssim, LpipsVgg, LpipsAlex, Fid, Kid, FrechetVgg, FrechetOnnx, ClipScore,
)  # fmt: skip
"""Classes: a judge is made without arguments, and loads its weights on first use."""
