"""Cross-entropy over a large vocabulary without ever holding all logits.

n rows of hidden states, v words: n x v logits in fp32 are what fills a GPU first. Here they are
computed a slice of rows at a time, reduced in fp32, thrown away, and computed again for the
gradient, which is accumulated in fp32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.nn.quantise import full_precision

ELEMENTS = {"cpu": 2**21}
"""Logits held at a time, about: 8 MB in fp32 stay in the cache of a CPU, which is four times as
fast as walking through memory; on other devices 256 MB, since there each slice costs a launch."""


class WordLosses(NamedTuple):
    loss: Tensor
    """(n,) in fp32, 0 where the target is negative."""
    correct: Tensor
    """(n,) booleans: no other word has as high a logit as the target."""


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
            hit = logits.gather(1, target.clamp_min(0)[:, None])
            ahead = (logits >= hit).sum(-1)
            mean = logits.mean(-1) if smoothing else 0.0
            top = logits.amax(-1, keepdim=True)
            total = top[:, 0] + logits.sub_(top).exp_().sum(-1).log()
            loss = total - (1 - smoothing) * hit[:, 0] - smoothing * mean
            losses.append(torch.where(target >= 0, loss, torch.zeros_like(loss)))
            correct.append((ahead == 1) & (target >= 0))
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
            error = full_precision(rows @ words.T).sub_(sums[start:end, None]).exp_()
            if torch.compiler.is_compiling():  # fuses
                error = torch.where(columns == target, error - (1 - ctx.smoothing), error)
            else:
                less = torch.full_like(sums[start:end, None], ctx.smoothing - 1)
                error.scatter_add_(1, target.clamp_min(0), less)
            if ctx.smoothing:
                error = error - ctx.smoothing / weight.shape[0]
            share = torch.where(target >= 0, grads[0][start:end, None], 0.0)
            scaled = error.mul_(share).to(ctx.dtype)
            to_hidden.append((scaled @ words).to(hidden.dtype))
            to_weight += scaled.T @ rows
        return torch.cat(to_hidden), to_weight.to(weight.dtype), None, None, None, None


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    elements: int | None = None,
) -> WordLosses:
    """Cross-entropy of `hidden @ weight.T` (n, v) against `targets` (n,), for each row.

    hidden (n, d), weight (v, d); rows with a negative target cost nothing and teach nothing.
    """
    dtype = working_dtype(hidden)
    elements = elements or ELEMENTS.get(hidden.device.type, 2**26)
    loss, correct, _ = _LinearCrossEntropy.apply(  # type: ignore[misc]
        hidden, weight, targets, smoothing, elements, dtype
    )
    return WordLosses(loss, correct)
