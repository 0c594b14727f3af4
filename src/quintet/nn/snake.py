"""Snake (arXiv 2006.08195): x + sin²(a x) / a, a periodic activation for sounds, and the residual
unit around it (arXiv 2306.06546).

Shapes: b sounds, c channels, t positions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from quintet.nn.precision import full_precision


class _Snake(torch.autograd.Function):
    """Keeps the input alone, in its own precision, and computes in fp32: the sine of a large bf16
    number would be that of another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_rate: Tensor) -> Tensor:
        ctx.save_for_backward(x, log_rate)
        return snake(x, log_rate)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, log_rate = ctx.saved_tensors
        (gradient,), rate = gradients, log_rate.exp()
        angle = full_precision(x) * (2 * rate)
        wave = angle.sin()
        of_x = gradient * (1 + wave)
        # The derivative by the logarithm of the rate.
        slope = (0.5 * angle * wave + 0.5 * (angle.cos() - 1)) / rate
        of_rate = (gradient * slope).sum((0, 2), keepdim=True)[0]
        return of_x.to(x.dtype), of_rate.to(log_rate.dtype)


def snake(x: Tensor, log_rate: Tensor) -> Tensor:
    """(b, c, t), (c, 1) -> (b, c, t)."""
    rate, wide = log_rate.exp(), full_precision(x)
    return (wide + (1 - (wide * (2 * rate)).cos()) / (2 * rate)).to(x.dtype)


class Snake(nn.Module):
    """A learned rate for each channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.zeros(dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (
            _Snake.apply(x, self.log_rate) if torch.is_grad_enabled() else snake(x, self.log_rate)
        )


class SnakeUnit(nn.Module):
    """A residual unit, which sees `reach` positions on both sides."""

    kernel = 7

    def __init__(self, dim: int, dilation: int) -> None:
        super().__init__()
        self.reach = dilation * (self.kernel // 2)
        wide = nn.Conv1d(dim, dim, self.kernel, dilation=dilation, padding=self.reach)
        self.body = nn.Sequential(Snake(dim), wide, Snake(dim))
        self.last = nn.Conv1d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.body(x))
