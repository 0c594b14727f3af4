"""Loss balancer (EnCodec, arXiv 2210.13438): an adversarial weight from gradient norms.

The weight is the gradient norm of the reconstruction loss over that of the adversarial loss, both
at the reconstruction. Squared norms are additive over micro-batches and processes, need no extra
backward, and work with sharded parameters, unlike gradients at the last layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from quintet.nn.statistics import CommitContext, accumulator


class _GradientNorm(torch.autograd.Function):
    """Identity; its backward adds the squared norm of gradient / weight to an accumulator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, total: Tensor) -> Tensor:
        ctx.weight, ctx.total = weight, total
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        ctx.total.add_((gradient.float() / ctx.weight).square().sum())
        return gradient, None, None


class Balancer(nn.Module):
    """Scales the adversarial gradient to `share` of the reconstruction's, within bounds.

    Compute the two losses on the branches of `split(reconstruction, ramp)` and multiply the
    adversarial one by `effective_weight(ramp)`. A measured ratio takes effect at the next step.
    """

    floor, smoothing = 1e-4, 0.9
    weight: Tensor
    norms: Tensor

    def __init__(self, *, share: float = 1.0, cap: float = 1.0) -> None:
        super().__init__()
        self.share, self.cap = share, cap
        self.register_buffer("weight", torch.tensor(self.floor))
        self.register_buffer("norms", accumulator(2), persistent=False)

    def effective_weight(self, ramp: float | Tensor = 1.0) -> Tensor:
        """The weight at this step; never zero, because its gradient must be measurable."""
        return (self.weight * ramp).clamp_min(self.floor)

    def split(self, reconstruction: Tensor, ramp: float | Tensor = 1.0) -> tuple[Any, Any]:
        """The same tensor twice: for the reconstruction losses, and for the discriminators."""
        one = torch.ones_like(self.weight)
        return (
            _GradientNorm.apply(reconstruction, one, self.norms[0]),
            _GradientNorm.apply(reconstruction, self.effective_weight(ramp), self.norms[1]),
        )

    @torch.no_grad()
    def commit(self, context: CommitContext) -> None:
        """Update the moving average of the ratio; unchanged if a norm is missing."""
        reconstruction, adversarial = context.sum(self.norms).unbind()
        ratio = self.share * (reconstruction / adversarial).sqrt()
        usable = (
            (reconstruction > 0) & (adversarial > 0) & (context.skipped == 0) & ratio.isfinite()
        )
        target = torch.where(usable, ratio, self.weight).clamp(self.floor, self.cap)
        self.weight.lerp_(target, 1 - self.smoothing)
        self.norms.zero_()
