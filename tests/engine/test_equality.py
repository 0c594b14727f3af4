"""Micro-batches and processes are ways to compute one gradient: proven by equality in float64."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from harness import assert_same, lines, run, tensors
from quintet.engine import optim
from quintet.engine.errors import RunError
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Part, Update, each
from toy import Net, ToyRecipe, ToyTask

WHOLE = ToyRecipe(
    steps=20,
    batch_size=16,
    dropout=0.0,
    discriminator_start=5,
    workers=0,
    log_every=1,
    save_every=0,
    evaluate_every=20,
    precision="fp64",
    statistics=True,
    trackers=(),
)


def variant(**changes: object) -> ToyRecipe:
    return dataclasses.replace(WHOLE, **changes)  # type: ignore[arg-type]


def assert_close(one: dict, other: dict, tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def first_gradients(recipe: ToyRecipe, path: Path) -> dict[str, torch.Tensor]:
    """Gradients of the generator's first update, caught before the optimizer takes them."""
    task = ToyTask(recipe)
    folder = RunFolder.create(path, {})
    inner = Run(task, recipe, World(recipe), folder)
    part = inner.parts["generator"]
    caught: dict[str, torch.Tensor] = {}
    step = part.step

    def catch(at):
        caught.update({n: p.grad.clone() for n, p in part.parameters.items()})
        return step(at)

    part.step = catch  # type: ignore[method-assign]
    take_step(inner)
    inner.close()
    return caught


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_micro_batches_give_the_gradient_of_the_whole_batch(parts: int, tmp_path: Path) -> None:
    whole = first_gradients(variant(discriminator_start=0), tmp_path / "whole")
    cut = variant(discriminator_start=0, batch_size=16 // parts, accumulate=parts)
    assert_close(whole, first_gradients(cut, tmp_path / "cut"), 1e-10)


@pytest.mark.slow  # with muon below; contract/
def test_accumulation_ends_at_the_parameters_of_the_whole_batch(tmp_path: Path) -> None:
    run(WHOLE, tmp_path / "whole")
    run(variant(batch_size=4, accumulate=4), tmp_path / "cut")
    assert_close(tensors(tmp_path / "whole", 20), tensors(tmp_path / "cut", 20), 1e-8)


MUON = optim.OptimizerConfig(optimizer="muon", learning_rate=1e-2, warmup_steps=4, weight_decay=0.1)


def test_accumulation_and_processes_end_at_the_parameters_of_the_whole_batch_with_muon(
    tmp_path: Path,
) -> None:
    whole = variant(depth=2, generator=MUON)
    run(whole, tmp_path / "whole")
    run(dataclasses.replace(whole, batch_size=4, accumulate=4), tmp_path / "cut")
    run(dataclasses.replace(whole, batch_size=8), tmp_path / "two", size=2)
    for other in ("cut", "two"):
        assert_close(tensors(tmp_path / "whole", 20), tensors(tmp_path / other, 20), 1e-8)
    errors = [line["generator/error"] for line in lines(tmp_path / "whole") if "order" in line]
    assert errors[-1] < 0.2 * errors[0]


@pytest.mark.slow  # with muon below; contract/
def test_two_processes_end_at_the_parameters_of_one(tmp_path: Path) -> None:
    run(WHOLE, tmp_path / "one")
    run(variant(batch_size=4, accumulate=2), tmp_path / "two", size=2)
    assert_close(tensors(tmp_path / "one", 20), tensors(tmp_path / "two", 20), 1e-8)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [r.get("order") for r in one] == [r.get("order") for r in two]
    for a, b in zip(one, two):
        for name in {
            "generator/loss",
            "discriminator/loss",
            "val/error",
            "generator/learning_rate",
        } & a.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-8)


@pytest.mark.slow  # in fp64 the parameters agree
def test_two_processes_agree_with_one_in_fp32_losses(tmp_path: Path) -> None:
    run(variant(precision="fp32"), tmp_path / "one")
    run(variant(precision="fp32", batch_size=8), tmp_path / "two", size=2)
    for a, b in zip(lines(tmp_path / "one"), lines(tmp_path / "two")):
        for name in {"generator/loss", "discriminator/loss"} & a.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-4)


def test_both_processes_hold_the_same_state_exactly(tmp_path: Path) -> None:
    recipe = variant(precision="fp32", batch_size=8, size=64, dropout=0.3)
    run(recipe, tmp_path / "run", size=2, name="witness")
    states = [json.loads((tmp_path / f"run.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert states[0]
    assert states[0] == states[1]


def test_batches_by_length_are_the_same_on_one_and_two_processes(tmp_path: Path) -> None:
    run(variant(accumulate=2), tmp_path / "one", name="length")
    run(variant(accumulate=1), tmp_path / "two", size=2, name="length")
    assert_close(tensors(tmp_path / "one", 20), tensors(tmp_path / "two", 20), 1e-8)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [r.get("order") for r in one] == [r.get("order") for r in two]


@pytest.mark.by_default("cosine-2", "constant-1")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_asked_for_rate_is_the_applied_one(schedule: str, size: int, tmp_path: Path) -> None:
    generator = dataclasses.replace(WHOLE.generator, scheduler=schedule)
    recipe = variant(precision="fp32", batch_size=16 // size, generator=generator)
    run(recipe, tmp_path / "run", size=size)
    applied = {r["step"] - 1: r for r in lines(tmp_path / "run") if "generator/learning_rate" in r}
    assert applied[0]["generator/learning_rate"] == pytest.approx(1e-2 / 4)
    assert applied[1]["generator/learning_rate"] == pytest.approx(1e-2 / 2)
    assert applied[3]["generator/learning_rate"] == pytest.approx(1e-2)
    for step in (10, 19):
        expected = optim.learning_rate_at(generator, step, 20)
        assert applied[step]["generator/learning_rate"] == pytest.approx(expected)
    # The discriminator warms up from its own start, step 5, over a schedule of its own 15 steps.
    assert applied[5]["discriminator/learning_rate"] == pytest.approx(5e-3 / 4)
    assert applied[8]["discriminator/learning_rate"] == pytest.approx(5e-3)


def test_an_update_touches_its_own_part_only(tmp_path: Path) -> None:
    recipe = variant(discriminator_start=0)
    task = ToyTask(recipe)
    inner = Run(task, recipe, World(recipe), RunFolder.create(tmp_path / "run", {}))
    seen = []
    for name, part in inner.parts.items():
        step = part.step

        def watch(at, name=name, step=step):
            others = [
                p
                for n, other in inner.parts.items()
                if n != name
                for p in other.parameters.values()
            ]
            assert all(p.grad is None and not p.requires_grad for p in others)
            assert all(not other.module.training for n, other in inner.parts.items() if n != name)
            before = [p.clone() for p in others]
            result = step(at)
            assert all(a.equal(b) for a, b in zip(before, others))
            seen.append(name)
            return result

        part.step = watch  # type: ignore[method-assign]
    take_step(inner)
    assert seen == ["generator", "discriminator"]
    assert all(p.grad is None for part in inner.parts.values() for p in part.parameters.values())
    inner.close()


def test_the_live_part_can_only_be_called(tmp_path: Path) -> None:
    recipe = variant(discriminator_start=0)
    inner = Run(ToyTask(recipe), recipe, World(recipe), RunFolder.create(tmp_path / "run", {}))
    nets = inner.parts.only(inner.parts["generator"])
    with pytest.raises(AttributeError, match="let its forward return what"):
        nets["generator"].first
    inner.close()


def test_a_parameter_in_two_parts_is_refused(tmp_path: Path) -> None:
    class Shared(ToyTask):
        def __init__(self, recipe: ToyRecipe):
            super().__init__(recipe)
            self.parts["discriminator"].network.first = self.parts["generator"].network.first

    with pytest.raises(RunError, match="2 parameters belong to two parts"):
        Run(Shared(WHOLE), WHOLE, World(WHOLE), RunFolder.create(tmp_path / "run", {}))


def test_a_part_without_an_update_is_refused(tmp_path: Path) -> None:
    class Idle(ToyTask):
        def __init__(self, recipe: ToyRecipe):
            super().__init__(recipe)
            self.parts["idle"] = Part(Net(1, 4, 0.0), recipe.discriminator_optim)

    with pytest.raises(RunError, match="part 'idle' has an optimizer but no update"):
        Run(Idle(WHOLE), WHOLE, World(WHOLE), RunFolder.create(tmp_path / "run", {}))


def test_two_updates_of_one_part_draw_different_dropout(tmp_path: Path) -> None:
    drawn: list[torch.Tensor] = []

    class Twice(ToyTask):
        def __init__(self, recipe: ToyRecipe):
            super().__init__(recipe)
            self.updates = [Update("generator", each(self.draw)) for _ in range(2)]
            del self.parts["discriminator"]

        def draw(self, nets, batch, at):
            drawn.append(torch.rand(4))
            return self.generator_loss(nets, batch, at)

    recipe = variant(discriminator_start=10**6)
    inner = Run(Twice(recipe), recipe, World(recipe), RunFolder.create(tmp_path / "run", {}))
    take_step(inner)
    assert not drawn[0].equal(drawn[1])
    inner.close()


def test_frozen_helpers_are_in_no_checkpoint(tmp_path: Path) -> None:
    class Helped(ToyTask):
        def __init__(self, recipe: ToyRecipe):
            super().__init__(recipe)
            self.parts["helper"] = Part(Net(1, 4, 0.0))

    inner = Run(Helped(WHOLE), WHOLE, World(WHOLE), RunFolder.create(tmp_path / "run", {}))
    assert not any(p.requires_grad for p in inner.parts.frozen["helper"].parameters())
    take_step(inner)
    inner.save()
    inner.finish()
    names = {p.name for p in (tmp_path / "run/checkpoints/step-00000001").iterdir()}
    assert not any("helper" in name for name in names)
    assert "generator.safetensors" in names
    inner.close()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    recipe = variant(steps=4, dropout=0.2, evaluate_every=4)
    run(recipe, tmp_path / "a")
    run(recipe, tmp_path / "b")
    run(dataclasses.replace(recipe, seed=1), tmp_path / "c")
    assert_same(tensors(tmp_path / "a", 4), tensors(tmp_path / "b", 4))
    a, c = tensors(tmp_path / "a", 4), tensors(tmp_path / "c", 4)
    assert not a["generator.safetensors:first.weight"].equal(
        c["generator.safetensors:first.weight"]
    )
