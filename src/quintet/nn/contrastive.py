"""Contrastive losses of paired features, and their gradient over the whole global batch.

Shapes: m pairs of the global batch, d features of unit length.

Softmax both ways (InfoNCE as in CLIP, arXiv 2103.00020), without the pair itself among the
negatives (decoupled, arXiv 2110.06848), and of each pair alone (sigmoid, SigLIP, arXiv 2303.15343).
A network too large for the whole batch at once still gets its gradient (GradCache, arXiv
2101.06983): features first, the gradient of the loss at the features, and then a surrogate for
each micro-batch whose gradient that is. Every process holds the table of m x m logits: 4 bytes
each, so 8,192 pairs take 256 MiB a copy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.quantise import full_precision, straight_through, without_autocast

Kind = Literal["softmax", "decoupled", "sigmoid"]

COLDEST, WARMEST = 0.01, 10.0
"""Limits of the temperature that logits are divided by."""


ROWS = 1024
"""Queries that are ranked at a time: bounds the table of similarities."""


class Pairs(NamedTuple):
    """What a contrastive loss is a function of."""

    audio: Tensor
    """(m, d)."""
    text: Tensor
    """(m, d)."""
    log_temperature: Tensor
    """0-dim: logits are divided by its exponential."""
    bias: Tensor | None = None
    """0-dim: added to logits by the sigmoid loss."""


def clamp_temperature(log_temperature: Tensor) -> Tensor:
    return log_temperature.clamp(math.log(COLDEST), math.log(WARMEST))


def similarities(audio: Tensor, text: Tensor) -> Tensor:
    """(m, n) products in full precision, whatever the autocast."""
    audio, text = full_precision(audio), full_precision(text)
    with without_autocast(audio):
        if not audio.is_cuda:
            return audio @ text.T
        # A run may have let products of fp32 round to 10 bits; at 1/100 that is a tenth of a logit.
        return (audio.double() @ text.double().T).to(audio.dtype)


def logits_of(pairs: Pairs) -> Tensor:
    cold = clamp_temperature(full_precision(pairs.log_temperature))
    return similarities(pairs.audio, pairs.text) * torch.exp(-cold)


def softmax_loss(pairs: Pairs) -> Tensor:
    """The mean of finding each text by its sound and each sound by its text."""
    logits = logits_of(pairs)
    both = logits.logsumexp(0) + logits.logsumexp(1)
    return (both / 2 - logits.diagonal()).mean()


def decoupled_loss(pairs: Pairs) -> Tensor:
    """The same, with the pair itself left out of what it is compared with."""
    logits = logits_of(pairs)
    if len(logits) < 2:
        raise ValueError("the decoupled loss compares pairs with others: it needs two or more")
    itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    others = logits.masked_fill(itself, float("-inf"))
    both = others.logsumexp(0) + others.logsumexp(1)
    return (both / 2 - logits.diagonal()).mean()


def sigmoid_loss(pairs: Pairs) -> Tensor:
    """Each of the m x m pairs is told apart alone; the sum over them for each of the m."""
    logits = logits_of(pairs)
    if pairs.bias is not None:
        logits = logits + full_precision(pairs.bias)
    # softplus(x) for strangers; for those that belong together softplus(-x) = softplus(x) - x.
    return (F.softplus(logits).sum() - logits.diagonal().sum()) / len(logits)


LOSSES: dict[Kind, Callable[[Pairs], Tensor]] = {
    "softmax": softmax_loss,
    "decoupled": decoupled_loss,
    "sigmoid": sigmoid_loss,
}


def contrastive_loss(kind: Kind, pairs: Pairs) -> Tensor:
    """0-dim in full precision, whatever the autocast."""
    with without_autocast(pairs.audio):
        return LOSSES[kind](pairs)


def resting_loss(kind: Kind, count: int) -> float:
    """What the loss comes to where all features are alike: nothing has been learned."""
    if kind == "softmax":
        return math.log(count)
    if kind == "decoupled":
        return math.log(max(1, count - 1))
    # Equal logits at their best say 1 in `count`.
    rest = (count - 1) * math.log1p(-1 / count) if count > 1 else 0.0
    return math.log(count) - rest


@dataclass(frozen=True)
class Whole:
    """The loss of a global batch, and what it asks of the features of this process."""

    loss: Tensor
    """0-dim, of all m pairs."""
    accuracy: Tensor
    """0-dim: share of the sounds whose own text is the nearest."""
    count: int
    """m."""
    gradients: Sequence[Pairs]
    """For each micro-batch of this process; temperature and bias by its share of the pairs."""

    def share(self, index: int, found: Pairs) -> Tensor:
        """Micro-batch `index`'s part of the loss; the gradients of all parts add up to the
        whole's. `found` are its features, with their graph."""
        asked = self.gradients[index]
        terms = [(x * g).sum() for x, g in zip(found, asked) if x is not None and g is not None]
        part = self.loss * (len(found.audio) / self.count)
        return straight_through(part, torch.stack(terms).sum())


def whole_batch(
    kind: Kind, found: Sequence[Pairs], gather: Callable[[Tensor], Tensor], rank: int
) -> Whole:
    """`found` holds the micro-batches of this process, `rank` its place in what `gather` joins.

    Every process computes the same whole, so nothing else has to travel.
    """
    sizes = [len(pairs.audio) for pairs in found]
    leaves = [gather(torch.cat([p.audio for p in found]).detach()).requires_grad_()]
    leaves += [gather(torch.cat([p.text for p in found]).detach()).requires_grad_()]
    leaves += [x.detach().clone().requires_grad_() for x in found[0][2:] if x is not None]
    with torch.enable_grad():
        loss = contrastive_loss(kind, Pairs(*leaves))
    audio, text, *scalars = torch.autograd.grad(loss, leaves)
    count, mine = len(audio), slice(rank * sum(sizes), (rank + 1) * sum(sizes))
    rows = zip(sizes, audio[mine].split(sizes), text[mine].split(sizes))
    gradients = [Pairs(a, t, *(g * (size / count) for g in scalars)) for size, a, t in rows]
    return Whole(loss.detach(), accuracy(*leaves[:2]), count, gradients)


@torch.no_grad()
def accuracy(audio: Tensor, text: Tensor) -> Tensor:
    nearest = similarities(audio, text).argmax(1)
    return (nearest == torch.arange(len(audio), device=audio.device)).float().mean()


@torch.no_grad()
def ranks(queries: Tensor, answers: Tensor) -> Tensor:
    """(m,): how many answers are nearer to each query than its own, 0 at best.

    Those exactly as near count half, or features that are all alike would all be right.
    """
    found: list[Tensor] = []
    for begin in range(0, len(queries), ROWS):
        near = similarities(queries[begin : begin + ROWS], answers)
        own = near.diagonal(begin)[:, None]
        found.append((near > own).sum(1) + ((near == own).sum(1) - 1) / 2)
    return torch.cat(found)
