"""Contrastive losses: their definitions, their limits, and the gradient of the whole batch."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.contrastive import (
    LOSSES,
    MIN_TEMPERATURE,
    Kind,
    Pairs,
    chance_loss,
    clamp_temperature,
    contrastive_loss,
    global_loss,
    retrieval_ranks,
)

KINDS: list[Kind] = list(LOSSES)
EVERY = pytest.mark.parametrize("kind", KINDS)


def features(count: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    output = (torch.randn(count, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    return tuple(F.normalize(x, dim=-1).to(dtype) for x in output)


def pairs_of(kind: Kind, audio: Tensor, text: Tensor, heat: float = 0.07) -> Pairs:
    bias = torch.tensor(-3.0, dtype=audio.dtype) if kind == "sigmoid" else None
    return Pairs(audio, text, torch.tensor(math.log(heat), dtype=audio.dtype), bias)


def by_hand(kind: Kind, pairs: Pairs) -> float:
    """The papers' sums, term by term."""
    table = (pairs.audio @ pairs.text.T / math.exp(pairs.log_temperature)).tolist()
    count, total = len(table), 0.0
    for i in range(count):
        row, column = table[i], [table[j][i] for j in range(count)]
        if kind == "sigmoid":
            bias = float(pairs.bias)
            signs = [1 if j == i else -1 for j in range(count)]
            total += sum(math.log1p(math.exp(-s * (x + bias))) for s, x in zip(signs, row))
            continue
        for line in (row, column):
            others = [x for j, x in enumerate(line) if kind == "softmax" or j != i]
            total += (math.log(sum(math.exp(x) for x in others)) - line[i]) / 2
    return total / count


@EVERY
def test_a_loss_is_the_sum_of_its_paper(kind: Kind) -> None:
    pairs = pairs_of(kind, *features(7))
    assert contrastive_loss(kind, pairs).item() == pytest.approx(by_hand(kind, pairs), rel=1e-12)


@EVERY
@pytest.mark.parametrize("heat", [1e-9, MIN_TEMPERATURE, 1.0, 1e9])
@pytest.mark.parametrize("alike", [-1.0, 1.0])
def test_it_is_finite_at_the_limits_in_bf16(kind: Kind, heat: float, alike: float) -> None:
    audio, _ = features(16, torch.bfloat16)
    audio.requires_grad_()
    heated = torch.tensor(math.log(heat), dtype=torch.bfloat16)
    bias = torch.tensor(-10.0) if kind == "sigmoid" else None
    with torch.autocast("cpu", torch.bfloat16):
        loss = contrastive_loss(kind, Pairs(audio, alike * audio.detach(), heated, bias))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert audio.grad is not None
    assert audio.grad.isfinite().all()
    assert loss.item() <= 210 * (16 if kind == "sigmoid" else 1)


def test_the_temperature_comes_back_from_its_limit() -> None:
    """At the limit itself there is a gradient, on either side of it there is none."""
    for value, moves in (
        (math.log(MIN_TEMPERATURE), True),
        (math.log(MIN_TEMPERATURE) - 1e-3, False),
    ):
        heat = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        clamp_temperature(heat).backward()
        assert bool(heat.grad) is moves


@EVERY
@pytest.mark.parametrize("count", [2, 9, 512])
def test_features_that_are_all_alike_rest_where_the_monitor_looks(kind: Kind, count: int) -> None:
    one = F.normalize(torch.ones(count, 8, dtype=torch.float64), dim=-1)
    pairs = pairs_of(kind, one, one, heat=1.0)
    if kind == "sigmoid":  # at the best bias: sigmoid(logit) = 1 / count
        pairs = pairs._replace(bias=torch.tensor(-math.log(count - 1) - 1, dtype=torch.float64))
    assert contrastive_loss(kind, pairs).item() == pytest.approx(chance_loss(kind, count))


def test_the_decoupled_loss_needs_two_pairs() -> None:
    with pytest.raises(ValueError, match="two or more"):
        contrastive_loss("decoupled", pairs_of("decoupled", *features(1)))


# -- the whole batch ------------------------------------------------------------------------


class Towers(torch.nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.audio, self.text = (torch.nn.Linear(5, 8).double() for _ in range(2))
        self.heat = torch.nn.Parameter(torch.tensor(-1.0).double())
        self.bias = torch.nn.Parameter(torch.tensor(-2.0).double()) if kind == "sigmoid" else None

    def forward(self, rows: Tensor) -> Pairs:
        audio, text = (F.normalize(f(rows).tanh(), dim=-1) for f in (self.audio, self.text))
        bias = None if self.bias is None else self.bias * 1
        return Pairs(audio, text, self.heat * 1, bias)


def gradients(towers: Towers) -> list[Tensor]:
    return [p.grad.clone() for p in towers.parameters() if p.grad is not None]


def of_the_whole(kind: Kind, rows: Tensor) -> tuple[float, list[Tensor]]:
    towers = Towers(kind)
    loss = contrastive_loss(kind, towers(rows))
    loss.backward()
    return loss.item(), gradients(towers)


def gathering(blocks: list[Tensor], towers: Towers) -> Callable[[Tensor], Tensor]:
    """What a gather over processes would return, for the features in the order they are asked."""
    with torch.no_grad():
        every = towers(torch.cat(blocks))
    waiting = [every.audio, every.text]
    return lambda _: waiting.pop(0).clone()


@EVERY
@pytest.mark.parametrize("cuts", [[12], [6, 6], [3, 4, 5]])
def test_micro_batches_give_the_gradient_of_the_whole(kind: Kind, cuts: list[int]) -> None:
    rows = torch.randn(12, 5, dtype=torch.float64)
    expected, target = of_the_whole(kind, rows)
    towers = Towers(kind)
    parts = rows.split(cuts)
    with torch.no_grad():
        first = [towers(part) for part in parts]
    whole = global_loss(kind, first, lambda x: x, 0)
    shares = [whole.surrogate(index, towers(part)) for index, part in enumerate(parts)]
    for share in shares:
        share.backward()
    assert sum(share.item() for share in shares) == pytest.approx(expected, rel=1e-12)
    for mine, right in zip(gradients(towers), target, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


@EVERY
def test_processes_add_up_to_the_gradient_of_the_whole(kind: Kind) -> None:
    rows = torch.randn(12, 5, dtype=torch.float64)
    _, expected = of_the_whole(kind, rows)
    towers, blocks = Towers(kind), list(rows.split(6))
    for rank, block in enumerate(blocks):
        parts = block.split(3)
        with torch.no_grad():
            first = [towers(part) for part in parts]
        whole = global_loss(kind, first, gathering(blocks, towers), rank)
        for index, part in enumerate(parts):
            whole.surrogate(index, towers(part)).backward()
    for mine, right in zip(gradients(towers), expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


def test_one_forward_is_enough_for_one_micro_batch() -> None:
    rows = torch.randn(6, 5, dtype=torch.float64)
    _, expected = of_the_whole("softmax", rows)
    towers = Towers("softmax")
    actual = towers(rows)
    global_loss("softmax", [actual], lambda x: x, 0).surrogate(0, actual).backward()
    for mine, right in zip(gradients(towers), expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


# -- ranks ----------------------------------------------------------------------------------


@given(seed=st.integers(0, 50), count=st.integers(1, 30))
@settings(deadline=None, max_examples=30)
def test_ranks_are_places_in_the_sorted_list(seed: int, count: int) -> None:
    audio, text = features(count, seed=seed)
    order = (audio @ text.T).argsort(dim=1, descending=True)
    places = (order == torch.arange(count)[:, None]).float().argmax(1)
    assert retrieval_ranks(audio, text).tolist() == places.tolist()


def test_features_that_are_all_alike_are_found_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.nn.contrastive.RANK_CHUNK", 4)
    one = torch.ones(11, 3)
    assert retrieval_ranks(one, one).tolist() == [5.0] * 11
    audio, text = features(11)
    assert retrieval_ranks(audio, audio).tolist() == [0.0] * 11
    assert retrieval_ranks(audio, text).shape == (11,)


def test_targets_with_the_querys_caption_are_its_own() -> None:
    audio = torch.tensor([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    text = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    captions = torch.tensor([7, 7, 9])
    assert retrieval_ranks(text, audio).tolist() == [1.0, 0.0, 0.0]
    assert retrieval_ranks(text, audio, captions).tolist() == [0.0] * 3
    assert retrieval_ranks(audio, text, captions).tolist() == [0.0] * 3
    assert retrieval_ranks(text.new_ones(3, 2), text.new_ones(3, 2), captions).tolist() == [
        0.5,
        0.5,
        1.0,
    ]
