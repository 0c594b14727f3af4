"""Which frames speak which token, learned from pairs alone (arXiv 2108.10447).

Shapes: b samples, t frames, n tokens, padded; `frames` and `tokens` (b,) are their true numbers, on
the device. An alignment begins with the first token, ends with the last, skips none and never turns
back: each token has one run of frames, of one frame or more.

Both dynamic programmes walk over tokens, which are far fewer than frames, with all frames at once.
Let sums[k, j] be what token k scores in the first j frames, and came[k, j] the ways through the
first j frames that are ready for token k. The ways that end in token k then are

    ways[k, j] = sums[k, j] + join over i < j of (came[k, i] - sums[k, i])

where i is the frame in which they came to it: a running maximum over i, or a running sum of
exponentials, is all that a token costs. As a difference of long sums it needs fp64. No token k can
end before frame k + 1, so that many columns are left out and all numbers are finite. Nothing is
read from the device, and shapes are static.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import full_precision, without_autocast

IMPOSSIBLE = -1e4
"""Stands for the logarithm of 0: sums of it stay finite."""


def inside(lengths: Tensor, size: int) -> Tensor:
    """(b, size) booleans: which places are not padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def inside_both(frames: Tensor, tokens: Tensor, shape: torch.Size) -> Tensor:
    """(b, t, n) booleans."""
    return inside(frames, shape[1])[:, :, None] & inside(tokens, shape[2])[:, None]


def finite(log_probs: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    """fp64, with nothing in it that a sum would not survive."""
    known = inside_both(frames, tokens, log_probs.shape)
    return torch.where(known, log_probs.double().clamp_min(IMPOSSIBLE), IMPOSSIBLE)


def running_sums(scores: Tensor) -> Tensor:
    """(b, t, n) -> (b, n, t + 1), from 0."""
    return F.pad(scores.transpose(1, 2).cumsum(-1), (1, 0))


# The best alignment.


def monotonic_search(log_probs: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    """Durations (b, n) int64 of the best alignment under log_probs (b, t, n); 0 for padding.

    They add up to `frames`. Of more tokens than frames, which cannot be aligned, some get none.
    """
    return _search(log_probs.detach(), frames, tokens)


# One operation each to the compiler, which would unroll the loop over tokens.
@torch.library.custom_op("quintet::monotonic_search", mutates_args=())
def _search(log_probs: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    sums = running_sums(finite(log_probs, frames, tokens))
    there = inside(tokens, log_probs.shape[2])
    starts = best_starts(sums)
    end = frames.long()
    ends = [end] * (log_probs.shape[2] - len(starts))
    for k in range(len(starts), 0, -1):
        start = starts[k - 1].gather(1, end[:, None])[:, 0]
        end = torch.where(there[:, k], start, end)
        ends.append(end)
    found = torch.stack(ends[::-1], 1)
    return found - F.pad(found[:, :-1], (1, 0))


def best_starts(sums: Tensor) -> list[Tensor]:
    """For each token but the first (b, t + 1): where it begins on the best way that ends there."""
    way = sums[:, 0, 1:]
    starts: list[Tensor] = []
    for k in range(1, min(sums.shape[1], sums.shape[2] - 1)):
        best, place = (way[:, :-1] - sums[:, k, k:-1]).cummax(-1)
        way = sums[:, k, k + 1 :] + best
        starts.append(F.pad(place + k, (k + 1, 0)))
    return starts


@_search.register_fake
def _(log_probs: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    return log_probs.new_empty(log_probs.shape[0], log_probs.shape[2], dtype=torch.int64)


# All alignments.


def forward_sum(log_probs: Tensor, frames: Tensor, tokens: Tensor, blank: float = 0.0) -> Tensor:
    """(b,), fp32: minus the logarithm of the probability of all alignments together.

    log_probs (b, t, n) are those of the tokens in each frame. Between tokens, and at both ends, a
    frame may also be blank, which at the logit 0 is as likely as all tokens together. Without it a
    young aligner gives nearly all frames to a few tokens and stays there; with -1 it finds its way
    several times more slowly. A sample with more tokens than frames costs nothing and teaches
    nothing.
    """
    return _forward_sum(full_precision(log_probs), frames, tokens, blank)[0]


@torch.library.custom_op("quintet::forward_sum", mutates_args=())
def _forward_sum(
    log_probs: Tensor, frames: Tensor, tokens: Tensor, blank: float
) -> tuple[Tensor, Tensor]:
    """The loss and the posterior (b, t, n), which is minus its gradient.

    What comes after a place is what comes before it when both sequences run backwards: the two
    sums are one pass over a batch twice as large.
    """
    every = math.log1p(math.exp(blank))
    scores = finite(log_probs, frames, tokens) - every
    both = torch.cat((scores, backwards(scores, frames, tokens)))
    until, since = all_ways(running_sums(both), blank - every).chunk(2)
    since = backwards(since, frames, tokens)
    possible = (tokens <= frames) & (tokens > 0)
    known = inside_both(frames, tokens, scores.shape) & possible[:, None, None]
    ways = torch.where(known, until + since - scores, -torch.inf)
    total = torch.where(possible, total_of(until, frames, tokens, blank - every), 0.0)
    posterior = (ways - total[:, None, None]).exp()
    return -total.to(log_probs.dtype), posterior.to(log_probs.dtype)


def all_ways(sums: Tensor, blank: float) -> Tensor:
    """(b, t, n): the ways that end in a token at a frame."""
    size = sums.shape[2]
    blanks = blank * torch.arange(size, device=sums.device, dtype=sums.dtype)
    came = blanks.expand(len(sums), size)
    found = torch.full_like(sums[:, :, 1:], -torch.inf)
    for k in range(min(sums.shape[1], size - 1)):
        way, later = found[:, k, k:], blanks[k + 1 :]
        joined = (came[:, :-1] - sums[:, k, k:-1]).logcumsumexp(-1)
        torch.add(sums[:, k, k + 1 :], joined, out=way)
        came = later + (way - later).logcumsumexp(-1)
    return found.transpose(1, 2)


def total_of(until: Tensor, frames: Tensor, tokens: Tensor, blank: float) -> Tensor:
    """(b,): all ways that end in the last token, and are blank from there on."""
    last = until.gather(2, (tokens - 1).clamp_min(0)[:, None, None].expand(-1, until.shape[1], 1))
    left = frames[:, None] - 1 - torch.arange(until.shape[1], device=until.device)
    return torch.where(left >= 0, last[..., 0] + blank * left, -torch.inf).logsumexp(1)


def backwards(values: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    """(b, t, n) from last to first, in both directions; padding stays at the end."""
    for dim, lengths in ((1, frames), (2, tokens)):
        place = torch.arange(values.shape[dim], device=values.device)
        place = (lengths[:, None] - 1 - place).clamp_min(0).unsqueeze(3 - dim)
        values = values.gather(dim, place.expand(values.shape))
    return values


@_forward_sum.register_fake
def _(log_probs: Tensor, frames: Tensor, tokens: Tensor, blank: float) -> tuple[Tensor, Tensor]:
    return log_probs.new_empty(log_probs.shape[0]), torch.empty_like(log_probs)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    (posterior,) = ctx.saved_tensors
    return -grads[0][:, None, None] * posterior, None, None, None


_forward_sum.register_autograd(_differentiate, setup_context=_remember)


def diagonal_prior(
    frames: Tensor, tokens: Tensor, size: tuple[int, int], *, narrowness: float = 1.0
) -> Tensor:
    """(b, t, n) fp32: logarithms of beta-binomial probabilities that move from first to last token.

    Padding among tokens is impossible. A larger narrowness keeps closer to the diagonal.
    """
    frame = torch.arange(1, size[0] + 1, device=frames.device)[:, None] * narrowness
    token = torch.arange(size[1], device=frames.device)
    last = (tokens[:, None, None] - 1).float()
    left = (narrowness * (frames[:, None, None] + 1) - frame).clamp_min(1e-3)
    rest = (last - token).clamp_min(0)
    ways_to_choose = torch.lgamma(last + 1) - torch.lgamma(token + 1.0) - torch.lgamma(rest + 1)
    chosen = log_beta(token + frame, rest + left) - log_beta(frame, left)
    known = inside(tokens, size[1])[:, None]
    return torch.where(known, ways_to_choose + chosen, IMPOSSIBLE)


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


# What follows from durations.


def token_of_frame(durations: Tensor, frames: int) -> Tensor:
    """(b, n) -> (b, frames): the place of each frame's token; n where durations have ended."""
    ends = durations.cumsum(1)
    at = torch.arange(frames, device=durations.device).expand(len(durations), frames)
    return torch.searchsorted(ends, at.contiguous(), right=True)


def expand(ids: Tensor, durations: Tensor, frames: int, padding: int = 0) -> Tensor:
    """Ids (b, n), each repeated for its duration: (b, frames), with `padding` after them."""
    place = token_of_frame(durations, frames)
    return F.pad(ids, (0, 1), value=padding).gather(1, place)


def binarisation_loss(log_probs: Tensor, durations: Tensor) -> Tensor:
    """(b,), fp32: minus the log-probabilities (b, t, n) along the alignment of these durations."""
    place = token_of_frame(durations, log_probs.shape[1])
    along = F.pad(full_precision(log_probs), (0, 1)).gather(2, place[..., None])
    return -along.sum((1, 2))


# The network.


def masked(rows: Tensor, mask: Tensor) -> Tensor:
    """(b, n, c) -> (b, c, n) with zeros for padding, as beyond the edge of a convolution."""
    return rows.transpose(1, 2).masked_fill(~mask[:, None], 0)


class Aligner(nn.Module):
    """Embedded tokens (b, n, c) and features of frames (b, t, m) -> log-probabilities (b, t, n).

    Each side is encoded by short convolutions; a token is likely in a frame that is close to it.
    """

    def __init__(self, token_dim: int, frame_dim: int, dim: int = 80) -> None:
        super().__init__()
        self.dim = dim
        self.token_near = nn.Conv1d(token_dim, 2 * dim, 3, padding=1)
        self.token_out = nn.Conv1d(2 * dim, dim, 1)
        self.frame_near = nn.Conv1d(frame_dim, 2 * dim, 3, padding=1)
        self.frame_between = nn.Conv1d(2 * dim, dim, 1)
        self.frame_out = nn.Conv1d(dim, dim, 1)

    def forward(
        self,
        token_rows: Tensor,
        frame_rows: Tensor,
        tokens: Tensor,
        frames: Tensor,
        prior: Tensor | None = None,
    ) -> Tensor:
        token_mask = inside(tokens, token_rows.shape[1])
        frame_mask = inside(frames, frame_rows.shape[1])
        keys = self.token_out(F.relu(self.token_near(masked(token_rows, token_mask))))
        queries = F.relu(self.frame_near(masked(frame_rows, frame_mask)))
        queries = self.frame_out(F.relu(self.frame_between(queries)))
        with without_autocast(keys):
            scores = closeness(full_precision(queries), full_precision(keys))
            scores = scores if prior is None else scores + prior
            return scores.masked_fill(~token_mask[:, None], IMPOSSIBLE).log_softmax(-1)


def closeness(queries: Tensor, keys: Tensor) -> Tensor:
    """(b, c, t) and (b, c, n) -> (b, t, n): minus half the squared distance, up to what all tokens
    of a frame have in common."""
    return queries.transpose(1, 2) @ keys - keys.square().sum(1)[:, None] / 2
