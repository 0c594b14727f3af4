import copy
import dataclasses
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from quintet.engine import building
from quintet.engine.data.stream import Fixed
from quintet.engine.evaluate import eval_mode, measure, measure_in_contexts
from quintet.engine.machine.world import World
from quintet.engine.part import LivePart
from quintet.engine.task import Rows, Tally
from quintet.engine.trainer import AnyTask
from toy import Points, ToyRecipe, ToyTask

RECIPE = ToyRecipe(device="cpu", precision="fp32", batch_size=8, workers=0)


@pytest.fixture(scope="module")
def world() -> World:
    return World(RECIPE)


@pytest.fixture
def task() -> ToyTask:
    return ToyTask(RECIPE)


@pytest.fixture
def parts(task, world) -> dict[str, LivePart]:
    """Both parts, whose averages differ from their weights."""
    found = {}
    for name, part in task.parts.items():
        found[name] = LivePart(name, part, world, start=0, length=10)
        with torch.no_grad():
            for parameter in found[name].parameters.values():
                parameter.add_(0.1)
    return found


def nets(parts):
    return {name: part.module for name, part in parts.items()}


def held_out(task, world, size=37) -> Fixed:
    return Fixed(Points(size), task.collate, 8, world, 0)


def test_averaged_weights_are_measured_in_eval_mode_without_gradients(parts):
    part = parts["generator"]
    part.module.train()
    averaged = {name: value.clone() for name, value in part.average.state().items()}
    with eval_mode(list(parts.values()), averaged=True):
        assert not any(m.training for p in parts.values() for m in p.module.modules())
        assert not torch.is_grad_enabled()
        for name, parameter in part.parameters.items():
            assert torch.equal(parameter, averaged[name])
    with eval_mode(list(parts.values()), averaged=False):
        for name, parameter in part.parameters.items():
            assert not torch.equal(parameter, averaged[name])


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_evaluation_changes_nothing(task, world, parts, averaged, fails, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    parts["generator"].module.train()
    parts["discriminator"].module.eval()
    before = copy.deepcopy({name: part.state() for name, part in parts.items()})
    torch.manual_seed(5)
    state = torch.get_rng_state()
    try:
        with eval_mode(list(parts.values()), averaged):
            assert not torch.backends.cudnn.benchmark
            measure(task, nets(parts), held_out(task, world), world)
            torch.rand(3)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert torch.backends.cudnn.benchmark
    assert all(m.training for m in parts["generator"].module.modules())
    assert not any(m.training for m in parts["discriminator"].module.modules())
    for name, part in parts.items():
        for file, tensors in part.state().items():
            for key, value in tensors.items():
                assert torch.equal(value, before[name][file][key])


def test_a_layer_that_was_kept_in_eval_mode_stays_there(parts):
    module = parts["generator"].module.train()
    module.norm.eval()
    with eval_mode(list(parts.values()), averaged=True):
        pass
    assert module.training
    assert not module.norm.training


class Plain:
    """A user's data set: reading it reseeds the global generators."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"point": torch.tensor([random.random(), np.random.rand()])}


def test_evaluating_a_plain_data_set_leaves_python_and_numpy_as_they_were(task, world, parts):
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    with eval_mode(list(parts.values()), averaged=True):
        fixed = Fixed(Plain(), task.collate, 8, world, 0)
        measure(task, nets(parts), fixed, world)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def plain_errors(parts, size):
    points = torch.stack([Points(size).keyed(i, None)["point"] for i in range(size)])
    return (parts["generator"].module(points) - points).square().sum(1)


@pytest.mark.parametrize("size", [3, 8, 37])
def test_rows_are_averaged_as_by_a_plain_loop(task, world, parts, size):
    with eval_mode(list(parts.values()), averaged=True):
        found = measure(task, nets(parts), held_out(task, world, size), world)
        expected = plain_errors(parts, size).double().mean().item()
    assert found == {"error": pytest.approx(expected, rel=1e-6)}


@pytest.mark.parametrize("size", [3, 8, 37])
def test_tallies_of_the_samples_that_count_are_summed(task, world, parts, size):
    def tally(nets, batch):
        point = batch.data["point"][: batch.size]  # the last batch is filled up
        error = (nets["generator"](point) - point).square().sum(1)
        return {"error": Tally(error.sum(), batch.size)}

    task.measure = tally
    with eval_mode(list(parts.values()), averaged=False):
        found = measure(task, nets(parts), held_out(task, world, size), world)
        expected = plain_errors(parts, size).mean().item()
    assert found == {"error": pytest.approx(expected, rel=1e-5)}


class MeanSquare(nn.Module):
    """A user's model: it returns the mean of its loss over whatever it is given."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, point):
        return (self.scale * point).square().mean()


def test_a_users_mean_loss_counts_every_held_out_sample_once(world):
    values = [{"point": torch.tensor([float(i)])} for i in range(10)]
    model = MeanSquare()
    any_task = AnyTask(model, {"train": values, "valid": values}, RECIPE.generator)
    fixed = Fixed(values, any_task.collate, 8, world, 0)
    with torch.no_grad():
        found = measure(any_task, {"model": model}, fixed, world)
        expected = model(torch.arange(10.0)).item()
    assert found == {"loss": pytest.approx(expected)}


def test_rows_reach_the_summary_in_the_order_of_the_data(task, world, parts):
    seen = {}
    task.measure = lambda nets, batch: {"row": Rows(batch.data["point"])}
    task.summarise = lambda rows: seen.update(rows) or {"count": float(len(rows["row"]))}
    with eval_mode(list(parts.values()), averaged=True):
        found = measure(task, nets(parts), held_out(task, world), world)
    points = torch.stack([Points(37).keyed(i, None)["point"] for i in range(37)])
    assert torch.equal(seen["row"], points)
    assert found == {"count": 37.0}


@pytest.mark.parametrize("size", [2, 3])
def test_processes_together_measure_what_one_alone_does(task, world, parts, seat, size):
    dealt, met = [None] * size, threading.Barrier(size, timeout=20)

    def gather(rank, mine):
        dealt[rank] = mine
        met.wait()
        gathered = list(dealt)
        met.wait()  # before the next exchange
        return gathered

    @torch.no_grad()
    def share(rank):
        place = seat(rank, size)
        place.autocast, place.gather_objects = world.autocast, partial(gather, rank)
        return measure(task, nets(parts), held_out(task, place), place)

    with eval_mode(list(parts.values()), averaged=True), ThreadPoolExecutor(size) as seats:
        alone = measure(task, nets(parts), held_out(task, world), world)
        assert list(seats.map(share, range(size))) == [alone] * size


def test_a_tally_of_nothing_is_not_a_division_by_zero(task, world, parts):
    task.measure = lambda nets, batch: {"rare": Tally(torch.tensor(0.0), 0)}
    assert measure(task, nets(parts), held_out(task, world), world) == {"rare": 0.0}


class Counted(Points):
    read = 0

    def keyed(self, index, key):
        type(self).read += 1
        return super().keyed(index, key)


def test_both_weights_are_measured_on_data_that_is_loaded_once(task, world, parts):
    """And the first batch is shown, once."""
    live, apart, shown = list(parts.values()), [], []
    for averaged in (True, False):
        with eval_mode(live, averaged):
            apart.append(measure(task, nets(parts), held_out(task, world), world))
    fixed = Fixed(Counted(37), task.collate, 8, world, 0)
    contexts = [partial(eval_mode, live, averaged) for averaged in (True, False)]
    together = measure_in_contexts(contexts, task, nets(parts), fixed, world, shown.append)
    assert together == apart
    assert together[0] != together[1]
    assert [batch.ids for batch in shown] == [list(range(8))]
    assert Counted.read == 37


def test_held_out_samples_come_as_many_at_once_as_asked(task, world, parts):
    many = dataclasses.replace(RECIPE, evaluate_batch=16)
    plain, large = (building.held_out(task, recipe, world) for recipe in (RECIPE, many))
    sizes = [[len(batch) for batch in fixed.batches] for fixed in (plain, large)]
    assert sizes == [[8, 8, 8, 8, 5], [16, 16, 5]]
    with eval_mode(list(parts.values()), averaged=True):
        few, whole = (measure(task, nets(parts), fixed, world) for fixed in (plain, large))
    assert whole == pytest.approx(few, rel=1e-5)
