"""Decisions of a generated face: whether the mesh ends before it, and each digit of its codes.

One program per mesh. Noise is that of `engine/keys.py`, bit for bit. With guidance the batch holds
every mesh twice: with its caption, and `count` rows later without.
"""

# Triton is installed on CUDA machines only.
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from quintet.engine.keys import fold
from quintet.mesh.transformer.generator import KEY_STRIDE, Sampling
from quintet.nn.kernels import launch, power_of_two
from quintet.nn.kernels.decode import EPS

CODE, END = tl.constexpr(fold("code")), tl.constexpr(fold("end"))
STRIDE = tl.constexpr(KEY_STRIDE)


class Draw(NamedTuple):
    """How to sample, and what a face consists of."""

    sampling: Sampling
    guided: bool
    depth: int
    """Codes of a corner."""
    parts: int
    """Digits of a code."""


class EndWeights(NamedTuple):
    gain: Tensor
    """(d,) of the norm before."""
    weight: Tensor
    bias: Tensor
    slots: Tensor
    """(t, d) embeddings of the slots of a face."""


class DigitWeights(NamedTuple):
    weight: Tensor
    """(v, h)"""
    bias: Tensor
    embed: Tensor
    """(v, d); of the last digit of a code not used."""


class CodeTables(NamedTuple):
    """What follows from a code."""

    table: Tensor
    """(codes, d) normalised embeddings."""
    projected: Tensor
    """(codes, d): added to the input of the next slot."""
    slots: Tensor
    """(t, d): embeddings of the slots."""


class Face(NamedTuple):
    """State of the face that is being generated: n meshes, b rows (n, or 2 n with guidance)."""

    keys: Tensor
    """(n,) int64."""
    position: Tensor
    """(1,) int64: number of faces before it."""
    codes: Tensor
    """(n, faces, t) int64 of all faces; a prompt stands in it, -1 elsewhere."""
    face: Tensor
    """(n, t) int64: codes of this face, also those of ended meshes."""
    forced: Tensor
    """(n,) int8: the face is part of the prompt."""
    ended: Tensor
    """(n,) int8."""
    coarse: Tensor
    """(b, d) hidden state."""
    x: Tensor
    """(b, d) input of the fine decoder."""
    embeddings: Tensor
    """(b, t d) of the codes."""


@triton.jit
def _splitmix64(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _uniform(keys, row, number, name: tl.constexpr, counter):
    """As `engine.keys.uniform`; `number` counts the draws of a mesh."""
    key = tl.load(keys + row).to(tl.uint64) + number.to(tl.uint64) * STRIDE
    base = _splitmix64(key ^ name)
    bits = _splitmix64(base + counter.to(tl.uint64) * 0x9E3779B97F4A7C15)
    return (bits >> 40).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _end_logit(x, gain, weight, bias, coarse, first, first_slot, d, D, eps):
    """Norm of a row of x, and the inputs of the fine decoder that follow from it."""
    hidden = tl.load(x + d, mask=d < D, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(hidden * hidden, 0) / D + eps)
    hidden = hidden * factor * tl.load(gain + d, mask=d < D, other=0.0).to(tl.float32)
    kind = coarse.dtype.element_ty
    hidden = hidden.to(kind)
    tl.store(coarse + d, hidden, mask=d < D)
    hidden = hidden.to(tl.float32)
    slot = tl.load(first_slot + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(first + d, (hidden + slot).to(kind), mask=d < D)
    products = hidden * tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    return tl.sum(products, 0) + tl.load(bias).to(tl.float32)


@triton.jit(do_not_specialize=["count"])
def _end_kernel(
    x, gain, weight, bias, slots, keys, position, codes, forced, ended, coarse, first,
    count, draws, faces, tokens, D, temperature, cond_scale, eps,
    GUIDED: tl.constexpr, GREEDY: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    d = tl.arange(0, B)
    here = tl.load(position)
    at = row * D
    logit = _end_logit(x + at, gain, weight, bias, coarse + at, first + at, slots, d, D, eps)
    if GUIDED:
        at = (row + count) * D
        without = _end_logit(x + at, gain, weight, bias, coarse + at, first + at, slots, d, D, eps)
        logit = without + cond_scale * (logit - without)
    if GREEDY:
        ends = logit > 0
    else:
        noise = _uniform(keys, row, here * draws, END, here * 0)
        ends = noise < tl.sigmoid(logit / temperature)
    is_forced = tl.load(codes + (row.to(tl.int64) * faces + here) * tokens) >= 0
    tl.store(forced + row, is_forced.to(tl.int8))
    ends = ends & (here > 0) & (is_forced == 0)
    tl.store(ended + row, (tl.load(ended + row) != 0) | ends)


def draw_end(x: Tensor, end: EndWeights, face: Face, draw: Draw) -> None:
    """From x (b, d), after the coarse decoder: its norm, whether meshes end, the fine input."""
    (count, faces, tokens), sampling = face.codes.shape, draw.sampling
    dim = x.shape[1]
    launch(
        _end_kernel, (count,),
        x, *end, face.keys, face.position, face.codes, face.forced, face.ended, face.coarse,
        face.x, count, tokens * draw.parts, faces, tokens, dim,
        sampling.temperature or 1.0, sampling.cond_scale, EPS, GUIDED=draw.guided,
        GREEDY=sampling.greedy,
        B=power_of_two(dim), num_warps=4,
    )  # fmt: skip


@triton.jit
def _logits(hidden, weight, bias, v, V, H, VALUES: tl.constexpr, CHUNK: tl.constexpr):
    total = tl.load(bias + v, mask=v < V, other=0.0).to(tl.float32)
    for start in range(0, H, CHUNK):
        h = start + tl.arange(0, CHUNK)
        values = tl.load(hidden + h, mask=h < H, other=0.0).to(tl.float32)
        inside = (v < V)[:, None] & (h < H)[None, :]
        rows = tl.load(weight + v[:, None] * H + h[None, :], mask=inside, other=0.0)
        total += tl.sum(rows.to(tl.float32) * values[None, :], 1)
    return total


@triton.jit
def _row(x, d, D):
    return tl.load(x + d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def _store_row(x, values, d, D):
    tl.store(x + d, values.to(x.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["count", "draw", "slot", "part", "depth", "corners", "top_k"])
def _digit_kernel(
    hidden, state, weight, bias, embed, table, projected, slots,
    keys, position, codes, face, forced, ended, coarse, x, embeddings,
    count, draws, draw, slot, part, depth, corners, faces, tokens, V, H, D, temperature,
    cond_scale, top_k, top_p, GUIDED: tl.constexpr, GREEDY: tl.constexpr, TOP_K: tl.constexpr,
    TOP_P: tl.constexpr, LAST: tl.constexpr, VALUES: tl.constexpr, CHUNK: tl.constexpr,
    ORDERED: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    other_row = row + count
    v = tl.arange(0, VALUES)
    d = tl.arange(0, B)
    face += row * tokens
    # What does not depend on the digit is read at once: loads take longer than all else.
    here = tl.load(position)
    prefix = tl.load(face + slot, mask=part > 0, other=0)
    base = coarse if LAST else state
    to = x if LAST else state
    before = _row(base + row * D, d, D)
    if LAST:
        following = _row(slots + tl.minimum(slot + 1, tokens - 1) * D, d, D)
        at = codes + (row.to(tl.int64) * faces + here) * tokens + slot
        prompt = tl.load(at)
        is_forced = tl.load(forced + row) != 0
        has_ended = tl.load(ended + row) != 0
    logits = _logits(hidden + row * H, weight, bias, v, V, H, VALUES, CHUNK)
    if GUIDED:
        before_other = _row(base + other_row * D, d, D)
        without = _logits(hidden + other_row * H, weight, bias, v, V, H, VALUES, CHUNK)
        logits = without + cond_scale * (logits - without)
    if LAST:
        # The last digit of a corner must not repeat an earlier corner of the face.
        corner = slot // depth
        for other in range(corners):
            last = tl.load(face + other * depth + depth - 1)
            same = last // V == prefix
            for level in range(depth - 1):
                a = tl.load(face + corner * depth + level)
                same = same & (tl.load(face + other * depth + level) == a)
            logits = tl.where(same & (v == last % V), float("-inf"), logits)
    if ORDERED:  # as `keep_order`
        previous = codes + (row.to(tl.int64) * faces + tl.maximum(here - 1, 0)) * tokens
        same = here > 0
        for earlier in range(slot):
            same = same & (tl.load(face + earlier) == tl.load(previous + earlier))
        least = tl.load(previous + slot) + (slot == tokens - 1).to(tl.int64)
        below = same & (v < least)
        level = slot % depth
        same = slot >= depth
        for earlier in range(level):
            same = same & (tl.load(face + slot - level + earlier) == tl.load(face + earlier))
        below = below | (same & (v < tl.load(face + level, mask=slot >= depth, other=0)))
        some = tl.sum(((below == 0) & (v < V)).to(tl.int32), 0) > 0
        logits = tl.where(below & some, float("-inf"), logits)
    logits = tl.where(v < V, logits, float("-inf"))
    if not GREEDY:
        logits = logits / temperature
        if TOP_K:
            larger = logits[None, :] > logits[:, None]
            logits = tl.where(tl.sum(larger.to(tl.int32), 1) < top_k, logits, float("-inf"))
        if TOP_P:
            likelihoods = tl.exp(logits - tl.max(logits, 0))
            likelihoods = likelihoods / tl.sum(likelihoods, 0)
            larger = logits[None, :] > logits[:, None]
            mass = tl.sum(tl.where(larger, likelihoods[None, :], 0.0), 1)
            logits = tl.where(mass < top_p, logits, float("-inf"))
        noise = _uniform(keys, row, here * draws + draw, CODE, v)
        logits = logits - tl.log(-tl.log(noise))
        logits = tl.where(v < V, logits, float("-inf"))
    digit = tl.argmax(logits, 0, tie_break_left=True)
    code = prefix * V + digit
    if LAST:
        code = tl.where(is_forced, tl.maximum(prompt, 0), code)
        tl.store(at, tl.where(has_ended, -1, code))
        added = following + _row(projected + code * D, d, D)
        embedding = _row(table + code * D, d, D)
        _store_row(embeddings + (row * tokens + slot) * D, embedding, d, D)
        if GUIDED:
            _store_row(embeddings + (other_row * tokens + slot) * D, embedding, d, D)
    else:
        added = _row(embed + digit * D, d, D)
    tl.store(face + slot, code)
    _store_row(to + row * D, before + added, d, D)
    if GUIDED:
        _store_row(to + other_row * D, before_other + added, d, D)


def draw_digit(
    hidden: Tensor, state: Tensor, digit: DigitWeights, tables: CodeTables, face: Face, draw: Draw,
    *, slot: int, part: int,
) -> None:  # fmt: skip
    """Sample a digit from logits hidden (b, h) @ weight.T + bias.

    Its embedding is added to `state` (b, d), which predicts the next digit. The last completes a
    code, with its embedding and the input of the next slot.
    """
    (count, faces, tokens), sampling = face.codes.shape, draw.sampling
    values, width = digit.weight.shape
    dim, last = face.x.shape[1], part == draw.parts - 1
    padded = power_of_two(values, 16)
    completes_corner = last and slot % draw.depth == draw.depth - 1
    corners = slot // draw.depth if sampling.distinct and completes_corner else 0
    launch(
        _digit_kernel, (count,),
        hidden, state, *digit, *tables, *face, count, tokens * draw.parts,
        slot * draw.parts + part, slot, part, draw.depth, corners, faces, tokens, values, width,
        dim, sampling.temperature or 1.0, sampling.cond_scale, sampling.top_k or 0,
        sampling.top_p or 1.0, GUIDED=draw.guided, GREEDY=sampling.greedy,
        TOP_K=sampling.top_k is not None, TOP_P=sampling.top_p is not None and sampling.top_p < 1,
        LAST=last, VALUES=padded, CHUNK=min(power_of_two(width), 32768 // padded),
        ORDERED=sampling.ordered, B=power_of_two(dim), num_warps=8,
    )  # fmt: skip
