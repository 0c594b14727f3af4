"""RMS norm; and group norm followed by an activation, as one operation where that is faster.

On CUDA under autocast, `kernels.norm_act` computes both in channels-last memory, with statistics in
fp32, and writes the autocast dtype, which is what the next convolution reads. Everywhere else this
is `activation(norm(x))`: without autocast too, because a gradient penalty by double backward runs
there, and the fused operation has no second derivative.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn import kernels
from quintet.nn.kernels import FORMATS
from quintet.nn.operations import without_compiler


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """In the dtype of x, computed in fp32. PyTorch has no fused kernel for a weight of another
    dtype; and by its documentation `eps` would be that of the dtype, 0.008 for bf16."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    eps = torch.finfo(wide).eps if eps is None else eps
    return F.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), eps)


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def group_norm(dim: int, width: int = 16) -> nn.GroupNorm:
    """Groups of `width` channels, or of the next smaller width that divides `dim`."""
    while dim % width:
        width -= 1
    return nn.GroupNorm(dim // width, dim)


def activate(x: Tensor, activation: str) -> Tensor:
    match activation:
        case "none":
            return x
        case "silu":
            return F.silu(x)
        case "leaky_relu":
            return F.leaky_relu(x, 0.2)
        case _:
            raise ValueError(f"activation must be none, silu or leaky_relu, not {activation}")


class Padding(NamedTuple):
    """Copies of the first frame before each clip."""

    frames: int = 1
    """Frames of a clip."""
    lead: int = 0
    """Copies."""


UNPADDED = Padding()


def group_norm_act(
    x: Tensor,
    norm: nn.GroupNorm,
    activation: str = "none",
    bias: Tensor | None = None,
    padding: Padding = UNPADDED,
) -> Tensor:
    """activation(norm(x)), for x (b, c, ...); activations: none, silu, leaky_relu (slope 0.2).

    A `bias` (c,) is added to x first. With a `padding`, x has the frames of clips one after the
    other, and so has the output.
    """
    if not is_fused(x, norm):
        x = x if bias is None else x + bias.view(-1, *(1,) * (x.ndim - 2))
        y = activate(norm(x), activation)
        return pad_frames(y, padding) if padding.lead else y
    x = x.contiguous(memory_format=FORMATS[x.ndim])
    dtype = torch.get_autocast_dtype("cuda")
    parameters = norm.weight, norm.bias, norm.num_groups, norm.eps
    return _group_norm_act(x, bias, *parameters, activation, dtype, *padding)[0]


def pad_frames(x: Tensor, padding: Padding) -> Tensor:
    clips = x.movedim(1, -1).unflatten(0, (-1, padding.frames))  # the copy stays channels-last
    first = clips[:, :1].expand(-1, padding.lead, *clips.shape[2:])
    return torch.cat((first, clips), dim=1).flatten(0, 1).movedim(-1, 1)


def is_fused(x: Tensor, norm: nn.GroupNorm) -> bool:
    width = norm.num_channels // norm.num_groups
    return (
        x.is_cuda
        and kernels.fits(x)
        and torch.is_autocast_enabled("cuda")
        and x.dtype != torch.float64
        and x.ndim in FORMATS
        and norm.affine
        and width & (width - 1) == 0
        and width <= 1024
    )


# Two custom ops: the compiler and CUDA graphs take them as they are.


@without_compiler
@torch.library.custom_op("quintet::group_norm_act", mutates_args=())
def _group_norm_act(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    dtype: torch.dtype,
    frames: int,
    lead: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output in this dtype, and means and reciprocal deviations (b, groups)."""
    arguments = weight, bias, groups, eps, activation, dtype, frames, lead
    return kernels.lazy("norm_act").forward(x, added, *arguments)


@_group_norm_act.register_fake
def _(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, groups, _, _, dtype, frames, lead = arguments
    shape = (x.shape[0] // frames * (frames + lead), *x.shape[1:])
    y = torch.empty(shape, dtype=dtype, device=x.device, memory_format=FORMATS[x.ndim])
    mean, rstd = (x.new_empty(x.shape[0], groups, dtype=torch.float32) for _ in range(2))
    return y, mean, rstd


@without_compiler
@torch.library.custom_op("quintet::group_norm_act_backward", mutates_args=())
def _group_norm_act_backward(
    dy: Tensor,
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    activation: str,
    frames: int,
    lead: int,
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and in fp32 (2 or 3, c) those of bias, weight and `added`."""
    dy = dy.contiguous(memory_format=FORMATS[x.ndim])
    arguments = weight, bias, mean, rstd, activation, frames, lead
    return kernels.lazy("norm_act").backward(dy, x, added, *arguments)


@_group_norm_act_backward.register_fake
def _(
    dy: Tensor, x: Tensor, added: Tensor | None, weight: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=FORMATS[x.ndim])
    rows = 2 if added is None else 3
    return dx, weight.new_empty(rows, len(weight), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output[1:])
    ctx.activation, ctx.padding = inputs[6], inputs[8:]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if grads[0] is None:
        return (None,) * 10
    x, added, weight, bias, mean, rstd = ctx.saved_tensors
    dx, sums = _group_norm_act_backward(
        grads[0], x, added, weight, bias, mean, rstd, ctx.activation, *ctx.padding
    )
    d_added = None if added is None else sums[2].to(added.dtype)
    return dx, d_added, sums[1].to(weight.dtype), sums[0].to(bias.dtype), *(None,) * 6


_group_norm_act.register_autograd(_backward, setup_context=_setup_context)
