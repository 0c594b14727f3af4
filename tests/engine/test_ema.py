import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quintet.engine.ema import EMA, decay_at

KEPT, SKIPPED = torch.tensor(0.0), torch.tensor(1.0)


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    shapes = {"matrix": (3, 4), "vector": (5,), "scalar": ()}
    return {name: nn.Parameter(torch.randn(shape, dtype=dtype)) for name, shape in shapes.items()}


def move(live: dict[str, nn.Parameter]) -> None:
    with torch.no_grad():
        for p in live.values():
            p.add_(torch.randn_like(p))


def test_the_decay_grows_into_the_asked_value():
    decays = [decay_at(0.999, count) for count in range(20_000)]
    assert decays[0] == 0.1
    assert decays == sorted(decays)
    assert decays[8990] == decays[-1] == 0.999
    assert decay_at(0.05, 0) == 0.05
    assert decay_at(0.999, -10) == decays[0]  # asked for after a rollback to before the start


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_average_equals_a_plain_loop(dtype):
    live = parameters(dtype)
    average = EMA(live, 0.9)
    expected = {name: p.detach().double().clone() for name, p in live.items()}
    for count in range(30):
        move(live)
        average.update(average.move_at(count), KEPT)
        decay = min(0.9, (1 + count) / (10 + count))
        for name, p in live.items():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double()
    for name, value in average.state().items():
        assert value.dtype == dtype
        torch.testing.assert_close(value.double(), expected[name], atol=1e-5, rtol=1e-5)


@given(st.lists(st.booleans(), max_size=8))
@settings(max_examples=20)
def test_a_skipped_step_leaves_the_average_alone(skips):
    live = parameters()
    average, unskipped = EMA(live, 0.9), EMA(live, 0.9)
    for count, skip in enumerate(skips):
        move(live)
        average.update(average.move_at(count), SKIPPED if skip else KEPT)
        if not skip:
            unskipped.update(unskipped.move_at(count), KEPT)
    for name, value in average.state().items():
        assert torch.equal(value, unskipped.state()[name])


def test_the_average_starts_at_the_weights_and_shares_no_memory():
    live = parameters()
    start = {name: p.detach().clone() for name, p in live.items()}
    average = EMA(live, 0.9)
    move(live)
    for name, value in average.state().items():
        assert torch.equal(value, start[name])


def test_swapping_in_and_out_restores_bit_for_bit():
    live = parameters()
    average = EMA(live, 0.9)
    move(live)
    average.update(average.move_at(0), KEPT)
    weights = {name: p.detach().clone() for name, p in live.items()}
    averaged = {name: value.clone() for name, value in average.state().items()}
    with average.swapped_in():
        for name, p in live.items():
            assert torch.equal(p, averaged[name])
    for name, p in live.items():
        assert torch.equal(p, weights[name])
        assert torch.equal(average.state()[name], averaged[name])


def test_an_error_inside_a_swap_still_swaps_back():
    live = parameters()
    average = EMA(live, 0.9)
    move(live)
    weights = {name: p.detach().clone() for name, p in live.items()}
    with pytest.raises(RuntimeError), average.swapped_in():
        raise RuntimeError
    assert all(torch.equal(p, weights[name]) for name, p in live.items())


def test_after_a_swap_the_average_still_follows_the_live_weights():
    live = parameters()
    average, unswapped = EMA(live, 0.9), EMA(live, 0.9)
    for count in range(3):
        move(live)
        with average.swapped_in():
            pass
        average.update(average.move_at(count), KEPT)
        unswapped.update(unswapped.move_at(count), KEPT)
    for name, value in average.state().items():
        assert torch.equal(value, unswapped.state()[name])


def test_an_average_that_was_saved_and_loaded_is_the_same():
    live = parameters()
    average, other = EMA(live, 0.9), EMA(parameters(), 0.9)
    move(live)
    average.update(average.move_at(0), KEPT)
    other.load({name: value.clone() for name, value in average.state().items()})
    for name, value in other.state().items():
        assert torch.equal(value, average.state()[name])
