"""Bottlenecks of adopted autoencoders: they have no weights of their own."""

from typing import Any

import torch
from torch import Tensor, nn

from quintet.nn.precision import full_precision, without_autocast, without_tf32
from quintet.nn.quantisers.base import Bottleneck, DiscreteBottleneck, Quantised
from quintet.nn.quantisers.continuous import LOG_VARIANCE, ContinuousBottleneck, Latents


class AdoptedLatents(ContinuousBottleneck):
    """Codes are the decoder's input as it is."""

    def __init__(self, channels: int) -> None:
        Bottleneck.__init__(self)  # without projections
        self.channels = channels

    def forward(self, latents: Tensor) -> Latents:
        latents = full_precision(latents)
        return Latents(latents, None, latents.new_zeros(()), latents)

    def to_codes(self, latents: Tensor) -> Tensor:
        return full_precision(latents)

    def codes_to_values(self, codes: Tensor) -> Tensor:
        return codes


class AdoptedGaussian(AdoptedLatents):
    """Latents before it are means and log-variances (b, 2 c, ...); codes are means."""

    def __init__(self, channels: int, kl_weight: float) -> None:
        super().__init__(channels)
        self.kl_weight = kl_weight

    def forward(self, latents: Tensor, noise: Tensor | None = None) -> Latents:
        with without_autocast(latents):
            mean, log_variance = full_precision(latents).chunk(2, 1)
            log_variance = log_variance.clamp(*LOG_VARIANCE)
            elements = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
            kl = elements.flatten(1).mean(1)
            drawn = mean if noise is None else mean + (0.5 * log_variance).exp() * noise
        return Latents(drawn, None, self.kl_weight * kl.mean(), mean, kl)

    def to_codes(self, latents: Tensor) -> Tensor:
        return full_precision(latents[:, : self.channels])


class AdoptedCodebook(DiscreteBottleneck):
    """The quantiser of a VQModel, with its own loss."""

    def __init__(self, quantiser: Any) -> None:
        super().__init__()
        self._network = (quantiser,)  # not a submodule: the weights are saved with the network
        self.codebook_size = quantiser.n_e

    @property
    def network(self) -> Any:
        return self._network[0]

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents), without_tf32():
            flat = full_precision(latents).flatten(2)[..., None]  # of any number of axes
            values, loss, (*_, ids) = self.network(flat)
        return Quantised(values.view_as(latents), ids.view(len(latents), *latents.shape[2:]), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        return self.forward(latents).ids

    def ids_to_values(self, ids: Tensor) -> Tensor:
        return self.network.embedding(ids).movedim(-1, 1)


def bottleneck_of(
    network: nn.Module, gaussian: bool, channels: int, kl_weight: float
) -> Bottleneck:
    """The bottleneck for a network whose `encode` returns a distribution, or latents."""
    if hasattr(network, "quantize"):
        return AdoptedCodebook(network.quantize)
    return AdoptedGaussian(channels // 2, kl_weight) if gaussian else AdoptedLatents(channels)


def is_gaussian(encoded: Any) -> bool:
    return not isinstance(encoded, Tensor) and hasattr(encoded, "logvar")


def as_tensor(encoded: Any) -> Tensor:
    """What `encode` returned as one tensor: means and log-variances, or latents."""
    if isinstance(encoded, Tensor):
        return encoded
    return torch.cat([encoded.mean, encoded.logvar], 1) if is_gaussian(encoded) else encoded.mode()
