"""Batches on their way to the device."""

import gc
from types import SimpleNamespace

import pytest
import torch

from quintet.engine.data.transfer import AHEAD, Transfer
from quintet.engine.data.wire import UNIT, Fractions
from quintet.engine.data.workers import loader

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def world(device: str, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    from quintet.engine.machine.world import World

    there = SimpleNamespace(device=torch.device(device), dtype=dtype, precision="fp32")
    there.place = lambda value: World.place(there, value)  # type: ignore[arg-type]
    return there


def test_fractions_arrive_as_floats_of_the_precision_of_the_run():
    data = ({"sound": Fractions(torch.tensor([1, -2], dtype=torch.int16))}, torch.tensor([5]))
    for dtype in (torch.float32, torch.float64):
        placed, keys = Transfer(world("cpu", dtype))(data)
        assert placed["sound"].dtype == dtype
        assert placed["sound"].tolist() == [UNIT, -2 * UNIT]
        assert keys.tolist() == [5]


@needs_gpu
def test_copies_run_beside_the_steps_and_no_memory_is_reused_early():
    transfer, size = Transfer(world("cuda:0")), 1 << 22
    totals = []
    for number in range(40):
        host = torch.full((size,), number, dtype=torch.int16).pin_memory()
        transfer.begin_step()
        batch = transfer({"x": Fractions(host)})["x"]
        torch.cuda._sleep(4_000_000)  # a step: some milliseconds before the batch is read
        totals.append((batch * 32768).mean(dtype=torch.float64))
        del batch
    assert [round(total.item()) for total in totals] == list(range(40))


@needs_gpu
def test_a_copy_does_not_wait_for_the_step_before():
    transfer = Transfer(world("cuda:0"))
    host = torch.ones(1 << 22).pin_memory()
    transfer({"x": host})
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)  # a fifth of a second
    transfer({"x": host})
    transfer.stream.synchronize()  # type: ignore[union-attr]
    assert not torch.cuda.current_stream().query(), "the step is still under way"


@needs_gpu
def test_the_host_is_at_most_a_few_steps_ahead():
    transfer = Transfer(world("cuda:0"))
    done = []
    for _ in range(3 * AHEAD):
        transfer.begin_step()
        torch.cuda._sleep(20_000_000)
        done.append(torch.cuda.current_stream().record_event())
        assert sum(not event.query() for event in done) <= AHEAD + 1


class Collected(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index


@needs_gpu
def test_workers_survive_the_graphs_and_events_of_an_earlier_run():
    class Holder:
        pass

    for _ in range(20):  # garbage that only a collection finds
        holder = Holder()
        holder.itself, holder.event = holder, torch.cuda.Event()  # type: ignore[attr-defined]
        holder.event.record()  # type: ignore[attr-defined]
        del holder
    there = world("cuda:0")
    batches = loader(Collected(), [[0], [1], [2], [3]], list, 2, there)  # type: ignore[arg-type]
    assert list(batches) == [[0], [1], [2], [3]]
