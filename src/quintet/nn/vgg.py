"""A learned perceptual distance (LPIPS, arXiv 1801.03924) on VGG16 features (arXiv 1409.1556).

The weights come from a safetensors file on disk with torchvision's names, `features.N.weight` and
`features.N.bias`; LPIPS's channel weights, `lin0.weight` to `lin4.weight`, may be in it too.
"""

from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import full_precision

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


def vgg16_features() -> nn.Sequential:
    """Numbered like torchvision's, up to the last activation; each stage but the last is pooled."""
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


class VGGDistance(nn.Module):
    """Images (b, 3, h, w) in 0..1, twice -> (b,). Frozen, and always in eval mode.

    The features follow the run's autocast; comparing them is done in fp32.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        with torch.device("meta"):
            self.features = vgg16_features()
        self.linear = nn.ParameterList(torch.ones(stage[-1]) for stage in STAGES)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)
        self.load(Path(path))
        self.requires_grad_(False).train(False)

    def load(self, path: Path) -> None:
        found = read_weights(path)
        wanted = {f"features.{name}": value for name, value in self.features.state_dict().items()}
        missing = sorted(name for name in wanted if name not in found)
        if missing:
            raise ValueError(f"{path} lacks {len(missing)} VGG16 tensors: {', '.join(missing)}")
        wrong = [n for n, value in wanted.items() if found[n].shape != value.shape]
        if wrong:
            raise ValueError(f"{path} has tensors of another shape than VGG16: {', '.join(wrong)}")
        values = {name.removeprefix("features."): found[name].float() for name in wanted}
        self.features.load_state_dict(values, assign=True)
        for index, weight in enumerate(self.linear):
            head = found.get(f"lin{index}.weight")
            if head is not None:
                weight.data.copy_(head.flatten())

    def train(self, mode: bool = True) -> Self:
        """Stays in eval mode: it is a ruler, not a pupil."""
        return super().train(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = (torch.cat((a, b)) - self.mean) / self.deviation
        total = a.new_zeros(a.shape[0], dtype=torch.float32)
        stages = iter(self.linear)
        for layer in self.features:
            if isinstance(layer, nn.MaxPool2d):
                total = total + compare(x, next(stages))
            x = layer(x)
        return total + compare(x, next(stages))


def compare(both: Tensor, weight: Tensor) -> Tensor:
    """(2b, c, h, w) -> (b,): squared distance of unit feature vectors, averaged over positions."""
    first, second = F.normalize(full_precision(both), dim=1, eps=1e-8).chunk(2)
    return ((first - second).square() * weight[:, None, None]).sum(1).flatten(1).mean(1)
