import math
import random
import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.engine.keys import (
    BLOCKS,
    Key,
    Permutation,
    Windowed,
    _on_device,
    fold,
    normal,
    seed_globals,
    uniform,
)

words = st.integers(-(2**70), 2**70) | st.text(max_size=6)


@pytest.mark.parametrize(
    ("parts", "number"),
    [
        ((), 8238016292129134938),
        ((0,), 4429783136828819033),
        (("a", 1), 5045788985839325851),
        ((7, 0, 3, "crop"), 4878486973286222648),
    ],
)
def test_fold_never_changes(parts, number):
    assert fold(*parts) == number


@given(st.lists(words, max_size=4), st.lists(words, max_size=4))
@settings(max_examples=200)
def test_fold_separates_whatever_differs(first, second):
    assert (fold(*first) == fold(*second)) == (first == second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1,), ("1",)),
        ((1, 2), (2, 1)),
        ((12,), (1, 2)),
        (("",), ()),
        (("a", ""), ("a",)),
        ((-1,), (1,)),
        (("a\x1fsb",), ("a", "b")),  # a name must not be able to imitate two
        (("a\x1fi1",), ("a", 1)),
    ],
)
def test_fold_separates_look_alikes(first, second):
    assert fold(*first) != fold(*second)


@given(st.lists(words, max_size=4))
def test_fold_fits_a_signed_word(parts):
    assert 0 <= fold(*parts) < 2**63


def test_the_generators_of_a_key_never_change_and_start_anew():
    key = Key(1, 2, 3)
    assert key.fold("crop") == fold(1, 2, 3, "crop") == 4244169087677688906
    assert key.random("crop").random() == key.random("crop").random() == 0.7634299205580406
    assert key.numpy("crop").random() == key.numpy("crop").random() == 0.5997852233401297
    assert key.random("flip").random() != key.random("crop").random()


def test_seeding_the_globals_seeds_all_three():
    def draw():
        seed_globals(2**62 + 5)
        return random.random(), np.random.rand(), torch.rand(()).item()

    assert draw() == draw()


# -- permutations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "key", "order"),
    [
        (10, (0, 0), [8, 7, 0, 6, 4, 9, 2, 5, 1, 3]),
        (10, (0, 1), [5, 0, 1, 7, 3, 4, 8, 2, 6, 9]),
        (7, (5, "x"), [3, 1, 6, 0, 2, 4, 5]),
    ],
)
def test_the_order_of_data_never_changes(size, key, order):
    assert Permutation(size, *key).many(0, size) == order


def test_the_order_of_a_large_set_never_changes():
    last = [946, 636, 495, 895, 684, 29, 846, 363, 597, 274]
    assert Permutation(1000, 3, 0).many(990, 10) == last


def test_every_size_up_to_300_is_a_bijection():
    for size in range(1, 301):
        assert sorted(Permutation(size, size).many(0, size)) == list(range(size))


@given(st.integers(1, 20_000), st.integers(), st.integers())
@settings(max_examples=30)
def test_any_size_and_key_is_a_bijection(size, seed, epoch):
    order = np.array(Permutation(size, seed, epoch).many(0, size))
    assert order.min() == 0
    assert (np.bincount(order) == 1).all()


@given(st.data(), st.integers(1, 2**62), st.integers())
@settings(max_examples=60)
def test_many_equals_single_calls(data, size, seed):
    first = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(0, min(20, size - first)))
    order = Permutation(size, seed)
    assert order.many(first, count) == [order(first + i) for i in range(count)]


def test_a_trillion_samples_start_at_once():
    order = Permutation(10**12, 3, 2)
    assert [order(i) for i in (0, 1, 10**12 - 1)] == [492652225503, 717755860284, 646652136987]


@pytest.mark.parametrize("position", [-1, 10, 11])
def test_a_position_outside_is_refused(position):
    with pytest.raises(IndexError, match="outside"):
        Permutation(10, 0)(position)


def test_many_refuses_positions_outside_too():
    with pytest.raises(IndexError, match="outside"):
        Permutation(10, 0).many(8, 4)  # 10 and 11 would silently repeat other positions


def test_an_empty_permutation_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Permutation(0)


@pytest.mark.parametrize("size", [17, 100, 1000, 1025])
def test_every_position_leads_everywhere_alike(size):
    """Chi-square of position bins against value bins over 100 keys, within five deviations."""
    bins, keys = 10, 100
    column = np.arange(size) * bins // size
    table = np.zeros((bins, bins))
    for key in range(keys):
        order = np.array(Permutation(size, "mix", key).many(0, size))
        np.add.at(table, (column, order * bins // size), 1)
    share = np.bincount(column) / size
    expected = np.outer(share, share) * size * keys
    freedom = (bins - 1) ** 2
    # Without replacement the statistic's mean is freedom x size / (size - 1); its variance is near.
    chi = ((table - expected) ** 2 / expected).sum()
    assert abs(chi - freedom * size / (size - 1)) < 5 * math.sqrt(2 * freedom)


def test_one_sample_stays_in_place_on_average():
    """Fixed points of a random permutation: mean 1, variance 1."""
    keys, size = 400, 200
    fixed = sum(
        (np.array(Permutation(size, "fixed", key).many(0, size)) == np.arange(size)).sum()
        for key in range(keys)
    )
    assert abs(fixed - keys) < 5 * math.sqrt(keys)


def test_neighbouring_epochs_and_seeds_are_uncorrelated():
    size, pairs = 1000, 60
    for neighbour in ((0, 1), (1, 0)):
        total = 0.0
        for base in range(pairs):
            first = Permutation(size, base, base).many(0, size)
            second = Permutation(size, base + neighbour[0], base + neighbour[1]).many(0, size)
            total += float(np.corrcoef(first, second)[0, 1])
        # One correlation has deviation 1 / sqrt(size - 1).
        assert abs(total / pairs) < 5 / math.sqrt((size - 1) * pairs)


def test_neighbouring_positions_are_uncorrelated():
    order = Permutation(100_000, "lag").many(0, 100_000)
    assert abs(float(np.corrcoef(order[:-1], order[1:])[0, 1])) < 5 / math.sqrt(100_000)


def test_ten_billion_samples_are_well_mixed_without_memory():
    """A stretch of 200,000 out of 10**10: all different, bins alike, no run of neighbours."""
    size, count, bins = 10**10, 200_000, 100
    tracemalloc.start()
    begun = time.process_time()
    order = Permutation(size, 7, 0)
    assert 0 <= order(size - 1) < size
    assert time.process_time() - begun < 0.5
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    found = np.array(order.many(size // 3, count))
    assert len(np.unique(found)) == count
    counts = np.bincount(found // (size // bins), minlength=bins)
    chi = ((counts - count / bins) ** 2 / (count / bins)).sum()
    assert abs(chi - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))
    assert abs(float(np.corrcoef(found[:-1], found[1:])[0, 1])) < 5 / math.sqrt(count)
    assert (np.abs(np.diff(found)) == 1).sum() < 5  # 2 / size each: none is expected


# -- an order that reads neighbours together ------------------------------------------------


def test_every_small_size_and_window_is_a_bijection():
    for size in (*range(1, 70), *range(120, 140)):
        for window in (2, 3, 63, 64, 65, 128, 1000):
            order = Windowed(size, window, size).many(0, size)
            assert sorted(order) == list(range(size)), (size, window)


@given(st.integers(1, 20_000), st.integers(2, 5000), st.integers(), st.integers())
@settings(max_examples=30)
def test_any_size_window_and_key_is_a_bijection(size, window, seed, epoch):
    window = max(window, size // 20)  # each window costs a fraction of a millisecond
    order = np.array(Windowed(size, window, seed, epoch).many(0, size))
    assert order.min() == 0
    assert (np.bincount(order) == 1).all()


@given(st.data(), st.integers(1, 2**40), st.integers(2, 4000), st.integers())
@settings(max_examples=40, deadline=None)
def test_a_stretch_equals_single_calls(data, size, window, seed):
    first = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(0, min(20, size - first)))
    order = Windowed(size, window, seed)
    alone = [Windowed(size, window, seed).many(first + i, 1)[0] for i in range(count)]
    assert order.many(first, count) == alone


def test_the_order_by_windows_never_changes():
    assert Windowed(1000, 128, 3, 0).many(495, 8) == [132, 77, 279, 970, 548, 311, 891, 184]
    assert Windowed(10**10, 65_536, 3, 0).many(10**10 - 2, 2) == [7107772790, 4895960543]


def test_a_window_of_all_the_data_is_as_good_as_none():
    assert sorted(Windowed(50, 10**9, 1).many(0, 50)) == list(range(50))


def test_ten_billion_samples_by_windows_start_at_once():
    begun = time.process_time()
    order = Windowed(10**10, 65_536, 7, 0)
    found = order.many(5 * 10**9, 100)
    assert time.process_time() - begun < 1
    assert len(set(found)) == 100


def test_a_window_holds_so_many_blocks_of_neighbours():
    """What must be at hand: any stretch of one window touches at most BLOCKS blocks and their
    neighbours, where a plain order touches as many as there are."""
    size, window = 100_000, 6400
    order = Windowed(size, window, 5, 0)
    block = order.block
    assert block == window // BLOCKS
    whole = np.array(order.many(0, size)) // block
    touched = [len(set(whole[i : i + window])) for i in range(0, size - window, window // 2)]
    assert max(touched) <= 2 * BLOCKS + 3
    plain = np.array(Permutation(size, 5, 0).many(0, window)) // block
    assert len(set(plain)) > 900


def test_neighbours_in_the_order_seldom_come_from_one_block():
    """The chance is (block - 1) / (window - 1); five deviations of a binomial."""
    size, window = 400_000, 8192
    order = Windowed(size, window, "pairs")
    found = np.array(order.many(0, size)) // order.block
    chance = (order.block - 1) / (window - 1)
    same = (found[:-1] == found[1:]).mean()
    assert abs(same - chance) < 5 * math.sqrt(chance / size)


def test_samples_are_displaced_as_far_as_in_a_plain_order():
    """The mean distance from place to sample is a third of the size, as for any random order; its
    deviation is of blocks, not of samples."""
    size, window = 200_000, 4096
    order = Windowed(size, window, "far")
    far = np.abs(np.array(order.many(0, size)) - np.arange(size)).mean() / size
    blocks = size / order.block
    assert abs(far - 1 / 3) < 5 * math.sqrt(1 / 18 / blocks)


def test_every_epoch_cuts_windows_elsewhere():
    phases = {Windowed(100_000, 4096, 0, epoch).phase for epoch in range(20)}
    assert len(phases) > 15


@pytest.mark.parametrize(("size", "window"), [(0, 8), (10, 1), (10, 0)])
def test_windows_that_cannot_be_are_refused(size, window):
    with pytest.raises(ValueError, match="size must be 1 or more"):
        Windowed(size, window, 0)


def test_a_position_outside_the_windows_is_refused():
    with pytest.raises(IndexError, match="outside"):
        Windowed(10, 4, 0).many(8, 4)


# -- numbers on the device ------------------------------------------------------------------


def keys_of(count: int) -> torch.Tensor:
    return torch.tensor([fold(0, 0, i, "device") for i in range(count)])


def uniform_in_numpy(keys: torch.Tensor, name: str, count: int) -> np.ndarray:
    def mix(value):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))

    base = mix(keys.numpy().astype(np.uint64) ^ np.uint64(fold(name)))
    steps = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mix(base[:, None] + steps) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


@pytest.mark.parametrize("draw", [uniform, _on_device])
@pytest.mark.parametrize("keys", [keys_of(50), -keys_of(50), keys_of(50)[::2], keys_of(50).int()])
def test_uniform_is_the_stated_formula_exactly(draw, keys):
    expected = uniform_in_numpy(keys.long(), "t", 31)
    assert np.array_equal(draw(keys, "t", (31,)).numpy(), expected)


def test_normal_is_box_and_muller():
    keys = keys_of(50)
    radius = 1 - uniform_in_numpy(keys, "n/radius", 31).astype(np.float64)
    angle = uniform_in_numpy(keys, "n/angle", 31).astype(np.float64)
    expected = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    assert np.allclose(normal(keys, "n", (31,)).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("draw", [uniform, normal])
def test_a_row_depends_on_its_key_alone(draw):
    keys = keys_of(9)
    whole = draw(keys, "noise", (4, 5))
    assert whole.shape == (9, 4, 5)
    order = torch.tensor([7, 2, 2, 0])
    assert torch.equal(draw(keys[order], "noise", (4, 5)), whole[order])
    for i in range(9):
        assert torch.equal(draw(keys[i : i + 1], "noise", (4, 5))[0], whole[i])


@pytest.mark.parametrize("draw", [uniform, normal])
def test_names_and_keys_are_independent(draw):
    first = draw(keys_of(200), "a", (100,)).flatten()
    for second in (draw(keys_of(200), "b", (100,)), draw(keys_of(200) + 1, "a", (100,))):
        correlation = torch.corrcoef(torch.stack([first, second.flatten()]))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(first.numel())


def test_uniform_has_the_range_and_moments_of_a_uniform():
    values = uniform(keys_of(1000), "u", (200,)).double()
    assert values.min() >= 0
    assert values.max() < 1
    tolerance = 5 / math.sqrt(values.numel())
    assert abs(values.mean() - 0.5) < tolerance * math.sqrt(1 / 12)
    assert abs(values.var() - 1 / 12) < tolerance * math.sqrt(1 / 180)
    counts = torch.histc(values, 64, 0, 1)
    chi = ((counts - values.numel() / 64) ** 2 / (values.numel() / 64)).sum()
    assert abs(chi - 63) < 5 * math.sqrt(2 * 63)


def test_normal_has_the_moments_of_a_normal():
    values = normal(keys_of(1000), "n", (200,)).double()
    assert values.isfinite().all()
    tolerance = 5 / math.sqrt(values.numel())
    assert abs(values.mean()) < tolerance
    assert abs(values.square().mean() - 1) < tolerance * math.sqrt(2)
    assert abs(values.pow(3).mean()) < tolerance * math.sqrt(15)
    assert abs(values.pow(4).mean() - 3) < tolerance * math.sqrt(96)


def test_drawing_by_key_leaves_the_global_generators_alone():
    before = torch.get_rng_state(), random.getstate()
    uniform(keys_of(2), "u", (3,))
    normal(keys_of(2), "u", (3,))
    Key(0, 0, 0).random("x").random()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
