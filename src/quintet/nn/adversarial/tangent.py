"""The derivative of a network's output along a direction of its input, in one forward pass.

Values and tangents go through the layers side by side. The operations are plain ones: the result
can be differentiated, captured, and computed in bf16, where a finite difference is lost.
`torch.func.jvp` gives the same, but not in channels-last memory.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision


def derivative(layers: Iterable[nn.Module], x: Tensor, direction: Tensor) -> Tensor:
    """The derivative of `layers(x)`: convolutions, group norms and leaky ReLUs."""
    for layer in layers:
        match layer:
            case nn.Conv2d() | nn.Conv3d():
                x, direction = layer(x), layer._conv_forward(direction, layer.weight, None)
            case nn.GroupNorm():
                x, direction = group_norm(layer, x, direction)
            case nn.LeakyReLU():
                slope = layer.negative_slope
                direction = torch.where(x > 0, direction, slope * direction)
                x = F.leaky_relu(x, slope)
            case _:
                raise TypeError(f"no derivative of {type(layer).__name__}")
    return direction


def group_norm(norm: nn.GroupNorm, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Computed in fp32, and back in the dtypes of the arguments."""
    values, tangents = (
        full_precision(each.movedim(1, -1)).unflatten(-1, (norm.num_groups, -1))
        for each in (x, direction)
    )
    over = (*range(1, values.ndim - 2), -1)
    variance, mean = torch.var_mean(values, dim=over, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + norm.eps)
    normed = (values - mean) * rstd
    along = (normed * tangents).mean(over, keepdim=True)
    moved = (tangents - tangents.mean(over, keepdim=True) - normed * along) * rstd
    y = normed.flatten(-2) * norm.weight + norm.bias
    return y.movedim(-1, 1).to(x.dtype), (moved.flatten(-2) * norm.weight).movedim(-1, 1).to(
        direction.dtype
    )
