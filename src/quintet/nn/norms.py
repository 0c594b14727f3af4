"""Group norm followed by an activation, as one operation where that is faster.

On CUDA under autocast, `kernels.norm_act` computes both in channels-last memory, with statistics in
fp32, and writes the autocast dtype, which is what the next convolution reads. Everywhere else this
is `activation(norm(x))`: without autocast too, because a gradient penalty by double backward runs
there, and the fused operation has no second derivative.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn import kernels
from quintet.nn.kernels import FORMATS


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


def group_norm_act(x: Tensor, norm: nn.GroupNorm, activation: str = "none") -> Tensor:
    """activation(norm(x)), for x (b, c, ...); activations: none, silu, leaky_relu (slope 0.2)."""
    if not is_fused(x, norm):
        return activate(norm(x), activation)
    x = x.contiguous(memory_format=FORMATS[x.ndim])
    dtype = torch.get_autocast_dtype("cuda")
    return _group_norm_act(x, norm.weight, norm.bias, norm.num_groups, norm.eps, activation, dtype)[
        0
    ]


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


class FusedSequential(nn.Sequential):
    """`nn.Sequential` with `group_norm_act` for a group norm and the SiLU or LeakyReLU(0.2) after
    it. Parameters have the same names."""

    def forward(self, input: Tensor) -> Tensor:
        layers = list(self)
        position = 0
        while position < len(layers):
            layer = layers[position]
            position += 1
            if isinstance(layer, nn.GroupNorm):
                activation = activation_name(layers[position]) if position < len(layers) else "none"
                position += activation != "none"
                input = group_norm_act(input, layer, activation)
            else:
                input = layer(input)
        return input


def activation_name(layer: nn.Module) -> str:
    if isinstance(layer, nn.SiLU):
        return "silu"
    if isinstance(layer, nn.LeakyReLU) and layer.negative_slope == 0.2:
        return "leaky_relu"
    return "none"


# Two custom ops: the compiler and CUDA graphs take them as they are.


@torch.library.custom_op("quintet::group_norm_act", mutates_args=())
def _group_norm_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output in this dtype, and means and reciprocal deviations (b, groups)."""
    from quintet.nn.kernels import norm_act

    with torch.cuda.device_of(x):
        return norm_act.forward(x, weight, bias, groups, eps, activation, dtype)


@_group_norm_act.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=FORMATS[x.ndim])
    mean, rstd = (x.new_empty(x.shape[0], groups, dtype=torch.float32) for _ in range(2))
    return y, mean, rstd


@torch.library.custom_op("quintet::group_norm_act_backward", mutates_args=())
def _group_norm_act_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and in fp32 (2, c) those of bias and weight."""
    from quintet.nn.kernels import norm_act

    dy = dy.contiguous(memory_format=FORMATS[x.ndim])
    with torch.cuda.device_of(x):
        return norm_act.backward(dy, x, weight, bias, mean, rstd, activation)


@_group_norm_act_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=FORMATS[x.ndim])
    return dx, weight.new_empty(2, len(weight), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:])
    ctx.activation = inputs[5]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if grads[0] is None:
        return (None,) * 7
    x, weight, bias, mean, rstd = ctx.saved_tensors
    dx, sums = _group_norm_act_backward(grads[0], x, weight, bias, mean, rstd, ctx.activation)
    return dx, sums[1].to(weight.dtype), sums[0].to(bias.dtype), None, None, None, None


_group_norm_act.register_autograd(_backward, setup_context=_setup_context)
