"""Cross-entropy over a large vocabulary without ever holding all logits.

n rows of hidden states, v words: n x v logits in fp32 are what fills a GPU first. Here they are
computed a slice of rows at a time, reduced in fp32, thrown away, and computed again for the
gradient, which is accumulated in fp32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.nn.quantise import full_precision

ELEMENTS = 2**26
"""Logits held at a time, about: 256 MB in fp32."""


class WordLosses(NamedTuple):
    loss: Tensor
    """(n,) in fp32, 0 where the target is negative."""
    correct: Tensor
    """(n,) booleans: the target has the highest logit."""


def working_dtype(hidden: Tensor) -> torch.dtype:
    """What a matrix product of this tensor is computed in."""
    device = hidden.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def slices(count: int, words: int, elements: int) -> list[tuple[int, int]]:
    """Starts and ends of equal slices (but the last), so that compiled kernels serve them all."""
    parts = max(1, -(-count * words // elements))
    size = max(1, -(-count // parts))
    return [(start, min(start + size, count)) for start in range(0, max(1, count), size)]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        elements: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        words = weight.to(dtype).T
        losses: list[Tensor] = []
        correct: list[Tensor] = []
        sums: list[Tensor] = []
        for start, end in slices(hidden.shape[0], weight.shape[0], elements):
            target = targets[start:end]
            logits = full_precision(hidden[start:end].to(dtype) @ words)
            total = logits.logsumexp(-1)
            hit = logits.gather(1, target.clamp_min(0)[:, None])[:, 0]
            loss = total - (1 - smoothing) * hit
            if smoothing:
                loss = loss - smoothing * logits.mean(-1)
            losses.append(torch.where(target >= 0, loss, torch.zeros_like(loss)))
            correct.append(logits.argmax(-1) == target)
            sums.append(total)
        every = torch.cat(sums)
        ctx.save_for_backward(hidden, weight, targets, every)
        ctx.smoothing, ctx.elements, ctx.dtype = smoothing, elements, dtype
        hits = torch.cat(correct)
        ctx.mark_non_differentiable(hits)
        ctx.mark_non_differentiable(every)
        return torch.cat(losses), hits, every

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, sums = ctx.saved_tensors
        words = weight.to(ctx.dtype)
        columns = torch.arange(weight.shape[0], device=weight.device)
        to_weight = torch.zeros_like(weight, dtype=sums.dtype)
        to_hidden: list[Tensor] = []
        for start, end in slices(hidden.shape[0], weight.shape[0], ctx.elements):
            rows, target = hidden[start:end].to(ctx.dtype), targets[start:end, None]
            chance = torch.exp(full_precision(rows @ words.T) - sums[start:end, None])
            error = torch.where(columns == target, chance - (1 - ctx.smoothing), chance)
            if ctx.smoothing:
                error = error - ctx.smoothing / weight.shape[0]
            share = torch.where(target >= 0, grads[0][start:end, None], 0.0)
            scaled = (error * share).to(ctx.dtype)
            to_hidden.append((scaled @ words).to(hidden.dtype))
            to_weight = to_weight + (scaled.T @ rows).to(sums.dtype)
        return torch.cat(to_hidden), to_weight.to(weight.dtype), None, None, None, None


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    elements: int = ELEMENTS,
) -> WordLosses:
    """Cross-entropy of `hidden @ weight.T` (n, v) against `targets` (n,), for each row.

    hidden (n, d), weight (v, d); rows with a negative target cost nothing and teach nothing.
    """
    dtype = working_dtype(hidden)
    loss, correct, _ = _LinearCrossEntropy.apply(  # type: ignore[misc]
        hidden, weight, targets, smoothing, elements, dtype
    )
    return WordLosses(loss, correct)
