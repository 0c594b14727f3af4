"""Adaptive norm (adaLN of DiT, arXiv 2212.09748): RMS norm, scaled and shifted by a condition.

    x, what a branch adds to it under a gate -> x + gate * branch
    RMS norm of it (1 + scale) + shift -> the input of the next branch

A block of a transformer has two of them. As single operations each takes five passes over memory;
in half precision on CUDA the whole is one kernel each way.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.nn import kernels
from quintet.nn.heads import is_fused
from quintet.nn.norms import rms_norm
from quintet.nn.operations import without_compiler

WIDEST = 4096
"""A program of the kernel holds whole rows."""


class Gated(NamedTuple):
    """x + gate * branch, not added yet."""

    x: Tensor
    """(b, n, d)."""
    branch: Tensor | None = None
    """(b, n, d)."""
    gate: Tensor | None = None
    """(b, 1, d)."""


def adaptive_norm(stream: Gated, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and its norm; shift and scale (b, 1, d)."""
    x, branch, gate = stream
    if is_fused(x) and x.shape[-1] <= WIDEST:
        if branch is None or gate is None:
            return x, _adaptive_norm(x.contiguous(), None, None, shift, scale)[1]
        total, normed = _adaptive_norm(x.contiguous(), branch.contiguous(), gate, shift, scale)
        return total, normed
    if branch is not None and gate is not None:
        x = torch.addcmul(x, gate, branch)
    normed = rms_norm(x)
    return x, torch.addcmul(normed + shift, normed, scale)


@without_compiler
@torch.library.custom_op("quintet::adaptive_norm", mutates_args=())
def _adaptive_norm(
    x: Tensor, branch: Tensor | None, gate: Tensor | None, shift: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum (empty without a branch) and the norm."""
    return kernels.lazy("adaptive_norm").forward(x, branch, gate, shift, scale)


@_adaptive_norm.register_fake
def _(x: Tensor, branch: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(0 if branch is None else x.shape), torch.empty_like(x)


@without_compiler
@torch.library.custom_op("quintet::adaptive_norm_backward", mutates_args=())
def _adaptive_norm_backward(
    d_total: Tensor | None,
    d_normed: Tensor,
    total: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of the branch and, in fp32, (b, 3, d) of gate, shift and scale."""
    return kernels.lazy("adaptive_norm").backward(d_total, d_normed, total, branch, gate, scale)


@_adaptive_norm_backward.register_fake
def _(
    d_total: Tensor | None, d_normed: Tensor, total: Tensor, branch: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    sums = total.new_empty(len(total), 3, total.shape[-1], dtype=torch.float32)
    return torch.empty_like(total), total.new_empty(0 if branch is None else total.shape), sums


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, branch, gate, _, scale = inputs
    ctx.save_for_backward(x if branch is None else output[0], branch, gate, scale)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor | None) -> tuple[Any, ...]:
    total, branch, gate, scale = ctx.saved_tensors
    d_total = None if branch is None or d_total is None else d_total.contiguous()
    d_normed = torch.zeros_like(total) if d_normed is None else d_normed.contiguous()
    dx, d_branch, sums = _adaptive_norm_backward(d_total, d_normed, total, branch, gate, scale)
    d_gate, d_shift, d_scale = sums.to(scale.dtype).unsqueeze(2).unbind(1)
    return dx, *((None, None) if branch is None else (d_branch, d_gate)), d_shift, d_scale


_adaptive_norm.register_autograd(_backward, setup_context=_setup_context)
