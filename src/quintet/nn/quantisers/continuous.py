"""Continuous bottlenecks, for models that generate latents by diffusion.

Both project the encoder's output to a few channels (b, d, ...) and back. In training the decoder
sees noisy latents, so that it is smooth between them; codes are without noise. Noise is an argument
(b, d, ...): who trains decides what it follows from.
"""

import math
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.nn.precision import without_autocast
from quintet.nn.quantisers.base import (
    Bottleneck,
    ProjectIn,
    ProjectOut,
    channels_first,
    channels_last,
)

LOG_VARIANCE = (-30.0, 20.0)
"""Bounds of log-variances, so that variances stay finite."""
INITIAL_LOG_VARIANCE = -4.0
"""Deviation 0.14 at first: with that of the prior the decoder would see more noise than signal."""


class Latents(NamedTuple):
    """What a continuous bottleneck returns; the first fields are those of `Quantised`."""

    values: Tensor
    """(b, c, ...): the decoder's input, with noise if there was any."""
    ids: None
    loss: Tensor
    """0-dim, fp32: weighted, averaged over elements."""
    latents: Tensor
    """(b, d, ...), fp32: the codes, without noise."""
    kl: Tensor | None = None
    """(b,): divergence from a standard normal, nats per element; of a Gaussian bottleneck."""


class ContinuousBottleneck(Bottleneck):
    """Codes are latents with `channels` channels, fp32."""

    code_name = "latents"

    def __init__(self, dim: int, channels: int, outputs: int) -> None:
        super().__init__()
        self.channels = channels
        self.project_in = ProjectIn(dim, outputs)
        self.project_out = ProjectOut(channels, dim)

    def codes_to_values(self, codes: Tensor) -> Tensor:
        with without_autocast(codes):
            return self.project_out(channels_last(codes.to(self.project_out.weight.dtype)))

    def describe(self, positions: str) -> str:
        return f"(batch, {self.channels}, {positions}) float32"

    def check(self, codes: Tensor, positions: str) -> None:
        axes = f"b, {self.channels}, {positions}"
        shaped = codes.ndim == axes.count(",") + 1 and codes.shape[1] == self.channels
        if not shaped or not codes.is_floating_point():
            raise ValueError(
                f"expected float latents ({axes}), not {codes.dtype} {tuple(codes.shape)}"
            )

    def rows(self, output: Any) -> dict[str, Tensor]:
        latents = output.latents.flatten(2)
        rows = {"latent_mean": latents.mean(2), "latent_square": latents.square().mean(2)}
        return rows if output.kl is None else {**rows, "kl": output.kl}

    def summarise(self, rows: MutableMapping[str, Tensor]) -> dict[str, float]:
        """Deviation of all latents and of the channel that varies least, and bits per element."""
        mean, square = (rows.pop(f"latent_{name}").double().mean(0) for name in ("mean", "square"))
        metrics = {
            "latent_std": (square.mean() - mean.mean().square()).clamp_min(0).sqrt().item(),
            "latent_std_min": (square - mean.square()).min().clamp_min(0).sqrt().item(),
        }
        if "kl" in rows:
            metrics["kl_bits"] = rows.pop("kl").double().mean().item() / math.log(2)
        return metrics


class GaussianBottleneck(ContinuousBottleneck):
    """Diagonal Gaussians near a standard normal (arXiv 2112.10752). Codes are their means."""

    def __init__(self, dim: int, channels: int, *, kl_weight: float = 1e-6) -> None:
        super().__init__(dim, channels, 2 * channels)
        self.kl_weight = kl_weight
        with torch.no_grad():
            self.project_in.weight[channels:] = 0
            self.project_in.bias[channels:] = INITIAL_LOG_VARIANCE

    def forward(self, latents: Tensor, noise: Tensor | None = None) -> Latents:
        with without_autocast(latents):
            mean, log_variance = self.project_in(latents).chunk(2, -1)
            log_variance = log_variance.clamp(*LOG_VARIANCE)
            elements = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
            kl = elements.flatten(1).mean(1)
            drawn = mean
            if noise is not None:
                drawn = mean + (0.5 * log_variance).exp() * channels_last(noise)
            values = self.project_out(drawn)
        return Latents(values, None, self.kl_weight * kl.mean(), channels_first(mean), kl)

    def to_codes(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return channels_first(self.project_in(latents)[..., : self.channels])


class BoundedBottleneck(ContinuousBottleneck):
    """Latents with a root mean square of 1 over the channels of each position: the encoder cannot
    escape the noise by larger latents."""

    def __init__(self, dim: int, channels: int, *, noise: float = 0.1) -> None:
        if channels < 2:
            raise ValueError(f"channels must be 2 or more, not {channels}: one has constant size")
        super().__init__(dim, channels, channels)
        self.noise = noise

    def forward(self, latents: Tensor, noise: Tensor | None = None) -> Latents:
        with without_autocast(latents):
            bounded = self.bound(latents)
            noisy = bounded if noise is None else bounded + self.noise * channels_last(noise)
            values = self.project_out(noisy)
        return Latents(values, None, bounded.new_zeros(()), channels_first(bounded))

    def to_codes(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return channels_first(self.bound(latents))

    def bound(self, latents: Tensor) -> Tensor:
        projected = self.project_in(latents)
        return projected * torch.rsqrt(projected.square().mean(-1, keepdim=True) + 1e-6)
