"""fp32 under autocast and without TF32, for quantisers, losses and statistics; and what need not be
fp32."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.operations import without_compiler


def full_precision(tensor: Tensor) -> Tensor:
    """fp32, or fp64 if the model runs in it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def residual_stream(tensor: Tensor) -> Tensor:
    """The input of a stack of residual blocks: in the autocast dtype on CUDA, where reading and
    writing the stream costs a tenth of a step. The norms compute in fp32 all the same."""
    if tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return tensor  # as the weights are, which may have been cast
    narrow = tensor.is_cuda and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype("cuda")) if narrow else full_precision(tensor)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off on the tensor's device; the meta device does not support autocast."""
    device = tensor.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


@contextmanager
def without_tf32() -> Generator[None]:
    """Matrix products and convolutions on CUDA in fp32, not rounded to the 10 bits of TF32.

    The flags are read on the host when a kernel is launched, so that nothing synchronises and a
    CUDA graph keeps the kernels it was captured with. Compiled code would not see them, nor does a
    backward pass after the block: `matmul` has neither limit.
    """
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """(..., n, k), (k, m) or (..., k, m) -> (..., n, m) without TF32, its gradients as well."""
    return a @ b if a.is_cpu else _matmul(a, b, None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` without TF32, its gradients as well."""
    return F.linear(x, weight, bias) if x.is_cpu else _matmul(x, weight.T, bias)


class FullPrecisionLinear(nn.Linear):
    """A linear layer without TF32; autocast is off where it is called."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


@without_compiler
@torch.library.custom_op("quintet::matmul", mutates_args=())
def _matmul(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """An operation of its own, since the compiler launches products with the flags of the run."""
    with without_autocast(a), without_tf32():
        return a @ b if bias is None else F.linear(a, b.mT, bias)


@_matmul.register_fake
def _(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return a.new_empty(*a.shape[:-1], b.shape[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, bias = inputs
    ctx.save_for_backward(a, b)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    da = _matmul(grad, b.mT, None) if ctx.needs_input_grad[0] else None
    if b.ndim == 2:  # shared by the leading axes of a
        a, grad = a.flatten(0, -2), grad.flatten(0, -2)
    db = _matmul(a.mT, grad, None) if ctx.needs_input_grad[1] else None
    return da, db, grad.sum(0) if ctx.has_bias else None


_matmul.register_autograd(_backward, setup_context=_setup_context)
