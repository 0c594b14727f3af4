"""Residual codebooks of adopted codecs: they have no weights of their own.

Shapes: b sounds, c channels, t frames, k codebooks of v codes.
"""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.precision import full_precision, without_autocast, without_tf32
from quintet.nn.quantisers.base import DiscreteBottleneck, Quantised, straight_through

COMMITMENT = 0.25
"""Weight of the distance of latents from their codes."""


class Codebooks(DiscreteBottleneck):
    """Ids are (b, k, t) of the first `count` codebooks."""

    def __init__(self, quantiser: Any, size: int, count: int) -> None:
        super().__init__()
        self._network = (quantiser,)  # not a submodule: the weights are saved with the network
        self.codebook_size, self.count = size, count

    @property
    def network(self) -> Any:
        return self._network[0]

    def to_ids(self, latents: Tensor) -> Tensor:
        return self.forward(latents).ids

    def rows(self, output: Any) -> dict[str, Tensor]:
        """How often each code occurs."""
        counts = output.ids.new_zeros(*output.ids.shape[:2], self.codebook_size)
        return {"codes": counts.scatter_add_(2, output.ids, torch.ones_like(output.ids))}

    def summarise(self, rows: MutableMapping[str, Tensor]) -> dict[str, float]:
        counts = rows.pop("codes").sum(0).double()
        shares = counts / counts.sum(1, keepdim=True)
        entropy = -(shares * shares.clamp_min(1e-12).log()).sum(1)
        return {
            "codebook_usage": (counts > 0).double().mean().item(),
            "perplexity": entropy.exp().mean().item(),
        }


class DacCodebooks(Codebooks):
    """Codebooks of DacModel, which are trained by a loss."""

    weights = (COMMITMENT, 1.0)
    """Weights of the losses of the encoder and of the codebooks."""

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents), without_tf32():
            values, ids, _, commitment, codebook = self.network(full_precision(latents), self.count)
        first, second = self.weights
        return Quantised(values, ids, first * commitment.mean() + second * codebook.mean())

    def ids_to_values(self, ids: Tensor) -> Tensor:
        return self.network.from_codes(ids)[0]


class MovingCodebooks(Codebooks):
    """Codebooks of EncodecModel and MimiModel, which were moving averages and stay as they are. The
    encoder is trained towards them."""

    def forward(self, latents: Tensor) -> Quantised:
        values, ids, losses = [], [], []
        with without_autocast(latents), without_tf32():
            for group, count in self._groups():
                before = _projected(group, "input_proj", full_precision(latents))
                rest, total = before, torch.zeros_like(before)
                for layer in group.layers[:count]:
                    ids.append(layer.encode(rest))
                    code = layer.decode(ids[-1])
                    rest, total = rest - code, total + code
                losses.append(F.mse_loss(before, total.detach()))
                values.append(_projected(group, "output_proj", straight_through(total, before)))
            loss = COMMITMENT * torch.stack(losses).sum()
            return Quantised(torch.stack(values).sum(0), torch.stack(ids, 1), loss)

    def ids_to_values(self, ids: Tensor) -> Tensor:
        values: list[Tensor] = []
        for group, count in self._groups():
            own, ids = ids[:, :count], ids[:, count:]
            codes = [layer.decode(each) for layer, each in zip(group.layers, own.unbind(1))]
            values.append(_projected(group, "output_proj", torch.stack(codes).sum(0)))
        return torch.stack(values).sum(0)

    def _groups(self) -> list[tuple[Any, int]]:
        """Residual quantisers, all of the same latents, and how many codebooks of each are used."""
        if not hasattr(self.network, "semantic_residual_vector_quantizer"):
            return [(self.network, self.count)]
        first = self.network.num_semantic_quantizers
        acoustic = self.network.acoustic_residual_vector_quantizer
        groups = [(self.network.semantic_residual_vector_quantizer, first)]
        return [*groups, (acoustic, self.count - first)] if self.count > first else groups


def _projected(group: Any, name: str, values: Tensor) -> Tensor:
    layer = getattr(group, name, None)
    return values if layer is None else layer(values)
