"""Discriminators of sounds: of several periods (arXiv 2010.05646), which fold a sound into rows,
and of several resolutions (arXiv 2107.03312), which see its complex spectrogram.

Without norms: the logits of a sound do not depend on the batch, so that real and fake sounds may
share a call.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.adversarial.losses import hinge_discriminator, hinge_generator, per_sample
from quintet.nn.precision import full_precision, without_autocast

SLOPE = 0.1


class Judgement(NamedTuple):
    """Outputs of all members of a discriminator."""

    logits: list[Tensor]
    """(b, 1, h, w) of each member."""
    features: list[Tensor]
    """(b, c, h, w) of each layer of each member."""


class Member(nn.Module):
    """Convolutions, and the logits after them."""

    def __init__(self, layers: Sequence[nn.Conv2d], last: nn.Conv2d) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last

    def judge(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        features: list[Tensor] = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), SLOPE)
            features.append(x)
        return self.last(x), features


class PeriodMember(Member):
    """Compares samples that are `period` apart."""

    def __init__(self, period: int, dim: int) -> None:
        widths = [1, dim, 4 * dim, 16 * dim, 32 * dim]
        down = [nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairwise(widths)]
        wide = nn.Conv2d(widths[-1], widths[-1], (5, 1), padding=(2, 0))
        super().__init__([*down, wide], nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))
        self.period = period

    def forward(self, sounds: Tensor) -> tuple[Tensor, list[Tensor]]:
        short = -sounds.shape[1] % self.period
        rows = F.pad(sounds, (0, short)).unflatten(1, (-1, self.period))
        return self.judge(rows[:, None])


class ResolutionMember(Member):
    """Sees the spectrogram of one window length."""

    window: Tensor

    def __init__(self, n_fft: int, dim: int) -> None:
        layers = [nn.Conv2d(2, dim, (3, 9), padding=(1, 4))]
        for dilation in (1, 2, 4):
            layers.append(nn.Conv2d(dim, dim, (3, 9), (1, 2), (dilation, 4), (dilation, 1)))
        layers.append(nn.Conv2d(dim, dim, 3, padding=1))
        super().__init__(layers, nn.Conv2d(dim, 1, 3, padding=1))
        self.n_fft = n_fft
        window = torch.hann_window(n_fft)
        self.register_buffer("window", window / window.square().sum().sqrt(), persistent=False)

    def forward(self, sounds: Tensor) -> tuple[Tensor, list[Tensor]]:
        with without_autocast(sounds):
            pieces = full_precision(sounds).unfold(-1, self.n_fft, self.n_fft // 4)
            spectrum = torch.view_as_real(torch.fft.rfft(pieces * self.window))
        return self.judge(spectrum.movedim(-1, 1))


class SoundDiscriminator(nn.Module):
    """Sounds (b, n) -> logits and features of all members."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, sounds: Tensor) -> Judgement:
        judged = [member(sounds) for member in self.members]
        logits = [logit for logit, _ in judged]
        return Judgement(logits, [feature for _, features in judged for feature in features])


def period_discriminator(periods: Sequence[int], dim: int) -> SoundDiscriminator:
    return SoundDiscriminator([PeriodMember(period, dim) for period in periods])


def resolution_discriminator(windows: Sequence[int], dim: int) -> SoundDiscriminator:
    return SoundDiscriminator([ResolutionMember(n_fft, dim) for n_fft in windows])


def feature_matching(real: Judgement, fake: Judgement) -> Tensor:
    """(b,): distance of the features, summed over layers, averaged over members."""
    errors = [
        per_sample((full_precision(a) - full_precision(b)).abs())
        for a, b in zip(real.features, fake.features)
    ]
    return torch.stack(errors).sum(0) / len(real.logits)


def deception(discriminator: Any, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Losses of who made the fake sounds: hinge, and the distance of features."""
    with torch.no_grad():
        judged_real = discriminator(real)
    judged = discriminator(fake)
    losses = torch.stack([hinge_generator(logits) for logits in judged.logits])
    return losses.mean(), feature_matching(judged_real, judged).mean()


def discrimination(discriminator: Any, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Hinge loss of a discriminator, and how far real logits are above fake ones."""
    halves = [logits.chunk(2) for logits in discriminator(torch.cat([real, fake])).logits]
    loss = torch.stack([hinge_discriminator(*pair) for pair in halves]).mean()
    gaps = [(a.detach().float().mean() - b.detach().float().mean()) for a, b in halves]
    return loss, torch.stack(gaps).mean()
