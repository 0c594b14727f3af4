"""Fused linear cross-entropy over a large vocabulary, without materialising all logits.

With n hidden states and v tokens, the n x v fp32 logits dominate GPU memory. They are computed for
one chunk of rows at a time, reduced in fp32, discarded, and recomputed in the backward pass, which
accumulates the weight gradient in fp32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.nn.precision import full_precision

MAX_LOGITS = {"cpu": 2**21}
"""Approximate number of logits in memory at once. On a CPU, 8 MB in fp32 fit the cache, which is
four times as fast as main memory; elsewhere 256 MB, since each chunk costs a kernel launch."""


class TokenLosses(NamedTuple):
    loss: Tensor
    """(n,) in fp32, 0 where the target is negative."""
    correct: Tensor
    """(n,) booleans: the target has the strictly highest logit."""


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """Dtype of a matrix product with this tensor, under autocast if enabled."""
    device = hidden.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def row_chunks(rows: int, vocabulary: int, max_logits: int) -> list[tuple[int, int]]:
    """Start and end of each chunk; all but the last have one size, to reuse compiled kernels."""
    chunks = max(1, -(-rows * vocabulary // max_logits))
    size = max(1, -(-rows // chunks))
    return [(start, min(start + size, rows)) for start in range(0, max(1, rows), size)]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        max_logits: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        projection = weight.to(dtype).T
        losses: list[Tensor] = []
        correct: list[Tensor] = []
        sums: list[Tensor] = []
        for start, end in row_chunks(hidden.shape[0], weight.shape[0], max_logits):
            target = targets[start:end]
            logits = full_precision(hidden[start:end].to(dtype) @ projection)
            hit = logits.gather(1, target.clamp_min(0)[:, None])
            rank = (logits >= hit).sum(-1)
            top = logits.amax(-1, keepdim=True)
            log_sum = top[:, 0] + logits.sub_(top).exp_().sum(-1).log()
            loss = log_sum - hit[:, 0]
            losses.append(torch.where(target >= 0, loss, torch.zeros_like(loss)))
            correct.append((rank == 1) & (target >= 0))
            sums.append(log_sum)
        log_sums = torch.cat(sums)
        ctx.save_for_backward(hidden, weight, targets, log_sums)
        ctx.max_logits, ctx.dtype = max_logits, dtype
        hits = torch.cat(correct)
        ctx.mark_non_differentiable(hits)
        ctx.mark_non_differentiable(log_sums)
        return torch.cat(losses), hits, log_sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, sums = ctx.saved_tensors
        projection = weight.to(ctx.dtype)
        columns = torch.arange(weight.shape[0], device=weight.device)
        grad_weight = torch.zeros_like(weight, dtype=sums.dtype)
        grad_hidden: list[Tensor] = []
        for start, end in row_chunks(hidden.shape[0], weight.shape[0], ctx.max_logits):
            rows, target = hidden[start:end].to(ctx.dtype), targets[start:end, None]
            error = full_precision(rows @ projection.T).sub_(sums[start:end, None]).exp_()
            if torch.compiler.is_compiling():  # fuses
                error = torch.where(columns == target, error - 1, error)
            else:
                offset = torch.full_like(sums[start:end, None], -1.0)
                error.scatter_add_(1, target.clamp_min(0), offset)
            grad_loss = torch.where(target >= 0, grads[0][start:end, None], 0.0)
            scaled = error.mul_(grad_loss).to(ctx.dtype)
            grad_hidden.append((scaled @ projection).to(hidden.dtype))
            grad_weight += scaled.T @ rows
        return torch.cat(grad_hidden), grad_weight.to(weight.dtype), None, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, max_logits: int | None = None
) -> TokenLosses:
    """Cross-entropy of `hidden @ weight.T` (n, v) against `targets` (n,), for each row.

    hidden (n, d), weight (v, d); rows with a negative target are ignored.
    """
    dtype = compute_dtype(hidden)
    max_logits = max_logits or MAX_LOGITS.get(hidden.device.type, 2**26)
    loss, correct, _ = _LinearCrossEntropy.apply(  # type: ignore[misc]
        hidden, weight, targets, max_logits, dtype
    )
    return TokenLosses(loss, correct)
