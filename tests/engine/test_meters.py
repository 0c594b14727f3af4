import math

import pytest
import torch

from quintet.engine.config import Recipe
from quintet.engine.machine.world import World
from quintet.engine.meters import Meters


@pytest.fixture(scope="module")
def world() -> World:
    return World(Recipe(device="cpu", precision="fp32"))


@pytest.fixture
def meters(world) -> Meters:
    return Meters(world)


def test_micro_batches_are_weighed_within_a_step_and_steps_count_alike(meters):
    meters.add(0, "net", {"loss": torch.tensor(1.0)}, 0.25)
    meters.add(0, "net", {"loss": torch.tensor(5.0)}, 0.75)
    meters.add(1, "net", {"loss": torch.tensor(8.0)}, 1.0)
    means, table = meters.read()
    assert table == {0: {"net/loss": 4.0}, 1: {"net/loss": 8.0}}
    assert means == {"net/loss": 6.0}


def test_a_metric_is_averaged_over_the_steps_that_have_it(meters):
    for step in range(4):
        meters.add(step, "net", {"loss": torch.tensor(float(step))})
    meters.add(3, "discriminator", {"loss": torch.tensor(7.0)})
    means, table = meters.read()
    assert means == {"net/loss": 1.5, "discriminator/loss": 7.0}
    assert table[3] == {"net/loss": 3.0, "discriminator/loss": 7.0}
    assert "discriminator/loss" not in table[0]


def test_reading_starts_anew(meters):
    meters.add(0, "net", {"loss": torch.tensor(1.0)})
    meters.read()
    assert meters.read() == ({}, {})


def test_what_is_not_finite_stays_at_its_own_step(meters):
    meters.add(0, "net", {"loss": torch.tensor(1.0), "norm": torch.tensor(2.0)})
    meters.add(1, "net", {"loss": torch.tensor(math.nan), "norm": torch.tensor(2.0)})
    means, table = meters.read()
    assert table[0] == {"net/loss": 1.0, "net/norm": 2.0}
    assert math.isnan(table[1]["net/loss"])
    assert means["net/norm"] == 2.0


def test_metrics_hold_no_graph_and_may_be_of_any_type(meters):
    weight = torch.ones((), requires_grad=True)
    meters.add(0, "net", {"loss": weight * 2, "half": torch.tensor([3.0]).bfloat16()})
    meters.add(0, "net", {"count": torch.tensor(4)})
    assert not any(entry.value.requires_grad for entry in meters.entries)
    assert meters.read()[0] == {"net/loss": 2.0, "net/half": 3.0, "net/count": 4.0}


def test_a_metric_changed_in_place_later_keeps_the_value_it_had(meters):
    running = torch.tensor(1.0)
    meters.add(0, "net", {"scale": running})
    running.fill_(9.0)
    assert meters.read()[0] == {"net/scale": 1.0}


def test_timing_counts_samples_and_starts_anew(meters):
    meters.begin(0, [1, 2])
    meters.begin(1, [3, 4])
    shown = meters.timing(1e6)
    assert shown["samples_per_second"] > 0
    assert shown["waiting"] > 0
    again = meters.timing(0.0)
    assert again == {"samples_per_second": 0.0, "waiting": 0.0}
    assert meters.ids == {0: [1, 2], 1: [3, 4]}
