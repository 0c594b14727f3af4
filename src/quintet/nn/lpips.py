"""LPIPS, a learned perceptual distance (arXiv 1801.03924) on VGG16 features (arXiv 1409.1556).

Weights are read from a local safetensors file with torchvision's names, `features.N.weight` and
`features.N.bias`, and optionally LPIPS's channel weights, `lin0.weight` to `lin4.weight`.
"""

from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


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


def read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no VGG16 weights at {path}: give a safetensors file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


class LPIPS(nn.Module):
    """Two batches of images (b, 3, h, w) in 0..1 -> (b,). Frozen, and always in eval mode.

    Features are computed under autocast, distances in fp32.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        with torch.device("meta"):
            self.features = vgg16_features()
        self.linear = nn.ParameterList(torch.ones(stage[-1]) for stage in STAGES)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.load(Path(path))
        self.requires_grad_(False).train(False)

    def load(self, path: Path) -> None:
        weights = read_weights(path)
        expected = {f"features.{name}": value for name, value in self.features.state_dict().items()}
        missing = sorted(name for name in expected if name not in weights)
        if missing:
            raise ValueError(f"{path} lacks {len(missing)} VGG16 tensors: {', '.join(missing)}")
        wrong = [n for n, value in expected.items() if weights[n].shape != value.shape]
        if wrong:
            raise ValueError(f"{path} has tensors of another shape than VGG16: {', '.join(wrong)}")
        values = {name.removeprefix("features."): weights[name].float() for name in expected}
        self.features.load_state_dict(values, assign=True)
        for index, weight in enumerate(self.linear):
            head = weights.get(f"lin{index}.weight")
            if head is not None:
                weight.data.copy_(head.flatten())

    def train(self, mode: bool = True) -> Self:
        """Always eval mode."""
        return super().train(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = (torch.cat((a, b)) - self.mean) / self.std
        total = a.new_zeros(a.shape[0], dtype=torch.float32)
        stages = iter(self.linear)
        for layer in self.features:
            if isinstance(layer, nn.MaxPool2d):
                total = total + feature_distance(x, next(stages))
            x = layer(x)
        return total + feature_distance(x, next(stages))


def feature_distance(both: Tensor, weight: Tensor) -> Tensor:
    """(2b, c, h, w) -> (b,): squared distance of unit feature vectors, averaged over positions."""
    first, second = F.normalize(full_precision(both), dim=1, eps=1e-8).chunk(2)
    return ((first - second).square() * weight[:, None, None]).sum(1).flatten(1).mean(1)
