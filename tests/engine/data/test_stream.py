import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.engine.data.plans import CountPlan, LengthPlan, Request, order_of
from quintet.engine.data.stream import TRIES, Fixed, Samples, Stream, collated
from quintet.engine.errors import RunError
from quintet.engine.keys import Key, fold
from toy import Points


def flat(batches):
    return [request for batch in batches for request in batch]


# -- batches by count -----------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(0, 9), st.integers(1, 7))
@settings(max_examples=40)
def test_each_epoch_is_a_permutation_and_epochs_are_concatenated(size, seed, width):
    plan = CountPlan(size, seed, width)
    batches = plan.micro_batches(0, -(-3 * size // width))
    assert {len(batch) for batch in batches} == {width}
    order = flat(batches)
    for epoch in range(3):
        turn = order[epoch * size : (epoch + 1) * size]
        assert {request.epoch for request in turn} == {epoch}
        assert sorted(request.sample for request in turn) == list(range(size))


def test_epochs_and_seeds_have_different_orders():
    first = flat(CountPlan(100, 0, 100).micro_batches(0, 2))
    other = flat(CountPlan(100, 1, 100).micro_batches(0, 1))
    orders = {tuple(r.sample for r in turn) for turn in (first[:100], first[100:], other)}
    assert len(orders) == 3


@given(
    st.integers(1, 40), st.integers(0, 9), st.integers(1, 6), st.integers(0, 12), st.integers(1, 6)
)
@settings(max_examples=60)
def test_the_order_continues_identically_from_any_position(size, seed, width, done, count):
    whole = CountPlan(size, seed, width).micro_batches(0, done + count)
    assert CountPlan(size, seed, width).micro_batches(done * width, count) == whole[done:]


class Wide:
    """Data that wants its neighbours read together."""

    window = 256

    def __init__(self, size: int):
        self.size = size

    def __len__(self):
        return self.size


@given(st.integers(2, 3000), st.integers(0, 9), st.integers(1, 7), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_a_windowed_order_continues_identically_from_any_position(size, seed, width, at):
    def plan():
        return CountPlan(size, seed, width, order_of(Wide(size), seed))

    whole = plan().micro_batches(0, at + 5)
    assert plan().micro_batches(at * width, 5) == whole[at:]
    epoch = [r.sample for r in flat(plan().micro_batches(0, -(-size // width)))[:size]]
    assert sorted(epoch) == list(range(size))


def test_the_window_keeps_neighbours_together_in_batches():
    def blocks(order):
        plan = CountPlan(100_000, 3, 64, order)
        return {r.sample // 4 for r in flat(plan.micro_batches(64_000, 4))}

    assert len(blocks(order_of(Wide(100_000), 3))) < 0.6 * len(blocks(None))


# -- batches by length ----------------------------------------------------------------------

lengths = st.lists(st.integers(1, 20), min_size=1, max_size=60)


def walk(plan, count, steps):
    """The micro-batches of so many steps, from the beginning."""
    position, steps_taken = 0, []
    for _ in range(steps):
        steps_taken.append(plan.micro_batches(position, count))
        position += len(flat(steps_taken[-1]))
    return steps_taken


@given(lengths, st.integers(0, 9), st.integers(20, 60))
@settings(max_examples=60)
def test_every_sample_comes_once_an_epoch_within_the_budget(sizes, seed, budget):
    plan = LengthPlan(sizes, seed, budget=budget)
    for epoch in range(2):
        batches, starts = plan._make_span(epoch, 1)
        for batch in batches:
            assert len(batch) * max(sizes[request.sample] for request in batch) <= budget
        own = Counter(request for request in flat(batches) if request.epoch == epoch)
        assert own == Counter(Request(epoch, index) for index in range(len(sizes)))
        assert starts[-1] == plan._make_span(7, 1)[1][-1]


@given(lengths, st.integers(0, 9), st.integers(1, 40), st.integers(1, 6))
@settings(max_examples=60)
def test_a_length_plan_resumes_at_any_position(sizes, seed, done, count):
    def plan():
        return LengthPlan(sizes, seed, budget=40)

    whole = walk(plan(), count, done + 1)
    position = sum(len(flat(step)) for step in whole[:done])
    assert plan().micro_batches(position, count) == whole[done]


def test_a_plan_by_length_is_pure():
    plan = LengthPlan([1 + i % 7 for i in range(50)], 3, budget=20)
    first = plan.micro_batches(0, 5)
    plan.micro_batches(5000, 3)
    plan.micro_batches(400, 9)
    assert plan.micro_batches(0, 5) == first


def test_batches_by_length_have_little_padding_and_are_shuffled():
    sizes = [1 + i * 7919 % 50 for i in range(2000)]
    batches = flat(walk(LengthPlan(sizes, 0, budget=400), 1, 100))
    filled = sum(sizes[r.sample] for r in flat(batches))
    padded = sum(len(b) * max(sizes[r.sample] for r in b) for b in batches)
    assert filled > 0.85 * padded
    longest = [max(sizes[r.sample] for r in b) for b in batches]
    assert longest != sorted(longest)


def even(sizes, batch_size, seed=0):
    return LengthPlan(sizes, seed, batch_size=batch_size, window=8, even=True)


def test_even_batches_have_one_count_and_nearly_one_total():
    sizes = [1 + i * 7919 % 50 for i in range(2000)]
    for count in (1, 2, 4):
        micro = flat(walk(even(sizes, 16), count, 30))
        totals = [sum(sizes[r.sample] for r in batch) for batch in micro]
        assert {len(batch) for batch in micro} == {16}
        assert max(totals) < 1.1 * sum(totals) / len(totals)
    plain = flat(walk(CountPlan(2000, 0, 16), 1, 30))
    totals = [sum(sizes[r.sample] for r in batch) for batch in plain]
    assert max(totals) > 1.2 * sum(totals) / len(totals)


@given(lengths, st.integers(0, 9), st.integers(1, 3))
@settings(max_examples=60)
def test_even_batches_show_each_sample_once_an_epoch(sizes, seed, batch_size):
    if len(sizes) < batch_size:
        return
    epoch = [Request(0, index) for index in range(len(sizes))]
    steps = walk(even(sizes, batch_size, seed), 1, 3 * len(sizes))
    seen = Counter(flat(flat(steps)))
    assert max(seen.values()) == 1
    assert all(request in seen for request in epoch)


def test_an_even_global_batch_does_not_depend_on_its_division_nor_on_what_was_asked():
    sizes = [1 + i * 7919 % 50 for i in range(500)]
    whole = walk(even(sizes, 16), 1, 40)
    for count in (2, 4, 16):
        parts = walk(even(sizes, 16 // count), count, 40)
        assert [flat(step) for step in parts] == [flat(step) for step in whole]
    plan = even(sizes, 16)
    assert plan.micro_batches(39 * 16, 1) == whole[39]
    assert plan.micro_batches(0, 1) == whole[0]


def test_a_sample_beyond_the_budget_is_refused_with_the_remedy():
    with pytest.raises(RunError, match="raise the budget to 30"):
        LengthPlan([1, 30], 0, budget=20)


def test_an_empty_data_set_is_an_error():
    with pytest.raises(RunError, match=r"(?i)empty|no samples"):
        LengthPlan([], 0, budget=20)


# -- samples --------------------------------------------------------------------------------


def test_a_batch_is_prefetched_before_it_is_read():
    class Afar(Recorded):
        def __init__(self, size):
            super().__init__(size)
            self.told = []

        def prefetch(self, indices):
            self.told.append(list(indices))

        def keyed(self, index, key):
            assert index in self.told[-1]
            return super().keyed(index, key)

    samples = Samples(Afar(9), seed=0)
    read = samples.__getitems__([Request(0, 4), Request(0, 7)])
    assert [index for _, index, _, _ in read] == [4, 7]
    assert samples.source.told == [[4, 7]]


class Recorded:
    """Returns what it was asked for; indices in `broken` cannot be read."""

    def __init__(self, size: int, broken=()):
        self.size, self.broken = size, frozenset(broken)

    def __len__(self):
        return self.size

    def name(self, index):
        return f"file-{index}.bin"

    def keyed(self, index, key):
        if index in self.broken:
            raise ValueError("cut short")
        return index, key


def test_a_sample_gets_the_key_of_its_request():
    item, index, key, damaged = Samples(Recorded(10), seed=5)[Request(3, 7)]
    assert item == (7, Key(5, 3, 7))
    assert (index, key, damaged) == (7, Key(5, 3, 7), [])


def test_a_damaged_sample_is_replaced_by_a_keyed_draw_and_noted():
    samples = Samples(Recorded(50, broken=range(10)), seed=5)
    replaced = []
    for request in [Request(epoch, index) for epoch in range(3) for index in range(10)]:
        item, index, key, damaged = samples[request]
        assert item == (index, key)
        assert index >= 10
        assert key == Key(5, *request)
        first = damaged[0]
        assert (first.index, first.reason) == (request.sample, "cut short")
        assert first.name == f"file-{request.sample}.bin"
        assert samples[request][1] == index
        replaced.append(index)
    assert len(set(replaced)) > 10  # not always the same one


def test_a_replacement_differs_between_seeds():
    draws = [Samples(Recorded(1000, broken=[0]), seed)[Request(0, 0)][1] for seed in range(5)]
    assert len(set(draws)) > 1


@pytest.mark.parametrize("error", [OSError, ValueError, EOFError])
def test_every_kind_of_damage_is_caught(error):
    class Broken(Recorded):
        def keyed(self, index, key):
            if index == 0:
                raise error("unreadable")
            return index

    assert Samples(Broken(5), 0)[Request(0, 0)][1] != 0


def test_a_bug_in_the_data_set_is_not_damage():
    class Wrong(Recorded):
        def keyed(self, index, key):
            raise TypeError("a mistake")

    with pytest.raises(TypeError):
        Samples(Wrong(5), 0)[Request(0, 0)]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_data_is_none_if_every_draw_is_damaged(size):
    samples = Samples(Recorded(size, broken=range(size)), seed=0)
    read = [samples[Request(0, 0)]]
    loaded = collated(list, read)
    assert loaded.data is None
    assert len(loaded.damaged) == TRIES


def test_a_stream_of_damaged_data_only_is_an_error(seat):
    with pytest.raises(RunError, match=r"file-\d+\.bin: cut short"):
        stream(Recorded(20, broken=range(20)), seat(), collate=list).take(1)


# -- streams --------------------------------------------------------------------------------


def stack(items):
    return {"point": torch.stack([item["point"] for item in items])}


def stream(source, place, *, collate=stack, width=4, accumulate=1, workers=0, seed=0, plan=None):
    plan = plan or CountPlan(len(source), seed, width)
    return Stream(source, collate, plan, place, seed=seed, accumulate=accumulate, workers=workers)


def points(batches):
    return torch.cat([batch.data["point"] for batch in batches])


def test_more_workers_than_cores_are_no_warning(seat):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        loading = stream(Points(30), seat(), workers=2)
        loading.take(1)
        loading.close()
    finally:
        os.sched_setaffinity(0, cores)


def test_workers_change_nothing(seat):
    found = []
    for workers in (0, 2):
        here = stream(Points(30), seat(), accumulate=2, workers=workers)
        batches = [batch for _ in range(6) for batch in here.take(2)]
        assert here.position == 48
        here.close()
        found.append(batches)
    for one, other in zip(*found):
        assert torch.equal(one.data["point"], other.data["point"])
        assert torch.equal(one.keys, other.keys)
        assert one.ids == other.ids


@pytest.mark.parametrize("workers", [0, 2])
def test_seeking_continues_identically_whatever_was_prefetched(seat, workers):
    whole = stream(Points(30), seat(), workers=0)
    steps = [whole.take(1) for _ in range(9)]
    here = stream(Points(30), seat(), workers=workers)
    here.take(1)
    for start in (5, 0, 7):
        here.seek(4 * start)
        for expected in steps[start : start + 2]:
            assert torch.equal(points(here.take(1)), points(expected))
        assert here.position == 4 * (start + 2)
    here.close()


def test_augmentation_differs_between_epochs(seat):
    here = stream(Points(4), seat())
    first, second = here.take(1)[0], here.take(1)[0]
    assert sorted(first.ids) == sorted(second.ids)
    assert not set(first.keys.tolist()) & set(second.keys.tolist())
    assert not set(points([first])[:, 0].tolist()) & set(points([second])[:, 0].tolist())


def test_device_keys_are_those_of_the_samples(seat):
    here = stream(Points(10), seat(), seed=3)
    (batch,) = here.take(1)
    assert batch.keys.tolist() == [fold(3, 0, index, "device") for index in batch.ids]


@pytest.mark.parametrize("by_length", [False, True])
def test_processes_split_one_global_order(seat, by_length):
    """Six micro-batches a step, made by 1, 2 or 3 processes: the same ones, each once."""
    source = Points(50)
    plan = LengthPlan([1 + i % 5 for i in range(50)], 0, budget=12) if by_length else None
    found = []
    for size in (1, 2, 3):
        places = [
            stream(source, seat(rank, size), accumulate=6 // size, plan=plan)
            for rank in range(size)
        ]
        steps = []
        for _ in range(4):
            dealt = [place.take(6 // size) for place in places]
            assert len({place.position for place in places}) == 1
            requests = [place.step_requests for place in places]
            assert all(other == requests[0] for other in requests)
            turns = [dealt[turn % size][turn // size].ids for turn in range(6)]
            assert list(itertools.chain(*turns)) == [request.sample for request in requests[0]]
            steps.append(turns)
        found.append((steps, places[0].position))
    assert found[0] == found[1] == found[2]


def test_damage_is_recorded_and_batches_stay_full(seat):
    here = stream(Recorded(20, broken=[3]), seat(), collate=list)
    for _ in range(5):
        assert here.take(1)[0].size == 4
    assert [note.name for note in here.damaged] == ["file-3.bin"]


MISTAKEN = """
import torch
from types import SimpleNamespace
from quintet.engine.data.plans import CountPlan
from quintet.engine.data.stream import Stream

class Mistaken:
    def __len__(self):
        return 20
    def keyed(self, index, key):
        raise TypeError("a mistake")

seat = SimpleNamespace(
    rank=0, size=1, device=torch.device("cpu"), dtype=torch.float32, place=lambda data: data
)
plan = CountPlan(20, 0, 4)
stream = Stream(Mistaken(), list, plan, seat, seed=0, accumulate=1, workers=2)
try:
    stream.take(1)
finally:
    stream.close()
"""


def test_a_bug_in_a_data_set_ends_the_program_without_hanging():
    command = [sys.executable, "-c", MISTAKEN]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        try:
            _, said = program.communicate(timeout=25)
        except subprocess.TimeoutExpired:
            program.kill()  # its workers notice that it is gone
            pytest.fail("the program did not end: its workers ignore the signal that ends them")
    assert program.returncode == 1
    assert "a mistake" in said


class Plain:
    """A user's data set: it knows no keys and draws from whatever is lying about."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return {"point": torch.tensor([index, *drawn], dtype=torch.float64)}


def test_a_plain_data_set_draws_the_same_whatever_the_workers_and_the_position(seat):
    whole = stream(Plain(), seat(), workers=0)
    steps = [points(whole.take(1)) for _ in range(8)]
    assert len(torch.cat(steps)[:, 1].unique()) == 32  # every draw its own
    random.seed(1)
    torch.manual_seed(1)
    for workers in (0, 2):
        here = stream(Plain(), seat(), workers=workers)
        here.seek(12)
        for expected in steps[3:]:
            assert torch.equal(points(here.take(1)), expected)
        here.close()


def test_loading_does_not_change_the_generator_of_the_main_process(seat):
    before = torch.get_rng_state()
    here = stream(Points(20), seat(), workers=0)
    here.take(1)
    assert torch.equal(before, torch.get_rng_state())


# -- held-out data --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("samples", [1, 8, 10, 37])
def test_every_validation_sample_is_read_once(seat, size, samples):
    ids = []
    for rank in range(size):
        for batch in Fixed(Points(samples), stack, 4, seat(rank, size), 0):
            assert batch.ids == list(range(batch.ids[0], batch.ids[0] + batch.size))
            expected = [Points(samples).keyed(i, None)["point"] for i in batch.ids]
            assert torch.equal(batch.data["point"], torch.stack(expected))
            ids += batch.ids
    assert sorted(ids) == list(range(samples))


def test_validation_data_does_not_depend_on_workers(seat):
    fixed, worked = Fixed(Plain(), stack, 4, seat(), 0), Fixed(Plain(), stack, 4, seat(), 2)
    first = torch.cat([batch.data["point"] for batch in fixed])
    for again in (fixed, worked, worked):
        found = torch.cat([batch.data["point"] for batch in again])
        assert torch.equal(first, found)


def test_a_damaged_validation_sample_is_replaced_and_recorded(seat):
    fixed = Fixed(Recorded(4, broken=[1, 2]), list, 4, seat(), 0)
    (batch,) = fixed
    read = [index for index, _ in batch.data]
    assert read[0] == 0
    assert read[3] == 3
    assert set(read) <= {0, 3}
    assert {note.index for note in fixed.damaged} == {1, 2}


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_validation_data_is_an_error(seat, workers):
    fixed = Fixed(Recorded(4, broken=range(4)), list, 4, seat(), workers)
    with closing(fixed), pytest.raises(RunError, match=r"file-\d\.bin: cut short") as stopped:
        list(fixed)
    assert "Traceback" not in str(stopped.value)
