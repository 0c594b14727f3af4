"""Forward sum and monotonic search, frame by frame, with all tokens at once.

The plain versions walk over tokens, with several launches for each. Here one program walks over the
frames of a sample. Paths are kept in fp64, as in the plain versions: fp32 loses the differences of
long sums. Only the correction log(1 + exp(-d)), which is below 0.7, is computed in fp32.

A token needs the one before it, which another thread holds: it is read back from memory, behind a
barrier. Paths that do not exist are -1e30, which sums leave as it is.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import launch, power_of_two


@triton.jit
def _clamped(scores, mask):
    """fp64, at least IMPOSSIBLE; keeps NaN, which `tl.maximum` would not."""
    score = tl.load(scores, mask=mask, other=0.0).to(tl.float64)
    return tl.where(score < -1e4, -1e4, score)


@triton.jit
def _either(a, b):
    """log(exp(a) + exp(b))"""
    distance = tl.abs(a - b).to(tl.float32)
    return tl.maximum(a, b) + tl.log(1.0 + tl.exp(-distance)).to(tl.float64)


@triton.jit(do_not_specialize=["blank", "T", "N"])
def _paths_kernel(scores, paths, totals, num_frames, num_tokens, blank, T, N, B: tl.constexpr):
    """paths (2b, t, n): the log-sum of paths that end in a token at a frame.

    Each sample forward, then reversed over frames and tokens. `blanks` of token k are the paths
    that end in the blank before it; those of token n end in the blank after the last.
    """
    program = tl.program_id(0)
    sample, reverse = program // 2, program % 2
    frames = tl.load(num_frames + sample).to(tl.int32)
    tokens = tl.load(num_tokens + sample).to(tl.int32)
    tokens = tl.where(tokens <= frames, tokens, 0)
    k = tl.arange(0, B)
    column = tl.where(reverse == 1, tokens - 1 - k, k)
    known = k < tokens
    direction = 1 - 2 * reverse
    first = tl.where(reverse == 1, frames - 1, 0)
    row = scores + sample.to(tl.int64) * T * N + first * N + column
    out = paths + program.to(tl.int64) * T * N + k
    score = _clamped(row, known)
    path = tl.where(k == 0, score, -1e30)
    blanks = tl.where(k == 0, tl.zeros([B], tl.float64) + blank, -1e30)
    tl.store(out, path, mask=known)
    for _ in range(1, frames):
        row += direction * N
        score = _clamped(row, known)
        tl.debug_barrier()
        before = tl.load(out - 1, mask=(k > 0) & (k <= tokens), other=-1e30)
        path = score + _either(path, _either(before, blanks))
        blanks = blank + _either(blanks, before)
        out += N
        tl.store(out, path, mask=known)
    last = tl.sum(tl.where(k == tokens - 1, path, 0.0), 0)
    after = tl.sum(tl.where(k == tokens, blanks, 0.0), 0)
    tl.store(totals + program, _either(last, after))


@triton.jit(do_not_specialize=["T", "N"])
def _posterior_kernel(
    scores, paths, totals, posterior, num_frames, num_tokens, T, N, R: tl.constexpr, B: tl.constexpr
):
    """posterior (b, t, n): the share of all paths that pass through a token at a frame."""
    sample = tl.program_id(0)
    frames = tl.load(num_frames + sample).to(tl.int32)
    tokens = tl.load(num_tokens + sample).to(tl.int32)
    tokens = tl.where(tokens <= frames, tokens, 0)
    total = tl.load(totals + 2 * sample)
    j = (tl.program_id(1) * R + tl.arange(0, R))[:, None]
    k = tl.arange(0, B)[None, :]
    known = (j < frames) & (k < tokens)
    base = sample.to(tl.int64) * T * N
    before = tl.load(paths + 2 * base + j * N + k, mask=known, other=0.0)
    mirrored = (frames - 1 - j) * N + tokens - 1 - k
    after = tl.load(paths + 2 * base + T * N + mirrored, mask=known, other=0.0)
    score = _clamped(scores + base + j * N + k, known)
    share = tl.where(known, before + after - score - total, -1e30)
    share = tl.exp(share.to(tl.float32))
    tl.store(posterior + base + j * N + k, share, mask=(j < T) & (k < N))


def forward_sum(
    log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor, blank: float
) -> tuple[Tensor, Tensor]:
    """Loss (b,) and posterior (b, t, n), as `quintet.nn.alignment.plain_forward_sum`.

    The normaliser of a frame is the same on every path: it cancels in the posterior.
    """
    b, t, n = log_probs.shape
    scores, frames, tokens = (a.contiguous() for a in (log_probs, num_frames, num_tokens))
    paths = scores.new_empty(2 * b, t, n, dtype=torch.float64)
    totals = scores.new_empty(2 * b, dtype=torch.float64)
    posterior = torch.empty_like(scores)
    block = power_of_two(n + 1, 16)
    launch(
        _paths_kernel, (2 * b,), scores, paths, totals, frames, tokens, float(blank), t, n,
        B=block, num_warps=4,
    )  # fmt: skip
    block = power_of_two(n, 16)
    rows = max(1, 2048 // block)
    launch(
        _posterior_kernel, (b, triton.cdiv(t, rows)), scores, paths, totals, posterior, frames,
        tokens, t, n, R=rows, B=block, num_warps=4,
    )  # fmt: skip
    loss = frames.double() * math.log1p(math.exp(blank)) - totals[::2]
    possible = (tokens <= frames) & (tokens > 0)
    return loss.masked_fill(~possible, 0.0).to(log_probs.dtype), posterior


@triton.jit(do_not_specialize=["T", "N"])
def _search_kernel(scores, values, moves, durations, num_frames, num_tokens, T, N, B: tl.constexpr):
    """durations (b, n) of the best path.

    `values` (b, 2, n) are the best paths of the last two frames; `moves` (b, t, n) says whether
    they come from the token before. Ties go to the later start, as in a cumulative maximum.
    """
    sample = tl.program_id(0)
    frames = tl.load(num_frames + sample).to(tl.int32)
    tokens = tl.load(num_tokens + sample).to(tl.int32)
    tokens = tl.maximum(tl.minimum(tokens, T), 1)
    k = tl.arange(0, B)
    known = k < tokens
    row = scores + sample.to(tl.int64) * T * N + k
    moved = moves + sample.to(tl.int64) * T * N
    value = values + sample.to(tl.int64) * 2 * N + k
    result = durations + sample.to(tl.int64) * N
    tl.store(result + k, tl.zeros([B], tl.int64), mask=k < N)
    best = tl.where(k == 0, _clamped(row, known), -1e30)
    tl.store(value, best, mask=known)
    # Where there are more tokens than frames, the last token gets them all.
    steps = tl.where(tokens <= frames, frames, 0)
    for frame in range(1, steps):
        row += N
        score = _clamped(row, known)
        tl.debug_barrier()
        before = tl.load(value + ((frame - 1) % 2) * N - 1, mask=(k > 0) & known, other=-1e30)
        stays = (best > before) | (k == 0)
        best = score + tl.where(stays, best, before)
        tl.store(value + (frame % 2) * N, best, mask=known)
        tl.store(moved + frame * N + k, tl.where(stays, 0, 1).to(tl.int8), mask=known)
    tl.debug_barrier()
    token = tokens - 1
    end = frames
    for back in range(1, steps):
        frame = steps - back
        move = tl.load(moved + frame * N + token).to(tl.int32)
        tl.store(result + token, (end - frame).to(tl.int64), mask=move == 1)
        end = tl.where(move == 1, frame, end)
        token -= move
    tl.store(result + token, end.to(tl.int64))


def monotonic_search(log_probs: Tensor, num_frames: Tensor, num_tokens: Tensor) -> Tensor:
    """Durations (b, n), as `quintet.nn.alignment.plain_search`."""
    b, t, n = log_probs.shape
    scores, frames, tokens = (a.contiguous() for a in (log_probs, num_frames, num_tokens))
    values = scores.new_empty(b, 2, n, dtype=torch.float64)
    moves = scores.new_empty(b, t, n, dtype=torch.int8)
    durations = scores.new_empty(b, n, dtype=torch.int64)
    block = power_of_two(n, 16)
    launch(
        _search_kernel, (b,), scores, values, moves, durations, frames, tokens, t, n,
        B=block, num_warps=4,
    )  # fmt: skip
    return durations
