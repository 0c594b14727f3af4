"""LPIPS, a learned perceptual distance (arXiv 1801.03924), on VGG16 (arXiv 1409.1556) or AlexNet
(arXiv 1404.5997).

Weights are read from a local safetensors file, under the names that they are published with: the
trunk as torchvision's `features.N.weight` and `.bias`, or as `net.sliceK.N.*` of the lpips package;
the heads, which weigh channels, as `lin0.model.1.weight` to `lin4.model.1.weight`, or `lin0.weight`
to `lin4.weight`. A file without any head is a trunk alone, and every channel counts alike.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Trunk(NamedTuple):
    name: str
    build: Callable[[], nn.Sequential]
    taps: tuple[int, ...]
    """Layers whose outputs are compared."""
    widths: tuple[int, ...]
    """Channels at each tap."""


def vgg16_features() -> nn.Sequential:
    """Numbered like torchvision's, up to the last activation; pooled between stages."""
    layers: list[nn.Module] = []
    channels = 3
    for index, stage in enumerate(STAGES):
        if index:
            layers.append(nn.MaxPool2d(2))
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers)


def alexnet_features() -> nn.Sequential:
    """Numbered like torchvision's, up to the last activation."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    )


VGG16 = Trunk("VGG16", vgg16_features, (3, 8, 15, 22, 29), (64, 128, 256, 512, 512))
ALEXNET = Trunk("AlexNet", alexnet_features, (1, 4, 7, 9, 11), (64, 192, 384, 256, 256))


def read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no LPIPS weights at {path}: give a safetensors file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def plain_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published names as `features.N.weight`, `features.N.bias` and `linK.weight`."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        name = re.sub(r"^(net\.)*slice\d+\.(?=\d)", "features.", name)
        name = re.sub(r"^(net\.)*lin(?:s\.)?(\d+)\.(model\.[01]\.)?weight$", r"lin\2.weight", name)
        renamed[name] = value
    return renamed


def trunk_of(weights: Mapping[str, Tensor], trunk: Trunk, source: str) -> nn.Sequential:
    """The trunk with these weights, of plain names."""
    with torch.device("meta"):
        features = trunk.build()
    expected = {f"features.{name}": value for name, value in features.state_dict().items()}
    missing = sorted(name for name in expected if name not in weights)
    if missing:
        lacking = f"{len(missing)} {trunk.name} tensors: {', '.join(missing)}"
        raise ValueError(f"{source} lacks {lacking}")
    wrong = [name for name, value in expected.items() if weights[name].shape != value.shape]
    if wrong:
        names = ", ".join(wrong)
        raise ValueError(f"{source} has tensors of another shape than {trunk.name}: {names}")
    values = {name.removeprefix("features."): weights[name].float() for name in expected}
    features.load_state_dict(values, assign=True)
    return features


def heads_of(weights: Mapping[str, Tensor], trunk: Trunk, source: str) -> list[Tensor] | None:
    """The weights of channels at each tap, of plain names; None if there are no heads at all."""
    names = sorted(name for name in weights if name.startswith("lin"))
    if not names:
        return None
    expected = [f"lin{index}.weight" for index in range(len(trunk.widths))]
    if names != expected:
        raise ValueError(
            f"{source} has the LPIPS heads {', '.join(names)}, but {trunk.name} takes "
            f"{', '.join(expected)}; give all of them, or none for the trunk alone"
        )
    heads = [weights[name].float().flatten() for name in expected]
    widths = tuple(map(len, heads))
    if widths != trunk.widths:
        raise ValueError(f"{source} has LPIPS heads of {widths} channels, not {trunk.widths}")
    return heads


class LPIPS(nn.Module):
    """Two batches of images (b, 3, h, w) in 0..1 -> (b,). Frozen, and always in eval mode.

    `weights` is a file, or its tensors. Features are computed under autocast, distances in fp32.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, weights: str | Path | Mapping[str, Tensor], trunk: Trunk = VGG16) -> None:
        super().__init__()
        by_name = isinstance(weights, Mapping)
        source = "the file of LPIPS" if by_name else str(weights)
        tensors = plain_names(weights if by_name else read_weights(Path(weights)))
        heads = heads_of(tensors, trunk, source)
        self.features = trunk_of(tensors, trunk, source)
        self.taps = trunk.taps
        self.linear = nn.ParameterList(heads or [torch.ones(width) for width in trunk.widths])
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.requires_grad_(False).train(False)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = (torch.cat((a, b)) - self.mean) / self.std
        total = a.new_zeros(a.shape[0], dtype=torch.float32)
        weights = iter(self.linear)
        for index, layer in enumerate(self.features):
            x = layer(x)
            if index in self.taps:
                total = total + feature_distance(x, next(weights))
        return total


def feature_distance(both: Tensor, weight: Tensor) -> Tensor:
    """(2b, c, h, w) -> (b,): squared distance of unit feature vectors, averaged over positions."""
    first, second = F.normalize(full_precision(both), dim=1, eps=1e-8).chunk(2)
    return ((first - second).square() * weight[:, None, None]).sum(1).flatten(1).mean(1)
