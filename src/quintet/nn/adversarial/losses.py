"""Adversarial losses and gradient penalties, one value per sample: (b,).

Logits are (b, ...): patches are averaged per sample and samples stay separate, so that sums over
micro-batches and processes equal those of the whole batch. All in fp32.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.statistics import CommitContext, accumulator


def per_sample(values: Tensor) -> Tensor:
    """(b, ...) -> (b,): the mean of each sample."""
    return full_precision(values).flatten(1).mean(1)


def hinge_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    return per_sample(F.relu(1 - full_precision(real)) + F.relu(1 + full_precision(fake)))


def hinge_generator(fake: Tensor) -> Tensor:
    return -per_sample(fake)


def relativistic_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    """Relativistic pairing of each real patch with its reconstruction (R3GAN, arXiv 2501.05441)."""
    return per_sample(F.softplus(full_precision(fake) - full_precision(real)))


def relativistic_generator(real: Tensor, fake: Tensor) -> Tensor:
    return relativistic_discriminator(fake, real)


def r1_exact(discriminator: nn.Module, images: Tensor) -> Tensor:
    """R1: the squared gradient of the logits at real images (arXiv 1801.04406), by double backward.

    Logits are summed over the p patches and divided by sqrt(p): the mean squared gradient per patch
    for disjoint patches. Needs the eager module: compiled ones do not support double backward.
    """
    with without_autocast(images), torch.enable_grad():
        images = full_precision(images.detach()).requires_grad_()
        logits = discriminator(images).flatten(1)
        score = logits.sum() / logits.shape[1] ** 0.5
        (gradient,) = torch.autograd.grad(score, images, create_graph=True)
    return gradient.flatten(1).square().sum(1)


def r1_tangent(discriminator: nn.Module, images: Tensor, noise: Tensor) -> Tensor:
    """R1 from the derivative of the logits along normal noise: its square equals the squared
    gradient in expectation. In the precision of autocast, without double backward."""
    return per_sample(full_precision(discriminator(images, along=noise)).square())


class LeCam(nn.Module):
    """LeCam regularisation: logits near the moving average of the opposite class.

    arXiv 2104.03310, equation 6; for small data sets. Zero before the first commit.
    """

    decay = 0.99
    ema_logits: Tensor
    started: Tensor
    collected: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema_logits", torch.zeros(2))
        self.register_buffer("started", torch.zeros(()))
        self.register_buffer("collected", accumulator(3), persistent=False)

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        mean_real, mean_fake = self.ema_logits.unbind()
        if self.training:
            self.collect(per_sample(real.detach()), per_sample(fake.detach()))
        distance = (full_precision(real) - mean_fake).square()
        distance = distance + (full_precision(fake) - mean_real).square()
        return self.started * per_sample(distance)

    def collect(self, real: Tensor, fake: Tensor) -> None:
        ones = torch.ones_like(real)
        self.collected.add_(torch.stack((real, fake, ones), dim=1).sum(0))

    @torch.no_grad()
    def commit(self, context: CommitContext) -> None:
        sums = context.sum(self.collected)
        means = sums[:2] / sums[2].clamp_min(1)
        usable = (sums[2] > 0) & (context.skipped == 0)
        updated = torch.lerp(means, self.ema_logits, self.decay * self.started)
        self.ema_logits.copy_(torch.where(usable, updated, self.ema_logits))
        self.started.copy_(torch.where(usable, 1.0, self.started))
        self.collected.zero_()
