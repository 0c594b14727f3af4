"""Shards of the weights, averages and moments give what whole ones give."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import harness
import many
from harness import tensors, trajectory
from quintet.engine.config import OptimizerConfig
from quintet.engine.errors import RunError
from quintet.engine.machine.regions import recompute, require_regions
from toy import ToyRecipe

RECIPE = ToyRecipe(
    steps=10,
    batch_size=4,
    accumulate=2,
    workers=0,
    trackers=(),
    device="cpu",
    precision="fp64",
    log_every=1,
    save_every=0,
    evaluate_every=5,
)
TIGHT = OptimizerConfig(max_grad_norm=0.1, warmup_steps=4, learning_rate=1e-2)


def both(tmp_path: Path, **changes: Any) -> list[Path]:
    """The same run on two processes with copies and with shards."""
    recipe = dataclasses.replace(RECIPE, **changes)
    paths = [tmp_path / "whole", tmp_path / "shards"]
    for path, shard in zip(paths, (False, True)):
        harness.run(dataclasses.replace(recipe, fsdp=shard), path, size=2)
    return paths


def assert_close(paths: list[Path]) -> None:
    first, second = (tensors(path, RECIPE.steps) for path in paths)
    assert first.keys() == second.keys()
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-8, atol=1e-8, msg=key)
    for one, other in zip(*map(trajectory, paths), strict=True):
        assert one.pop("order", None) == other.pop("order", None)
        assert numbers(other) == pytest.approx(numbers(one), rel=1e-6, nan_ok=True)


def numbers(report: dict[str, Any]) -> dict[str, float]:
    """JSON has null where a number is not finite."""
    return {key: float("nan") if value is None else value for key, value in report.items()}


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(dataclasses.replace(TIGHT, weight_decay=0.01), id="adamw"),
        pytest.param(  # adamw without its decay
            dataclasses.replace(TIGHT, optimizer="adam", ema_decay=0.0),
            id="adam",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            dataclasses.replace(TIGHT, optimizer="lion", weight_decay=0.1),
            id="lion",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_shards_give_what_copies_give(optimizer: OptimizerConfig, tmp_path: Path) -> None:
    """Gradients are clipped by their norm over all shards; statistics and averages follow."""
    paths = both(tmp_path, generator=optimizer, statistics=True, discriminator_start=5)
    assert_close(paths)
    norms = [
        line["generator/grad_norm"]
        for line in trajectory(paths[1])
        if "generator/grad_norm" in line
    ]
    assert min(norms) > 0.1  # so that clipping was put to the test


def test_muon_is_refused_for_shards_of_matrices(tmp_path: Path) -> None:
    muon = OptimizerConfig(optimizer="muon")
    recipe = dataclasses.replace(RECIPE, fsdp=True, depth=1, generator=muon)
    processes = harness.Processes(recipe, tmp_path / "run", size=2)
    assert processes.wait() == [2, 2]
    assert "--fsdp shards those of 'generator' by rows; drop --fsdp" in processes.said()


def test_a_step_that_is_bad_on_one_process_is_skipped_by_all_shards(tmp_path: Path) -> None:
    paths = both(tmp_path, nan_at=7, nan_rank=1)
    assert_close(paths)
    skipped = [line["generator/skipped"] for line in trajectory(paths[1]) if "order" in line]
    assert skipped == [float(step == 8) for step in range(1, RECIPE.steps + 1)]


@pytest.mark.slow  # contract/test_recipes.py
def test_losses_in_fp32_agree(tmp_path: Path) -> None:
    reports = [trajectory(path) for path in both(tmp_path, precision="fp32")]
    for one, other in zip(*reports, strict=True):
        losses = {key: value for key, value in one.items() if key.endswith(("loss", "error"))}
        assert {key: other[key] for key in losses} == pytest.approx(losses, abs=1e-4)


def test_a_process_holds_its_share_of_weights_averages_and_moments(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, fsdp=True, width=64)
    held = many.shares(recipe, tmp_path / "shares", 2)
    for kind in ("weights", "moments"):
        assert sum(share[kind] for share in held) == held[0]["all"]
        assert max(share[kind] for share in held) < 0.55 * held[0]["all"]
    assert sum(share["averages"] for share in held) < held[0]["all"]  # the discriminator keeps none
    assert max(share["averages"] for share in held) < 0.55 * sum(s["averages"] for s in held)


def test_one_process_has_nothing_to_share(tmp_path: Path) -> None:
    harness.run(dataclasses.replace(RECIPE, fsdp=True), tmp_path / "asked")
    harness.run(RECIPE, tmp_path / "plain")
    asked, plain = (tensors(tmp_path / name, RECIPE.steps) for name in ("asked", "plain"))
    harness.assert_same(asked, plain)


# -- computing blocks again ------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return x + scale * self.dropout(torch.tanh(self.inner(x)))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def regions(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, scale=0.7)
        return x


def gradients(tower: nn.Module) -> list[Tensor]:
    torch.manual_seed(5)
    tower(torch.linspace(-1, 1, 32).reshape(4, 8)).square().sum().backward()
    return [p.grad for p in tower.parameters() if p.grad is not None]


def towers() -> tuple[Tower, Tower]:
    torch.manual_seed(1)
    plain, again = Tower(), Tower()
    again.load_state_dict(plain.state_dict())
    recompute(again)
    return plain, again


def test_blocks_computed_again_give_the_same_gradients_with_dropout() -> None:
    plain, again = towers()
    for one, other in zip(gradients(plain), gradients(again), strict=True):
        assert one.equal(other)
    assert [block.calls for block in again.blocks] == [2, 2, 2]  # type: ignore[union-attr]


def test_blocks_are_computed_once_where_no_gradients_are_asked_for() -> None:
    _, again = towers()
    recompute(again)  # a second time changes nothing
    with torch.no_grad():
        again(torch.zeros(1, 8))
    assert [block.calls for block in again.blocks] == [1, 1, 1]  # type: ignore[union-attr]
    gradients(again)
    assert [block.calls for block in again.blocks] == [3, 3, 3]  # type: ignore[union-attr]


def test_networks_that_name_no_blocks_are_refused() -> None:
    require_regions([nn.Linear(2, 2), Tower()])
    with pytest.raises(RunError, match=r"none of the networks \(Linear\) names its blocks"):
        require_regions([nn.Linear(2, 2)])


def test_blocks_that_collect_statistics_are_refused() -> None:
    tower = Tower()
    tower.blocks[1].commit = lambda at: None  # type: ignore[assignment]
    with pytest.raises(RunError, match="would be collected twice"):
        recompute(tower)


def test_a_run_that_names_no_blocks_says_so(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, checkpoint_activations=True)
    processes = harness.Processes(recipe, tmp_path / "run")
    assert processes.wait() == [2]
    assert "names its blocks in regions()" in processes.said()
