"""Convolution and attention blocks for pictures of any size, channels first: (b, c, h, w).

Every step down or up has a shortcut without parameters, which moves pixels into channels or back
(DC-AE, arXiv 2410.10733): the convolution only learns what the shortcut misses.
No block mixes samples. Residual branches end in a layer that starts at zero.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import full_precision
from quintet.nn.rotary import Rotation, picture_rotation, rotate_pairs


def group_norm(dim: int, width: int = 16) -> nn.GroupNorm:
    """Groups of `width` channels, or the next smaller width that divides `dim`."""
    while dim % width:
        width -= 1
    return nn.GroupNorm(dim // width, dim)


def zeroed(conv: nn.Conv2d) -> nn.Conv2d:
    nn.init.zeros_(conv.weight)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


def match_channels(picture: Tensor, channels: int) -> Tensor:
    """Repeat neighbouring channels, or average them, until there are `channels`."""
    have = picture.shape[1]
    if have < channels:
        return picture.repeat_interleave(channels // have, dim=1)
    return picture.unflatten(1, (channels, have // channels)).mean(2)


def space_to_channels(picture: Tensor, channels: int, factor: int = 2) -> Tensor:
    return match_channels(F.pixel_unshuffle(picture, factor), channels)


def channels_to_space(picture: Tensor, channels: int, factor: int = 2) -> Tensor:
    return F.pixel_shuffle(match_channels(picture, channels * factor**2), factor)


def check_shortcut(many: int, few: int) -> None:
    if many % few and few % many:
        raise ValueError(
            f"the shortcut cannot map {many} channels to {few}: choose stage widths that divide"
            " each other"
        )


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))))))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            group_norm(dim),
            nn.SiLU(),
            nn.Conv2d(dim, dim, 3, padding=1),
            group_norm(dim),
            nn.SiLU(),
            zeroed(nn.Conv2d(dim, dim, 3, padding=1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Down(nn.Module):
    """Half the size: a convolution with stride 2 beside space-to-channels."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(4 * dim, dim_out)
        self.dim_out = dim_out
        self.conv = nn.Conv2d(dim, dim_out, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + space_to_channels(x, self.dim_out)


class Up(nn.Module):
    """Twice the size: nearest neighbour and a convolution beside channels-to-space."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(dim, 4 * dim_out)
        self.dim_out = dim_out
        self.conv = nn.Conv2d(dim, dim_out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0)) + channels_to_space(x, self.dim_out)


class Stem(nn.Module):
    """Pixels to features, `patch` x `patch` pixels at a time."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.conv = nn.Conv2d(channels * patch**2, dim, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(F.pixel_unshuffle(images, self.patch))


class Head(nn.Module):
    """Features to pixels, `patch` x `patch` pixels at a time."""

    def __init__(self, dim: int, channels: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.norm = group_norm(dim)
        self.conv = nn.Conv2d(dim, channels * patch**2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(F.silu(self.norm(x))), self.patch)


def head_width(dim: int, most: int = 64) -> int:
    """The widest head that divides `dim` and whose quarters can turn."""
    if dim % 4:
        raise ValueError(f"attention needs a width divisible by 4, not {dim}")
    return max(width for width in range(4, most + 1, 4) if dim % width == 0)


class AttentionBlock(nn.Module):
    """Every position attends to every other; where they are is a rotation of queries and keys."""

    def __init__(self, dim: int, head_dim: int = 64) -> None:
        super().__init__()
        self.head_dim = head_width(dim, head_dim)
        self.norm = group_norm(dim)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.to_out = zeroed(nn.Conv2d(dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        qkv = self.to_qkv(self.norm(x)).flatten(2).transpose(1, 2)
        q, k, v = qkv.unflatten(2, (3, -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        where = picture_rotation(size[0], size[1], self.head_dim, x.device)
        attended = F.scaled_dot_product_attention(unit(q, where), unit(k, where), v)
        picture = attended.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(2, size)
        return x + self.to_out(picture)


def unit(heads: Tensor, where: Rotation) -> Tensor:
    """Normalised over the head, so that logits stay bounded in bf16, and turned to its position."""
    normed = F.rms_norm(full_precision(heads), (heads.shape[-1],))
    return rotate_pairs(normed, where).to(heads.dtype)
