"""Interface and projections of the bottlenecks: quantisers, and continuous ones (continuous.py).

Each takes latents (b, c, ...) and returns `Quantised`: values of the same shape, ids (b, ...) and a
0-dim loss. Codes are what is stored or generated: ids, or the channels (b, d, ...) of a continuous
bottleneck. Each normalises its input over channels and projects it to unit scale: without that, the
latents of an untrained encoder fall into one cell and the codebook collapses. Everything runs in
fp32 regardless of autocast and TF32, because rounding must not depend on the precision of the run.
"""

import math
from collections.abc import MutableMapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision, linear
from quintet.nn.quantisers.codebook import codebook_usage, digit_usage

COUNTABLE = 2**16
"""Codes whose usage an evaluation can measure; with more, it measures that of their digits."""


class Quantised(NamedTuple):
    values: Tensor
    """(b, c, ...): the decoder's input, with a gradient to the latents."""
    ids: Tensor
    """(b, ...): integers below `codebook_size`."""
    loss: Tensor
    """0-dim, fp32: weighted, averaged over positions."""


class Bottleneck(nn.Module):
    """Between the encoder and the decoder of a tokenizer: latents -> codes -> values."""

    code_name: ClassVar[Literal["ids", "latents"]]
    """What codes are, and their name in files and exported graphs."""

    @property
    def discrete(self) -> bool:
        return self.code_name == "ids"

    def to_codes(self, latents: Tensor) -> Tensor:
        raise NotImplementedError

    def codes_to_values(self, codes: Tensor) -> Tensor:
        raise NotImplementedError

    def describe(self, positions: str) -> str:
        """Shape and type of codes at these positions, such as "16, 16"."""
        raise NotImplementedError

    def check(self, codes: Tensor, positions: str) -> None:
        """Refuse codes from outside of the model with other axes than b, `positions` (h, w), or out
        of range. Synchronises with the device: not for training."""
        raise NotImplementedError

    def rows(self, output: Any) -> dict[str, Tensor]:
        """Rows for an evaluation, one per sample, from the output of `forward`."""
        raise NotImplementedError

    def summarise(self, rows: MutableMapping[str, Tensor]) -> dict[str, float]:
        """Metrics of these rows of all samples, which it takes out."""
        raise NotImplementedError


class DiscreteBottleneck(Bottleneck):
    """A quantiser: codes are ids."""

    code_name = "ids"
    codebook_size: int
    digits: tuple[int, ...] = ()
    """Bases of the digits of an id, least significant first; empty if it has none."""
    level = 0
    """Which level of a residual quantiser it is: each draws noise of its own."""

    def to_ids(self, latents: Tensor) -> Tensor:
        raise NotImplementedError

    def ids_to_values(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def to_codes(self, latents: Tensor) -> Tensor:
        return self.to_ids(latents)

    def codes_to_values(self, codes: Tensor) -> Tensor:
        return self.ids_to_values(codes)

    def describe(self, positions: str) -> str:
        return f"(batch, {positions}) int64 below {self.codebook_size}"

    def check(self, codes: Tensor, positions: str) -> None:
        axes, size = f"b, {positions}", self.codebook_size
        if codes.ndim != axes.count(",") + 1 or codes.is_floating_point():
            raise ValueError(
                f"expected integer ids ({axes}), not {codes.dtype} {tuple(codes.shape)}"
            )
        check_ids(
            codes, size, f"the codebook has {size} codes: decode with the model that encoded them"
        )

    def rows(self, output: Any) -> dict[str, Tensor]:
        return {"ids": output.ids}

    def summarise(self, rows: MutableMapping[str, Tensor]) -> dict[str, float]:
        ids = rows.pop("ids")
        size, usage = self.codebook_size, codebook_usage(ids, self.codebook_size)
        if self.digits and size > COUNTABLE:
            size, usage = max(self.digits), digit_usage(ids, self.digits)
        return {
            "codebook_usage": usage.fraction.item(),
            "codebook_coverage": usage.coverage.item(),
            "perplexity": usage.perplexity.item(),
            "tokens_per_code": ids.numel() / size,
        }


def straight_through(value: Tensor, soft: Tensor) -> Tensor:
    """`value`, bit for bit, with the gradient of `soft`: the term in brackets is exactly zero."""
    return value.detach() + (soft - soft.detach())


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1)


def channels_first(tensor: Tensor) -> Tensor:
    return tensor.movedim(-1, 1)


class ProjectIn(nn.Module):
    """(b, c, ...) -> (b, ..., d): layer norm and a 1x1 projection, unit variance at init."""

    def __init__(self, dim: int, code_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.randn(code_dim, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(code_dim))

    def forward(self, latents: Tensor) -> Tensor:
        hidden = F.layer_norm(full_precision(channels_last(latents)), (self.dim,))
        return linear(hidden, self.weight, self.bias)


class ProjectOut(nn.Module):
    """(b, ..., d) -> (b, c, ...): a 1x1 projection, unit variance at init for codes of `scale`."""

    def __init__(self, code_dim: int, dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, code_dim) / (math.sqrt(code_dim) * scale))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, values: Tensor) -> Tensor:
        return channels_first(linear(values, self.weight, self.bias))


def check_ids(ids: Tensor, size: int, remedy: str, least: int = 0) -> None:
    """On a GPU an id without an embedding would end the process."""
    if ids.numel() and not least <= ids.min() <= ids.max() < size:
        raise ValueError(
            f"ids range from {ids.min()} to {ids.max()}, outside {least} … {size - 1}; {remedy}"
        )
