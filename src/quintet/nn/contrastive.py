"""Contrastive losses of paired embeddings, with the exact gradient over the global batch.

Shapes: m pairs of the global batch, embeddings of unit length and dimension d.

Symmetric softmax (InfoNCE as in CLIP, arXiv 2103.00020), decoupled (DCL: no positive in the
denominator, arXiv 2110.06848) and sigmoid (SigLIP, arXiv 2303.15343). Gradient caching (GradCache,
arXiv 2101.06983) makes the loss exact over micro-batches: embeddings first, the gradient of the
loss with respect to them, then a surrogate loss per micro-batch with that gradient. Every process
holds the (m, m) logits: 4 bytes each, so 8,192 pairs take 256 MiB per copy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.quantisers.base import straight_through

Kind = Literal["softmax", "decoupled", "sigmoid"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 10.0
RANK_CHUNK = 1024
"""Queries ranked at a time: bounds the memory of the similarities."""


class Pairs(NamedTuple):
    """Inputs of a contrastive loss."""

    audio: Tensor
    """(m, d)."""
    text: Tensor
    """(m, d)."""
    log_temperature: Tensor
    """0-dim: logits are divided by its exponential."""
    bias: Tensor | None = None
    """0-dim: added to logits by the sigmoid loss."""


def clamp_temperature(log_temperature: Tensor) -> Tensor:
    return log_temperature.clamp(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))


def similarities(audio: Tensor, text: Tensor) -> Tensor:
    """(m, n) dot products in full precision, regardless of autocast."""
    audio, text = full_precision(audio), full_precision(text)
    with without_autocast(audio):
        if not audio.is_cuda:
            return audio @ text.T
        # TF32 may be enabled, with a 10-bit mantissa; at a temperature of 0.01 that is 0.1 logit.
        return (audio.double() @ text.double().T).to(audio.dtype)


def logits_of(pairs: Pairs) -> Tensor:
    log_temperature = clamp_temperature(full_precision(pairs.log_temperature))
    return similarities(pairs.audio, pairs.text) * torch.exp(-log_temperature)


def softmax_loss(pairs: Pairs) -> Tensor:
    """Mean of the audio-to-text and the text-to-audio cross-entropy."""
    logits = logits_of(pairs)
    both = logits.logsumexp(0) + logits.logsumexp(1)
    return (both / 2 - logits.diagonal()).mean()


def decoupled_loss(pairs: Pairs) -> Tensor:
    """Symmetric softmax without the positive pair in the denominator."""
    logits = logits_of(pairs)
    if len(logits) < 2:
        raise ValueError("the decoupled loss needs two or more pairs")
    positives = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    negatives = logits.masked_fill(positives, float("-inf"))
    both = negatives.logsumexp(0) + negatives.logsumexp(1)
    return (both / 2 - logits.diagonal()).mean()


def sigmoid_loss(pairs: Pairs) -> Tensor:
    """Binary cross-entropy of all m x m pairs, summed and divided by m."""
    logits = logits_of(pairs)
    if pairs.bias is not None:
        logits = logits + full_precision(pairs.bias)
    # softplus(x) for negatives; for positives softplus(-x) = softplus(x) - x.
    return (F.softplus(logits).sum() - logits.diagonal().sum()) / len(logits)


LOSSES: dict[Kind, Callable[[Pairs], Tensor]] = {
    "softmax": softmax_loss,
    "decoupled": decoupled_loss,
    "sigmoid": sigmoid_loss,
}


def contrastive_loss(kind: Kind, pairs: Pairs) -> Tensor:
    """0-dim in full precision, regardless of autocast."""
    with without_autocast(pairs.audio):
        return LOSSES[kind](pairs)


def chance_loss(kind: Kind, count: int) -> float:
    """Loss of collapsed (identical) embeddings: chance level."""
    if kind == "softmax":
        return math.log(count)
    if kind == "decoupled":
        return math.log(max(1, count - 1))
    # The best constant logit predicts a probability of 1 / count.
    negatives = (count - 1) * math.log1p(-1 / count) if count > 1 else 0.0
    return math.log(count) - negatives


@dataclass(frozen=True)
class GlobalLoss:
    """Loss of a global batch, and its cached gradients for the micro-batches of this process."""

    loss: Tensor
    """0-dim, of all m pairs."""
    accuracy: Tensor
    """0-dim: top-1 accuracy from audio to text."""
    count: int
    """m."""
    gradients: Sequence[Pairs]
    """One per micro-batch; those of temperature and bias by its share of the pairs."""

    def surrogate(self, index: int, pairs: Pairs) -> Tensor:
        """Share of micro-batch `index` in the loss; the gradients of all shares add up to that of
        the global loss. `pairs` are its embeddings, with their graph."""
        grads = self.gradients[index]
        terms = [(x * g).sum() for x, g in zip(pairs, grads) if x is not None and g is not None]
        share = self.loss * (len(pairs.audio) / self.count)
        return straight_through(share, torch.stack(terms).sum())


def global_loss(
    kind: Kind, batches: Sequence[Pairs], gather: Callable[[Tensor], Tensor], rank: int
) -> GlobalLoss:
    """`batches` are the micro-batches of this process, `rank` its index in the result of `gather`.

    Every process computes the same global loss, so gradients need no further communication.
    """
    sizes = [len(pairs.audio) for pairs in batches]
    leaves = [gather(torch.cat([p.audio for p in batches]).detach()).requires_grad_()]
    leaves += [gather(torch.cat([p.text for p in batches]).detach()).requires_grad_()]
    leaves += [x.detach().clone().requires_grad_() for x in batches[0][2:] if x is not None]
    with torch.enable_grad():
        loss = contrastive_loss(kind, Pairs(*leaves))
    audio, text, *scalars = torch.autograd.grad(loss, leaves)
    count, local = len(audio), slice(rank * sum(sizes), (rank + 1) * sum(sizes))
    parts = zip(sizes, audio[local].split(sizes), text[local].split(sizes))
    gradients = [Pairs(a, t, *(g * (size / count) for g in scalars)) for size, a, t in parts]
    return GlobalLoss(loss.detach(), accuracy(*leaves[:2]), count, gradients)


@torch.no_grad()
def accuracy(audio: Tensor, text: Tensor) -> Tensor:
    nearest = similarities(audio, text).argmax(1)
    return (nearest == torch.arange(len(audio), device=audio.device)).float().mean()


@torch.no_grad()
def retrieval_ranks(queries: Tensor, targets: Tensor, captions: Tensor | None = None) -> Tensor:
    """(m,): number of targets more similar to each query than its own; 0 is best.

    Where `captions` (m,) are equal, each target is the query's own. Ties count half: otherwise
    collapsed embeddings would have perfect recall.
    """
    if captions is None:
        captions = torch.arange(len(queries), device=queries.device)
    ranks: list[Tensor] = []
    for chunk, asked in zip(queries.split(RANK_CHUNK), captions.split(RANK_CHUNK)):
        similarity = similarities(chunk, targets)
        is_own = asked[:, None] == captions
        own = similarity.masked_fill(~is_own, -math.inf).amax(1, keepdim=True)
        others = similarity.masked_fill(is_own, -math.inf)
        ranks.append((others > own).sum(1) + (others == own).sum(1) / 2)
    return torch.cat(ranks)
