import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.alignment import (
    Aligner,
    binarization_loss,
    diagonal_prior,
    expand,
    forward_sum,
    monotonic_search,
    token_of_frame,
)


def all_durations(frames: int, tokens: int) -> list[list[int]]:
    """Every way of giving each token one frame or more."""
    cuts = itertools.combinations(range(1, frames), tokens - 1)
    return [[b - a for a, b in itertools.pairwise((0, *cut, frames))] for cut in cuts]


def score(log_probs: Tensor, durations: list[int]) -> Tensor:
    """Of one sample (t, n)."""
    at = torch.tensor([n for n, d in enumerate(durations) for _ in range(d)])
    return log_probs[torch.arange(len(at)), at].sum()


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of a few samples of different lengths, with junk for padding."""
    frames = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    tokens = [draw(st.integers(1, min(5, most))) for most in frames]
    spread = draw(st.sampled_from([0.1, 3.0, 50.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = (
        len(frames),
        max(frames) + draw(st.integers(0, 2)),
        max(tokens) + draw(st.integers(0, 3)),
    )
    values = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    for row, t, n in zip(values, frames, tokens):
        row[t:] = float("nan")
        row[:, n:] = float("inf")
    return values, torch.tensor(frames), torch.tensor(tokens)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_search_finds_what_trying_every_alignment_finds(batch: tuple[Tensor, Tensor, Tensor]):
    values, frames, tokens = batch
    actual = monotonic_search(*batch)
    assert torch.equal(actual.sum(1), frames)
    for row, durations, t, n in zip(values, actual.tolist(), frames.tolist(), tokens.tolist()):
        assert min(durations[:n]) >= 1
        assert not any(durations[n:])
        best = max(score(row, ways) for ways in all_durations(t, n))
        assert torch.allclose(score(row, durations), best)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_forward_sum_is_the_sum_over_every_alignment(batch: tuple[Tensor, Tensor, Tensor]):
    values, frames, tokens = batch
    values = values.requires_grad_()
    loss = forward_sum(values, frames, tokens, blank=-1e5)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    for at, (t, n) in enumerate(zip(frames.tolist(), tokens.tolist())):
        known = -torch.stack([score(values[at], ways) for ways in all_durations(t, n)]).logsumexp(0)
        assert torch.allclose(loss[at], known)
        slope = torch.autograd.grad(known, values)[0][at]
        assert torch.allclose(gradient[at, :t, :n], slope[:t, :n], atol=1e-8)
        assert torch.allclose(gradient[at, :t].sum(1), -torch.ones(t, dtype=torch.float64))
        assert not gradient[at, t:].any()
        assert not gradient[at, :, n:].any()


def long_batch(
    count: int = 3, frames: int = 200, tokens: int = 40
) -> tuple[Tensor, Tensor, Tensor]:
    values = 3 * torch.randn(count, frames, tokens)
    lengths = torch.arange(count)
    return values.log_softmax(-1), frames - 11 * lengths, tokens - 7 * lengths


@pytest.mark.parametrize("blank", [-1.0, 0.5, -6.0])
def test_forward_sum_is_that_of_ctc_in_which_no_token_comes_twice(blank: float):
    values, frames, tokens = long_batch()
    values = values.double().requires_grad_()
    blanked = F.pad(values.log_softmax(-1), (1, 0), value=blank).log_softmax(-1).transpose(0, 1)
    targets = torch.arange(1, values.shape[2] + 1).expand(len(values), -1)
    known = F.ctc_loss(blanked, targets, frames, tokens, reduction="none")
    actual = forward_sum(values.log_softmax(-1), frames, tokens, blank)
    assert torch.allclose(actual, known)
    slopes = [torch.autograd.grad(loss.sum(), values)[0] for loss in (known, actual)]
    assert torch.allclose(*slopes, atol=1e-8)
    rounded = forward_sum(values.float().log_softmax(-1), frames, tokens, blank)
    assert rounded.dtype == torch.float32
    assert torch.allclose(rounded.double(), known, rtol=1e-6)
    as_tensor = forward_sum(values.log_softmax(-1), frames, tokens, torch.tensor(blank))
    assert torch.allclose(as_tensor, known)
    assert torch.allclose(torch.autograd.grad(as_tensor.sum(), values)[0], slopes[0], atol=1e-8)


def test_half_precision_inputs_are_summed_in_full():
    values, frames, tokens = long_batch()
    rounded = values.bfloat16()
    assert torch.equal(
        forward_sum(rounded, frames, tokens), forward_sum(rounded.float(), frames, tokens)
    )


@pytest.mark.parametrize("blank", [0.0, torch.tensor(-4.0)])
def test_more_tokens_than_frames_cost_nothing_and_teach_nothing(blank: float | Tensor):
    values = torch.randn(2, 3, 5, requires_grad=True)
    frames, tokens = torch.tensor([3, 3]), torch.tensor([5, 2])
    loss = forward_sum(values, frames, tokens, blank)
    loss.sum().backward()
    assert loss[0] == 0
    assert values.grad is not None
    assert not values.grad[0].any()
    assert values.grad[1].any()
    assert monotonic_search(values, frames, tokens).sum(1).tolist() == [3, 3]


def test_long_sums_keep_their_precision():
    """2,000 frames of scores near -100: in fp32 the differences of sums would be lost."""
    torch.manual_seed(0)
    values = torch.randn(1, 2000, 50) - 100
    frames, tokens = torch.tensor([2000]), torch.tensor([50])
    shifted = forward_sum(values + 100, frames, tokens, blank=-1e5)
    actual = forward_sum(values, frames, tokens, blank=-1e5)
    assert torch.allclose(actual - 200_000, shifted, atol=0.05)
    assert torch.equal(
        monotonic_search(values, frames, tokens), monotonic_search(values.double(), frames, tokens)
    )


def test_both_are_one_operation_to_the_compiler():
    values, frames, tokens = long_batch(2, 20, 5)
    both = torch.ops.quintet.monotonic_search, torch.ops.quintet.forward_sum
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(both[0].default, (values, frames, tokens), test_utils=checks)
    args = (values.requires_grad_(), frames, tokens, -1.0)
    torch.library.opcheck(both[1].default, args, test_utils=checks)


def test_aligning_compiles_to_one_graph_with_the_same_gradient():
    values, frames, tokens = long_batch(2, 30, 8)

    def loss(scores: Tensor) -> Tensor:
        log_probs = scores.log_softmax(-1)
        durations = monotonic_search(log_probs, frames, tokens)
        hard = binarization_loss(log_probs, durations)
        return (forward_sum(log_probs, frames, tokens) + hard).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    slopes = []
    for function in (loss, compiled):
        scores = values.clone().requires_grad_()
        function(scores).backward()
        slopes.append(scores.grad)
    assert torch.allclose(*slopes, atol=1e-5)


def test_the_prior_is_a_distribution_that_moves_along_the_diagonal():
    frames, tokens = torch.tensor([30, 20]), torch.tensor([8, 5])
    prior = diagonal_prior(frames, tokens, (32, 9))
    assert prior.isfinite().all()
    chances = prior.exp()
    for row, t, n in zip(chances, frames.tolist(), tokens.tolist()):
        assert torch.allclose(row[:t].sum(1), torch.ones(t), atol=1e-4)
        assert not row[:, n:].any()
        centre = (row[:t] * torch.arange(9)).sum(1)
        # The mean of the beta-binomial.
        expected = (n - 1) * torch.arange(1, t + 1) / (t + 1)
        assert torch.allclose(centre, expected, atol=1e-3)
        assert torch.allclose(row[:t, :n], row[:t, :n].flip(0, 1), atol=1e-4)
    assert not prior.isnan().any()


@given(st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=3))
def test_expanding_repeats_each_token_for_its_duration(rows: list[list[int]]):
    durations = torch.tensor(rows)
    ids = torch.tensor([[7, 8, 9, 10]]).expand(len(rows), 4)
    for frames in (3, 17):
        actual = expand(ids, durations, frames, padding=-1)
        for row, expected in zip(actual.tolist(), rows):
            long = [i for i, d in zip((7, 8, 9, 10), expected) for _ in range(d)] + [-1] * 17
            assert row == long[:frames]


def test_binarising_costs_what_the_alignment_is_unlikely():
    values = torch.randn(2, 12, 4).log_softmax(-1)
    frames, tokens = torch.tensor([12, 9]), torch.tensor([4, 3])
    durations = monotonic_search(values, frames, tokens)
    actual = binarization_loss(values, durations)
    for row, value, ways in zip(values, actual, durations.tolist()):
        assert torch.allclose(value, -score(row, ways), atol=1e-5)
    assert (actual >= forward_sum(values, frames, tokens, blank=-1e5) - 1e-4).all()


def features(durations: Tensor, ids: Tensor, table: Tensor, frames: int) -> Tensor:
    """Frames that show the token they speak, and noise."""
    at = token_of_frame(durations, frames).clamp_max(ids.shape[1] - 1)
    return table[ids.gather(1, at)] + 0.5 * torch.randn(len(ids), frames, table.shape[1])


def test_padding_changes_nothing_that_is_aligned():
    aligner = Aligner(6, 5, 8)
    tokens, frames = torch.tensor([3]), torch.tensor([7])
    token_rows, frame_rows = torch.randn(1, 3, 6), torch.randn(1, 7, 5)
    alone = aligner(token_rows, frame_rows, tokens, frames, diagonal_prior(frames, tokens, (7, 3)))
    wide = torch.cat((token_rows, torch.full((1, 4, 6), torch.nan)), 1)
    long = torch.cat((frame_rows, 1e3 * torch.randn(1, 5, 5)), 1)
    padded = aligner(wide, long, tokens, frames, diagonal_prior(frames, tokens, (12, 7)))
    assert torch.allclose(padded[:, :7, :3], alone, atol=1e-5)
    assert (padded[:, :7, 3:] < -1000).all()


def test_an_alignment_is_learned_from_pairs_alone():
    torch.manual_seed(0)
    table = torch.randn(12, 16)
    embedding = torch.nn.Embedding(12, 16)
    aligner = Aligner(16, 16, 32)
    optimizer = torch.optim.Adam([*embedding.parameters(), *aligner.parameters()], 3e-3)
    right = 0.0
    for _ in range(80):
        ids = torch.randint(12, (8, 10))
        tokens = torch.randint(6, 11, (8,))
        known = torch.randint(2, 12, (8, 10)) * (torch.arange(10) < tokens[:, None])
        frames = known.sum(1)
        prior = diagonal_prior(frames, tokens, (110, 10))
        shown = features(known, ids, table, 110)
        log_probs = aligner(embedding(ids), shown, tokens, frames, prior)
        loss = forward_sum(log_probs, frames, tokens).sum() / frames.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        actual = monotonic_search(log_probs, frames, tokens)
        same = token_of_frame(actual, 110) == token_of_frame(known, 110)
        spoken = torch.arange(110) < frames[:, None]
        right = 0.9 * right + 0.1 * float(same[spoken].float().mean())
    assert right > 0.9
