import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.attention import SHORT, Block, Context, cache_position, causal_attention
from quintet.nn.rope import apply_rope, rope_1d
from quintet.nn.sequence_loss import linear_cross_entropy, row_chunks

DIM, HEADS, HEAD_DIM = 24, 3, 8


def randomised(module: nn.Module) -> nn.Module:
    """Branches end in zeros at the start: without this a test would see none of them."""
    for parameter in module.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.2)
    return module.double()


def block(cross: bool = False) -> Block:
    output = randomised(Block(DIM, HEADS, HEAD_DIM, cross=cross))
    assert isinstance(output, Block)
    return output


def rope(length: int):
    return rope_1d(torch.arange(length), HEAD_DIM)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, DIM, dtype=torch.float64)


@pytest.mark.parametrize("length", [5, SHORT, SHORT + 4])
def test_a_causal_block_never_looks_ahead(length: int) -> None:
    model, x = block(), rows(2, length)
    changed = x.clone()
    changed[:, 3:] += 1.0
    before, after = (model(y, rope(length), causal=True) for y in (x, changed))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


@pytest.mark.parametrize("length", [1, 6, SHORT])
def test_short_attention_equals_the_library(length: int) -> None:
    q, k, v = (torch.randn(2, 3, length, 8, dtype=torch.float64) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(causal_attention(q, k, v), expected, atol=1e-12)


@pytest.mark.parametrize("room", [6, 32])
def test_steps_with_a_cache_equal_one_pass(room: int) -> None:
    model, x = block(cross=True), rows(2, 6)
    context = Context(rows(2, 4), torch.tensor([[True] * 4, [True, True, False, False]]))
    whole = model(x, rope(6), causal=True, context=context)
    cache, cross_kv = model.attention.kv_cache(2, room), model.cross_kv(context)
    steps = [
        model.step(
            x[:, i : i + 1],
            cache_position(torch.tensor([i]), room, HEAD_DIM, x.device),
            cache,
            cross_kv,
        )
        for i in range(6)
    ]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-10)


def test_masked_positions_and_context_change_nothing() -> None:
    model, x, seen = block(cross=True), rows(2, 5), rows(2, 4)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    there = torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
    before = model(x, rope(5), mask=mask, context=Context(seen, there))
    x[1, 3:], seen[1, 2:] = 9.0, -9.0
    after = model(x, rope(5), mask=mask, context=Context(seen, there))
    assert torch.equal(before[mask], after[mask])


def test_a_rotation_only_sees_distances() -> None:
    q, k = torch.randn(2, 1, HEAD_DIM, dtype=torch.float64)
    products = [
        apply_rope(q, rope_1d(torch.tensor([a]), HEAD_DIM))
        @ apply_rope(k, rope_1d(torch.tensor([b]), HEAD_DIM)).T
        for a, b in [(7, 3), (104, 100), (4, 3)]
    ]
    assert torch.allclose(products[0], products[1], atol=1e-5)
    assert not torch.allclose(products[0], products[2], atol=1e-2)


def test_slices_cover_every_row_once() -> None:
    for count in (1, 7, 100, 101):
        cut = row_chunks(count, 50, 400)
        assert [i for start, end in cut for i in range(start, end)] == list(range(count))
        assert all((end - start) * 50 <= 400 for start, end in cut)


@pytest.mark.parametrize("max_logits", [1, 130, 10**6])
def test_sliced_cross_entropy_and_its_gradients_equal_the_plain_ones(max_logits: int) -> None:
    hidden = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(26, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(26, (11,))
    targets[[2, 10]] = -1
    share = torch.rand(11, dtype=torch.float64)
    actual = linear_cross_entropy(hidden, weight, targets, max_logits=max_logits)
    (actual.loss * share).sum().backward()
    sliced = [hidden.grad, weight.grad]
    hidden.grad = weight.grad = None
    logits = hidden @ weight.T
    plain = F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
    (plain * share).sum().backward()
    assert torch.allclose(actual.loss, plain, atol=1e-10)
    assert torch.equal(actual.correct, logits.argmax(-1) == targets)
    for a, b in zip(sliced, [hidden.grad, weight.grad]):
        assert a is not None
        assert b is not None
        assert torch.allclose(a, b, atol=1e-10)


def test_sliced_cross_entropy_answers_in_fp32_under_autocast() -> None:
    hidden, weight = torch.randn(9, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    targets = torch.randint(30, (9,))
    plain = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = linear_cross_entropy(hidden.bfloat16(), weight, targets, max_logits=60)
    actual.loss.sum().backward()
    assert actual.loss.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert torch.allclose(actual.loss, plain, atol=0.1)
