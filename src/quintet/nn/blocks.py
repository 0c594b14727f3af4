"""Convolution and attention blocks for images of any size, channels first: (b, c, h, w).

Downsampling and upsampling have a parameter-free shortcut, space-to-channels or channels-to-space
(DC-AE, arXiv 2410.10733); the convolution learns the residual. No block mixes samples. Residual
branches end in a zero-initialised layer.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.attention import zero_init
from quintet.nn.fused import FusedSequential, conv_add
from quintet.nn.heads import merge_heads, qkv_heads
from quintet.nn.norms import group_norm, group_norm_act
from quintet.nn.rope import rope_grid

# Reshapes work on (b, h, w, c) views: their copies stay in channels-last memory, which the
# convolutions around them have. Those of torch would write channels-first.


def match_channels(x: Tensor, channels: int) -> Tensor:
    """Repeat neighbouring channels, or average them, until there are `channels`."""
    last = x.movedim(1, -1)
    dim = x.shape[1]
    if dim < channels:
        matched = last.unsqueeze(-1).expand(*last.shape, channels // dim).flatten(-2)
    else:
        matched = last.unflatten(-1, (channels, dim // channels)).mean(-1)
    return matched.movedim(-1, 1)


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """(b, c, h f, w f) -> (b, c f f, h, w)."""
    tiles = x.movedim(1, -1).unflatten(2, (-1, factor)).unflatten(1, (-1, factor))
    return tiles.permute(0, 1, 3, 5, 2, 4).flatten(3).movedim(-1, 1)


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """(b, c f f, h, w) -> (b, c, h f, w f)."""
    tiles = x.movedim(1, -1).unflatten(-1, (-1, factor, factor))
    return tiles.permute(0, 1, 4, 2, 5, 3).flatten(1, 2).flatten(2, 3).movedim(-1, 1)


def enlarge(x: Tensor, factor: int = 2) -> Tensor:
    """Nearest neighbour; autocast would make `F.interpolate` compute it in fp32."""
    b, h, w, c = (last := x.movedim(1, -1)).shape
    tiles = last[:, :, None, :, None].expand(b, h, factor, w, factor, c)
    return tiles.reshape(b, h * factor, w * factor, c).movedim(-1, 1)


def space_to_channels(x: Tensor, channels: int) -> Tensor:
    return match_channels(pixel_unshuffle(x, 2), channels)


def channels_to_space(x: Tensor, channels: int) -> Tensor:
    return pixel_shuffle(match_channels(x, 4 * channels), 2)


def check_shortcut(dim: int, dim_out: int) -> None:
    if dim % dim_out and dim_out % dim:
        raise ValueError(
            f"the shortcut cannot map {dim} channels to {dim_out}: choose stage widths that divide"
            " each other"
        )


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))))))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = FusedSequential(
            group_norm(dim),
            nn.SiLU(),
            nn.Conv2d(dim, dim, 3, padding=1),
            group_norm(dim),
            nn.SiLU(),
            zero_init(nn.Conv2d(dim, dim, 3, padding=1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body.residual(x)


class Downsample(nn.Module):
    """Downsampling by 2: a stride-2 convolution plus a space-to-channels shortcut."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(4 * dim, dim_out)
        self.dim_out = dim_out
        self.conv = nn.Conv2d(dim, dim_out, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return conv_add(self.conv, x, space_to_channels(x, self.dim_out))


class Upsample(nn.Module):
    """Upsampling by 2: nearest neighbour and a convolution, plus a channels-to-space shortcut."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(dim, 4 * dim_out)
        self.dim_out = dim_out
        self.conv = nn.Conv2d(dim, dim_out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return conv_add(self.conv, enlarge(x), channels_to_space(x, self.dim_out))


class Stem(nn.Module):
    """Patches of `patch_size` x `patch_size` pixels to features."""

    def __init__(self, channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.conv = nn.Conv2d(channels * patch_size**2, dim, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(pixel_unshuffle(images, self.patch_size))


class Head(nn.Module):
    """Features to patches of `patch_size` x `patch_size` pixels."""

    def __init__(self, dim: int, channels: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.norm = group_norm(dim)
        self.conv = nn.Conv2d(dim, channels * patch_size**2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return pixel_shuffle(self.conv(group_norm_act(x, self.norm, "silu")), self.patch_size)


def choose_head_dim(dim: int, largest: int = 64) -> int:
    """The largest head width that divides `dim` and is a multiple of 4 (2-D rotary embedding)."""
    if dim % 4:
        raise ValueError(f"attention needs a width divisible by 4, not {dim}")
    return max(width for width in range(4, largest + 1, 4) if dim % width == 0)


class AttentionBlock(nn.Module):
    """Full self-attention over positions, with 2-D rotary embedding."""

    def __init__(self, dim: int, head_dim: int = 64) -> None:
        super().__init__()
        self.head_dim = choose_head_dim(dim, head_dim)
        self.norm = group_norm(dim)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.to_out = zero_init(nn.Conv2d(dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        qkv = self.to_qkv(group_norm_act(x, self.norm)).flatten(2).transpose(1, 2)
        rotation = rope_grid(size, self.head_dim, x.device)
        attended = F.scaled_dot_product_attention(*qkv_heads(qkv, self.head_dim, rotation))
        out = merge_heads(attended).transpose(1, 2).unflatten(2, size)
        return conv_add(self.to_out, out, x)
