"""The balancer of EnCodec (arXiv 2210.13438): an adversarial weight from gradients that arrive.

The weight is the norm of the reconstruction loss's gradient over that of the adversarial loss's,
both taken at the reconstruction itself. Squared norms add over micro-batches and processes, need no
extra backward, and exist where parameters are sharded, unlike a gradient at the last layer.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quintet.nn.statistics import CommitContext, accumulator


class Branches(NamedTuple):
    reconstruction: Tensor
    """The picture for the losses that compare with the original."""
    adversarial: Tensor
    """The same picture for the critic."""


class _Measured(torch.autograd.Function):
    """Identity; its backward adds the squared norm of gradient / weight to a place."""

    @staticmethod
    def forward(ctx: Any, picture: Tensor, weight: Tensor, place: Tensor) -> Tensor:
        ctx.weight, ctx.place = weight, place
        return picture.view_as(picture)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        ctx.place.add_((gradient.float() / ctx.weight).square().sum())
        return gradient, None, None


class Balancer(nn.Module):
    """Makes the adversarial gradient `share` as large as the reconstruction's, within bounds.

    Give the branches of `split(picture, ramp)` to the two losses and multiply the adversarial one
    by `applied(ramp)`. The measured ratio holds from the next step on.
    """

    weight: Tensor
    norms: Tensor

    def __init__(
        self,
        *,
        share: float = 1.0,
        floor: float = 1e-4,
        cap: float = 1.0,
        smoothing: float = 0.9,
    ) -> None:
        super().__init__()
        if not 0 < floor <= cap:
            raise ValueError(f"the floor must be positive and at most the cap: {floor}, {cap}")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must be in 0..1, below 1, not {smoothing}")
        self.share, self.floor, self.cap, self.smoothing = share, floor, cap, smoothing
        self.register_buffer("weight", torch.tensor(floor))
        self.register_buffer("norms", accumulator(2), persistent=False)

    def applied(self, ramp: float = 1.0) -> Tensor:
        """The weight of this step; never zero, or its gradient could not be measured."""
        return (self.weight * ramp).clamp_min(self.floor)

    def split(self, picture: Tensor, ramp: float = 1.0) -> Branches:
        one = torch.ones_like(self.weight)
        return Branches(
            _Measured.apply(picture, one, self.norms[0]),  # pyright: ignore[reportArgumentType]
            _Measured.apply(picture, self.applied(ramp), self.norms[1]),  # pyright: ignore[reportArgumentType]
        )

    @torch.no_grad()
    def commit(self, at: CommitContext) -> None:
        """Move the weight towards the ratio of the step's norms; keep it where one is missing."""
        reconstruction, adversarial = at.sum(self.norms).unbind()
        ratio = self.share * (reconstruction / adversarial).sqrt()
        usable = (reconstruction > 0) & (adversarial > 0) & (at.skipped == 0) & ratio.isfinite()
        target = torch.where(usable, ratio, self.weight).clamp(self.floor, self.cap)
        self.weight.lerp_(target, 1 - self.smoothing)
        self.norms.zero_()
