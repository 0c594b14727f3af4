"""Inception-v3 (arXiv 1512.00567) as FID uses it: TensorFlow's network of 2015-12-05.

The names of weights are those of `pt_inception-2015-12-05-6726825d.pth`, the port that pytorch-fid
and torch-fidelity share. It differs from torchvision's network in its pools: averages leave padding
out, and the last block takes a maximum where the paper has an average.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.judges.networks import tf1_bilinear

SIDE = 299


class Conv(nn.Module):
    """Keeps the extent, unless it has a stride or is said not to be padded."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int | tuple[int, int],
        *,
        stride: int = 1,
        padded: bool = True,
    ):
        super().__init__()
        high, wide = (size, size) if isinstance(size, int) else size
        padding = (high // 2, wide // 2) if padded and stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, (high, wide), stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class BlockA(nn.Module):
    def __init__(self, inputs: int, pooled: int):
        super().__init__()
        self.branch1x1 = Conv(inputs, 64, 1)
        self.branch5x5_1 = Conv(inputs, 48, 1)
        self.branch5x5_2 = Conv(48, 64, 5)
        self.branch3x3dbl_1 = Conv(inputs, 64, 1)
        self.branch3x3dbl_2 = Conv(64, 96, 3)
        self.branch3x3dbl_3 = Conv(96, 96, 3)
        self.branch_pool = Conv(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat((self.branch1x1(x), five, double, self.branch_pool(average(x))), 1)


class BlockB(nn.Module):
    """Halves the extent."""

    def __init__(self, inputs: int):
        super().__init__()
        self.branch3x3 = Conv(inputs, 384, 3, stride=2)
        self.branch3x3dbl_1 = Conv(inputs, 64, 1)
        self.branch3x3dbl_2 = Conv(64, 96, 3)
        self.branch3x3dbl_3 = Conv(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat((self.branch3x3(x), double, F.max_pool2d(x, 3, 2)), 1)


class BlockC(nn.Module):
    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.branch1x1 = Conv(inputs, 192, 1)
        self.branch7x7_1 = Conv(inputs, width, 1)
        self.branch7x7_2 = Conv(width, width, (1, 7))
        self.branch7x7_3 = Conv(width, 192, (7, 1))
        self.branch7x7dbl_1 = Conv(inputs, width, 1)
        self.branch7x7dbl_2 = Conv(width, width, (7, 1))
        self.branch7x7dbl_3 = Conv(width, width, (1, 7))
        self.branch7x7dbl_4 = Conv(width, width, (7, 1))
        self.branch7x7dbl_5 = Conv(width, 192, (1, 7))
        self.branch_pool = Conv(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat((self.branch1x1(x), seven, double, self.branch_pool(average(x))), 1)


class BlockD(nn.Module):
    """Halves the extent."""

    def __init__(self, inputs: int):
        super().__init__()
        self.branch3x3_1 = Conv(inputs, 192, 1)
        self.branch3x3_2 = Conv(192, 320, 3, stride=2)
        self.branch7x7x3_1 = Conv(inputs, 192, 1)
        self.branch7x7x3_2 = Conv(192, 192, (1, 7))
        self.branch7x7x3_3 = Conv(192, 192, (7, 1))
        self.branch7x7x3_4 = Conv(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        three = self.branch3x3_2(self.branch3x3_1(x))
        return torch.cat((three, self.branch7x7x3_4(seven), F.max_pool2d(x, 3, 2)), 1)


class BlockE(nn.Module):
    def __init__(self, inputs: int, last: bool = False):
        super().__init__()
        self.last = last
        self.branch1x1 = Conv(inputs, 320, 1)
        self.branch3x3_1 = Conv(inputs, 384, 1)
        self.branch3x3_2a = Conv(384, 384, (1, 3))
        self.branch3x3_2b = Conv(384, 384, (3, 1))
        self.branch3x3dbl_1 = Conv(inputs, 448, 1)
        self.branch3x3dbl_2 = Conv(448, 384, 3)
        self.branch3x3dbl_3a = Conv(384, 384, (1, 3))
        self.branch3x3dbl_3b = Conv(384, 384, (3, 1))
        self.branch_pool = Conv(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        pooled = F.max_pool2d(x, 3, 1, 1) if self.last else average(x)
        return torch.cat(
            (
                self.branch1x1(x),
                self.branch3x3_2a(three),
                self.branch3x3_2b(three),
                self.branch3x3dbl_3a(double),
                self.branch3x3dbl_3b(double),
                self.branch_pool(pooled),
            ),
            1,
        )


class Inception(nn.Module):
    """Pictures (b, 3, h, w) in 0..255 -> (b, 2048), the average of the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Conv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = Conv(32, 32, 3, padded=False)
        self.Conv2d_2b_3x3 = Conv(32, 64, 3)
        self.Conv2d_3b_1x1 = Conv(64, 80, 1)
        self.Conv2d_4a_3x3 = Conv(80, 192, 3, padded=False)
        self.Mixed_5b = BlockA(192, 32)
        self.Mixed_5c = BlockA(256, 64)
        self.Mixed_5d = BlockA(288, 64)
        self.Mixed_6a = BlockB(288)
        self.Mixed_6b = BlockC(768, 128)
        self.Mixed_6c = BlockC(768, 160)
        self.Mixed_6d = BlockC(768, 160)
        self.Mixed_6e = BlockC(768, 192)
        self.Mixed_7a = BlockD(768)
        self.Mixed_7b = BlockE(1280)
        self.Mixed_7c = BlockE(2048, last=True)

    def forward(self, pictures: Tensor) -> Tensor:
        x = (tf1_bilinear(pictures, SIDE) - 128) / 128
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(F.max_pool2d(x, 3, 2)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(F.max_pool2d(x, 3, 2))))
        x = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))
        x = self.Mixed_6e(self.Mixed_6d(x))
        return self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x))).mean((2, 3))
