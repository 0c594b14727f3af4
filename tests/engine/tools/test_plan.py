"""Plans: the operations of a step without its values are those of a real one."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from campaign.subjects import replaced
from quintet import rooms
from quintet.engine.config import OptimizerConfig, Recipe
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.part import LivePart
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Part
from quintet.engine.tools.plan import MATMUL_RATE, ON_CPU, moments, plan

SMALLER = {
    "steps": 8,
    "batch_size": 2,
    "workers": 0,
    "trackers": (),
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "valid_limit": 4,
    "builtin_count": 32,
    "adversarial_from": 0.5,
    "penalty_every": 2,
}
OTHERS = ["video/tokenizer_tiny", "music/mulan_tiny", "speech/voicebox_tiny"]
NAMES = ["image/vqgan_tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


# One phase and no second network: what is traced in a quarter of the time.
PLAIN = SMALLER | {"adversarial": "none", "perceptual": 0.0}


@cache
def planned(name: str, recipe: Any) -> dict[str, Any]:
    return plan(lambda settings: rooms.build(settings), recipe, "h200")


@pytest.mark.parametrize("name", NAMES)
def test_planned_operations_are_those_of_real_steps(name: str, tmp_path: Path) -> None:
    recipe = replaced(rooms.recipe_function(name)(), SMALLER)
    facts = planned(name, recipe)
    run = Run(rooms.build(recipe), recipe, World(recipe), RunFolder(tmp_path))
    try:
        assert facts["parameters"] == {
            n: sum(p.numel() for p in part.parameters.values()) for n, part in run.parts.items()
        }
        saved = [file for part in run.parts.values() for file in part.state().values()]
        names = ("weights", "moments", "averages")
        assert facts["checkpoint"] <= sum(facts["bytes"][n] for n in names)
        weights = [t.nbytes for file in saved for t in file.values()]
        assert sum(weights) <= facts["checkpoint"], "before the first step there are no moments"
        for phase in facts["phases"]:
            run.step = phase["start"]
            run.stream.seek(0)
            with FlopCounterMode(display=False, custom_mapping=ON_CPU) as counter:
                take_step(run)
                run.stream.seek(0)
                take_step(run)  # every second step has a penalty
            assert phase["operations"] == counter.get_total_flops() / 2
    finally:
        run.close()


def test_micro_batches_are_alike(tmp_path: Path) -> None:
    recipe = replaced(rooms.recipe_function("image/vqgan_tiny")(), PLAIN)
    once = planned("image/vqgan_tiny", recipe)
    often = planned("image/vqgan_tiny", dataclasses.replace(recipe, accumulate=6))
    ratios = [b["operations"] / a["operations"] for a, b in zip(once["phases"], often["phases"])]
    assert ratios == [6]
    assert often["phases"][0]["samples"] == 12


def test_time_follows_from_the_rate_and_memory_from_the_parameters() -> None:
    recipe = replaced(rooms.recipe_function("image/vqgan_tiny")(), SMALLER)
    facts = planned("image/vqgan_tiny", recipe)
    first, last = facts["phases"]
    assert first["start"] == 0
    assert last["start"] == 4
    assert last["operations"] > first["operations"], "the discriminator has begun"
    assert recipe.matmul_share is not None
    assert last["seconds"] == last["operations"] / (MATMUL_RATE * recipe.matmul_share)
    vae, discriminator = facts["parameters"].values()
    assert facts["bytes"]["gradients"] == 4 * vae
    assert facts["bytes"]["moments"] == 8 * (vae + discriminator)
    assert facts["bytes"]["averages"] == 4 * vae, "the discriminator has none"
    assert facts["state"] == sum(facts["bytes"].values())


def test_what_is_frozen_in_a_part_has_weights_and_no_gradients() -> None:
    pytest.importorskip("diffusers")
    import adopting

    folder = str(adopting.folder("AutoencoderKL"))
    small = {"size": (32, 32), "autoencoder": folder, "warm_discriminator": 0}
    recipe = replaced(rooms.recipe_function("image/adopt_tiny")(), PLAIN | small)
    facts = {
        train: planned("image/adopt_tiny", dataclasses.replace(recipe, train=train))
        for train in ("decoder", "all", "lora")
    }
    whole = 4 * sum(p.numel() for p in adopting.network("AutoencoderKL").parameters())
    for train, one in facts.items():
        trained = 4 * one["parameters"]["vae"]
        added = trained if train == "lora" else 0
        assert one["bytes"]["weights"] == whole + added
        assert one["bytes"]["gradients"] == trained
        assert one["checkpoint"] == (trained if train == "lora" else whole) + 3 * trained
    operations = {train: one["phases"][0]["operations"] for train, one in facts.items()}
    assert operations["decoder"] < operations["all"]


@pytest.mark.slow  # the same count as above, with one flag
def test_recomputed_operations_are_counted() -> None:
    changes = SMALLER | {"layers": 4, "text_layers": 4, "batch_size": 16}
    recipe = replaced(rooms.recipe_function("music/mulan_tiny")(), changes)
    stored = planned("music/mulan_tiny", recipe)
    recomputed = planned(
        "music/mulan_tiny", dataclasses.replace(recipe, checkpoint_activations=True)
    )
    assert recomputed["phases"][0]["operations"] > 1.2 * stored["phases"][0]["operations"]


@pytest.mark.parametrize("name", get_args(get_type_hints(OptimizerConfig)["optimizer"]))
def test_planned_moments_are_those_that_a_step_leaves(name: str) -> None:
    config = OptimizerConfig(optimizer=name)  # type: ignore[arg-type]
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3), nn.GELU(), nn.Conv2d(7, 2, 1))
    part = LivePart("net", Part(network, config), World(Recipe(device="cpu")), 0, 1)
    for parameter in part.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    part.optimizer.step()
    states = [value for state in part.optimizer.state.values() for value in state.values()]
    assert moments(network, config) == sum(value.numel() for value in states if value.ndim)
