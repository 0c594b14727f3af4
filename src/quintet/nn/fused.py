"""Convolutions whose bias is added by the pass after them.

PyTorch adds the bias of a cuDNN convolution in a pass of its own, and sums its gradient in another:
a fifth of the time of the convolutions. On CUDA under autocast the bias joins the group norm, the
activation or the skip connection that follows. Elsewhere the layers run one by one.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from quintet.nn import kernels
from quintet.nn.kernels import FORMATS
from quintet.nn.norms import UNPADDED, Padding, group_norm_act
from quintet.nn.operations import without_compiler
from quintet.triton import HAS_TRITON


class FusedSequential(nn.Sequential):
    """`nn.Sequential` in fewer passes. Parameters have the same names."""

    def forward(self, input: Tensor) -> Tensor:
        return run(self, input)

    def residual(self, x: Tensor) -> Tensor:
        """x + self(x). The last layer is a convolution."""
        *layers, last = self
        assert isinstance(last, (nn.Conv2d, nn.Conv3d))
        return conv_add(last, run(layers, x), x)


def run(layers: Iterable[nn.Module], x: Tensor, padding: Padding = UNPADDED) -> Tensor:
    """With a `padding`, the last two layers are a group norm and an activation: they pad."""
    remaining = deque(layers)
    while remaining:
        layer: Any = remaining.popleft()
        bias = None
        if remaining and is_fused(layer, x) and isinstance(remaining[0], nn.GroupNorm):
            bias = layer.bias
            x, layer = without_bias(layer, x), remaining.popleft()
        if isinstance(layer, nn.GroupNorm):
            activation = take_activation(remaining)
            x = group_norm_act(x, layer, activation, bias, UNPADDED if remaining else padding)
        elif is_fused(layer, x) and (activation := take_activation(remaining)) != "none":
            x = _bias_act(without_bias(layer, x), layer.bias, None, activation)
        else:
            x = layer(x)
    return x


def conv_add(conv: nn.Conv2d | nn.Conv3d, x: Tensor, skip: Tensor) -> Tensor:
    """skip + conv(x)."""
    if not is_fused(conv, x):
        return skip + conv(x)
    skip = skip.contiguous(memory_format=FORMATS[skip.ndim])
    return _bias_act(without_bias(conv, x), conv.bias, skip, "none")


def take_activation(remaining: deque[nn.Module]) -> str:
    """The name of the next layer, which is removed, if it is an activation that can be fused."""
    match remaining[0] if remaining else None:
        case nn.SiLU():
            name = "silu"
        case nn.LeakyReLU(negative_slope=0.2):
            name = "leaky_relu"
        case _:
            return "none"
    remaining.popleft()
    return name


def is_fused(layer: Any, x: Tensor) -> bool:
    return (
        isinstance(layer, (nn.Conv2d, nn.Conv3d))
        and layer.bias is not None
        and x.is_cuda
        and HAS_TRITON
        and x.numel() > 0
        and torch.is_autocast_enabled("cuda")
        and x.dtype != torch.float64
    )


def without_bias(conv: Any, x: Tensor) -> Tensor:
    y = conv._conv_forward(x, conv.weight, None)
    return y.contiguous(memory_format=FORMATS[y.ndim])


@without_compiler
@torch.library.custom_op("quintet::bias_act", mutates_args=())
def _bias_act(y: Tensor, bias: Tensor, skip: Tensor | None, activation: str) -> Tensor:
    """activation(y + bias) + skip."""
    return kernels.lazy("bias_act").forward(y, bias, skip, activation)


@_bias_act.register_fake
def _(y: Tensor, bias: Tensor, skip: Tensor | None, activation: str) -> Tensor:
    dtype = y.dtype if skip is None else torch.result_type(y, skip)
    return torch.empty_like(y, dtype=dtype, memory_format=FORMATS[y.ndim])


@without_compiler
@torch.library.custom_op("quintet::bias_act_backward", mutates_args=())
def _bias_act_backward(
    dout: Tensor, y: Tensor | None, bias: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """The gradients of y (empty without y: it is `dout`) and, in fp32, of the bias."""
    return kernels.lazy("bias_act").backward(dout, y, bias, activation)


@_bias_act_backward.register_fake
def _(dout: Tensor, y: Tensor | None, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    dy = dout.new_empty(0) if y is None else torch.empty_like(y)
    return dy, dout.new_empty(dout.shape[1], dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y, bias, skip, ctx.activation = inputs
    ctx.save_for_backward(None if ctx.activation == "none" else y, bias)
    ctx.dtypes = y.dtype, None if skip is None else skip.dtype


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    y, bias = ctx.saved_tensors
    of_y, of_skip = ctx.dtypes
    dy, d_bias = dout.to(of_y), None
    if y is not None or ctx.needs_input_grad[1]:
        dout = dout.contiguous(memory_format=FORMATS[dout.ndim])
        written, d_bias = _bias_act_backward(dout, y, bias, ctx.activation)
        dy, d_bias = dy if y is None else written, d_bias.to(bias.dtype)
    return dy, d_bias, None if of_skip is None else dout.to(of_skip), None


_bias_act.register_autograd(_backward, setup_context=_setup_context)
