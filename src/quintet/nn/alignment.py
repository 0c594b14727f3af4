"""Monotonic alignment of tokens with frames, learned without supervision (arXiv 2108.10447).

Shapes: b samples, t frames, n tokens, padded; `num_frames` and `num_tokens` (b,) are the lengths
without padding, on the device. An alignment is monotonic and complete: every token has one run of
one frame or more, in order.

Both dynamic programs loop over tokens, which are far fewer than frames, with all frames at once.
Let sums[k, j] be the score of token k summed over the first j frames, and entry[k, j] the paths
through the first j frames that may enter token k. The paths that end in token k are

    paths[k, j] = sums[k, j] + reduce over i < j of (entry[k, i] - sums[k, i])

where i is the frame of entry: each token costs one cumulative maximum, or logcumsumexp. As a
difference of long sums it needs fp64. Token k cannot end before frame k + 1, so those columns are
left out and all numbers are finite. Nothing is read from the device, and shapes are static.

On CUDA, where the loop costs some ten launches for each token, `kernels.alignment` replaces both,
except for fp64 input.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn import kernels
from quintet.nn.operations import without_compiler
from quintet.nn.precision import full_precision, matmul, without_autocast

IMPOSSIBLE = -1e4
"""Replaces log(0): sums of it stay finite."""


def inside(lengths: Tensor, size: int) -> Tensor:
    """(b, size) booleans: false for padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def inside_both(num_frames: Tensor, num_tokens: Tensor, shape: torch.Size) -> Tensor:
    """(b, t, n) booleans."""
    return inside(num_frames, shape[1])[:, :, None] & inside(num_tokens, shape[2])[:, None]


def clamp_log_probs(log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    """fp64, finite, with padding impossible."""
    known = inside_both(num_frames, num_tokens, log_probs.shape)
    return torch.where(known, log_probs.double().clamp_min(IMPOSSIBLE), IMPOSSIBLE)


def cumulative_scores(scores: Tensor) -> Tensor:
    """(b, t, n) -> (b, n, t + 1): cumulative sums over frames, from 0."""
    return F.pad(scores.transpose(1, 2).cumsum(-1), (1, 0))


# Viterbi: the best alignment.


def monotonic_search(log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    """Durations (b, n) int64 of the best alignment of log_probs (b, t, n); 0 for padding.

    They add up to `num_frames`. With more tokens than frames, which cannot be aligned, some get 0.
    """
    return _search(log_probs.detach(), num_frames, num_tokens)


def plain_search(log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    sums = cumulative_scores(clamp_log_probs(log_probs, num_frames, num_tokens))
    token_mask = inside(num_tokens, log_probs.shape[2])
    starts = best_starts(sums)
    end = num_frames.long()
    ends = [end] * (log_probs.shape[2] - len(starts))
    for k in range(len(starts), 0, -1):
        start = starts[k - 1].gather(1, end[:, None])[:, 0]
        end = torch.where(token_mask[:, k], start, end)
        ends.append(end)
    stacked = torch.stack(ends[::-1], 1)
    return stacked - F.pad(stacked[:, :-1], (1, 0))


def best_starts(sums: Tensor) -> list[Tensor]:
    """For each token but the first (b, t + 1): its start on the best path that ends there."""
    path = sums[:, 0, 1:]
    starts: list[Tensor] = []
    for k in range(1, min(sums.shape[1], sums.shape[2] - 1)):
        best, entry = (path[:, :-1] - sums[:, k, k:-1]).cummax(-1)
        path = sums[:, k, k + 1 :] + best
        starts.append(F.pad(entry + k, (k + 1, 0)))
    return starts


# A custom op, since the compiler would unroll the loop over tokens.
_search = torch.library.custom_op("quintet::monotonic_search", plain_search, mutates_args=())


def _search_on_cuda(log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    plain = log_probs.dtype == torch.float64 or not kernels.fits(log_probs)
    search = plain_search if plain else kernels.lazy("alignment").monotonic_search
    return search(log_probs, num_frames, num_tokens)


_search.register_kernel("cuda", _search_on_cuda)
without_compiler(_search)


@_search.register_fake
def _(log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    return log_probs.new_empty(log_probs.shape[0], log_probs.shape[2], dtype=torch.int64)


# Forward sum: the likelihood of all alignments.


def forward_sum(
    log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor, blank: float | Tensor = 0.0
) -> Tensor:
    """(b,), fp32: negative log-likelihood of all alignments.

    log_probs (b, t, n) are those of the tokens in each frame. Between tokens, and at both ends, a
    frame may also be blank; a blank logit of 0 is as likely as all tokens together. Without a
    blank, an untrained aligner collapses to a few tokens and stays there; with -1 it converges
    several times more slowly. With a blank of 0 to the end, tokens keep to their middles, and
    boundaries are vague: lower it later. A tensor (0-dim) may differ between replays of a step.
    A sample with more tokens than frames has loss and gradient 0.
    """
    scores = full_precision(log_probs)
    if not isinstance(blank, Tensor):
        return _forward_sum(scores, num_frames, num_tokens, blank)[0]
    # Tokens raised by as much as the blank is to be lowered; then the normaliser of each frame.
    loss = _forward_sum(scores - blank, num_frames, num_tokens, 0.0)[0]
    possible = (num_tokens <= num_frames) & (num_tokens > 0)
    return loss + num_frames * possible * (F.softplus(blank) - blank - math.log(2))


def plain_forward_sum(
    log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor, blank: float
) -> tuple[Tensor, Tensor]:
    """The loss, and the posterior (b, t, n), which is minus its gradient.

    The backward pass is the forward pass of the reversed sequences: both run as one batch of
    double size.
    """
    normaliser = math.log1p(math.exp(blank))
    scores = clamp_log_probs(log_probs, num_frames, num_tokens) - normaliser
    both = torch.cat((scores, reverse(scores, num_frames, num_tokens)))
    before, after = all_paths(cumulative_scores(both), blank - normaliser).chunk(2)
    after = reverse(after, num_frames, num_tokens)
    possible = (num_tokens <= num_frames) & (num_tokens > 0)
    known = inside_both(num_frames, num_tokens, scores.shape) & possible[:, None, None]
    paths = torch.where(known, before + after - scores, -torch.inf)
    total = torch.where(
        possible, total_likelihood(before, num_frames, num_tokens, blank - normaliser), 0.0
    )
    posterior = (paths - total[:, None, None]).exp()
    return -total.to(log_probs.dtype), posterior.to(log_probs.dtype)


def all_paths(sums: Tensor, blank: float) -> Tensor:
    """(b, t, n): the log-sum of paths that end in a token at a frame."""
    size = sums.shape[2]
    blanks = blank * torch.arange(size, device=sums.device, dtype=sums.dtype)
    entry = blanks.expand(len(sums), size)
    paths = torch.full_like(sums[:, :, 1:], -torch.inf)
    for k in range(min(sums.shape[1], size - 1)):
        path, later = paths[:, k, k:], blanks[k + 1 :]
        joined = (entry[:, :-1] - sums[:, k, k:-1]).logcumsumexp(-1)
        torch.add(sums[:, k, k + 1 :], joined, out=path)
        entry = later + (path - later).logcumsumexp(-1)
    return paths.transpose(1, 2)


def total_likelihood(paths: Tensor, num_frames: Tensor, num_tokens: Tensor, blank: float) -> Tensor:
    """(b,): the log-sum of paths that end in the last token, followed by blanks."""
    final = (num_tokens - 1).clamp_min(0)[:, None, None].expand(-1, paths.shape[1], 1)
    last = paths.gather(2, final)
    left = num_frames[:, None] - 1 - torch.arange(paths.shape[1], device=paths.device)
    return torch.where(left >= 0, last[..., 0] + blank * left, -torch.inf).logsumexp(1)


def reverse(values: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    """(b, t, n) reversed over frames and tokens; padding stays at the end."""
    for dim, lengths in ((1, num_frames), (2, num_tokens)):
        index = torch.arange(values.shape[dim], device=values.device)
        index = (lengths[:, None] - 1 - index).clamp_min(0).unsqueeze(3 - dim)
        values = values.gather(dim, index.expand(values.shape))
    return values


_forward_sum = torch.library.custom_op("quintet::forward_sum", plain_forward_sum, mutates_args=())


def _forward_sum_on_cuda(log_probs: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    plain = log_probs.dtype == torch.float64 or not kernels.fits(log_probs)
    forward_sum = plain_forward_sum if plain else kernels.lazy("alignment").forward_sum
    return forward_sum(log_probs, *arguments)


_forward_sum.register_kernel("cuda", _forward_sum_on_cuda)
without_compiler(_forward_sum)


@_forward_sum.register_fake
def _(log_probs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return log_probs.new_empty(log_probs.shape[0]), torch.empty_like(log_probs)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    (posterior,) = ctx.saved_tensors
    return -grads[0][:, None, None] * posterior, None, None, None


_forward_sum.register_autograd(_backward, setup_context=_setup_context)


def diagonal_prior(num_frames: Tensor, num_tokens: Tensor, size: tuple[int, int]) -> Tensor:
    """(b, t, n) fp32: log-probabilities of the beta-binomial alignment prior."""
    frame = torch.arange(1, size[0] + 1, device=num_frames.device)[:, None].float()
    token = torch.arange(size[1], device=num_frames.device)
    last = (num_tokens[:, None, None] - 1).float()
    left = (num_frames[:, None, None] + 1 - frame).clamp_min(1e-3)
    rest = (last - token).clamp_min(0)
    log_binomial = torch.lgamma(last + 1) - torch.lgamma(token + 1.0) - torch.lgamma(rest + 1)
    log_ratio = log_beta(token + frame, rest + left) - log_beta(frame, left)
    known = inside(num_tokens, size[1])[:, None]
    return torch.where(known, log_binomial + log_ratio, IMPOSSIBLE)


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


# Durations.


def token_of_frame(durations: Tensor, size: int) -> Tensor:
    """(b, n) -> (b, size): the index of each frame's token; n past the end."""
    ends = durations.cumsum(1)
    index = torch.arange(size, device=durations.device).expand(len(durations), size)
    return torch.searchsorted(ends, index.contiguous(), right=True)


def expand(ids: Tensor, durations: Tensor, size: int, padding: int = 0) -> Tensor:
    """Ids (b, n), each repeated for its duration: (b, size), followed by `padding`."""
    return F.pad(ids, (0, 1), value=padding).gather(1, token_of_frame(durations, size))


def binarization_loss(log_probs: Tensor, durations: Tensor) -> Tensor:
    """(b,), fp32: negative log-likelihood of the alignment with these durations."""
    token = token_of_frame(durations, log_probs.shape[1])
    along = F.pad(full_precision(log_probs), (0, 1)).gather(2, token[..., None])
    return -along.sum((1, 2))


# The network.


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """(b, n, c) -> (b, c, n) with zeros for padding, as in the zero padding of a convolution."""
    return x.transpose(1, 2).masked_fill(~mask[:, None], 0)


class Aligner(nn.Module):
    """Token embeddings (b, n, c) and frame features (b, t, m) -> log-probabilities (b, t, n).

    Convolutional encoders of both, compared by squared distance.
    """

    def __init__(self, token_dim: int, frame_dim: int, dim: int = 80) -> None:
        super().__init__()
        self.dim = dim
        self.token_conv = nn.Conv1d(token_dim, 2 * dim, 3, padding=1)
        self.token_proj = nn.Conv1d(2 * dim, dim, 1)
        self.frame_conv = nn.Conv1d(frame_dim, 2 * dim, 3, padding=1)
        self.frame_hidden = nn.Conv1d(2 * dim, dim, 1)
        self.frame_proj = nn.Conv1d(dim, dim, 1)

    def forward(
        self,
        token_embed: Tensor,
        frame_features: Tensor,
        num_tokens: Tensor,
        num_frames: Tensor,
        prior: Tensor | None = None,
    ) -> Tensor:
        token_mask = inside(num_tokens, token_embed.shape[1])
        frame_mask = inside(num_frames, frame_features.shape[1])
        keys = self.token_proj(F.relu(self.token_conv(masked(token_embed, token_mask))))
        queries = F.relu(self.frame_conv(masked(frame_features, frame_mask)))
        queries = self.frame_proj(F.relu(self.frame_hidden(queries)))
        with without_autocast(keys):
            scores = negative_distance(full_precision(queries), full_precision(keys))
            scores = scores if prior is None else scores + prior
            return scores.masked_fill(~token_mask[:, None], IMPOSSIBLE).log_softmax(-1)


def negative_distance(queries: Tensor, keys: Tensor) -> Tensor:
    """(b, t, n): minus half the squared distance, up to a constant that the softmax ignores."""
    return matmul(queries.transpose(1, 2), keys) - keys.square().sum(1)[:, None] / 2
