"""The image task through the engine: two updates that keep out of each other's way."""

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness import assert_same
from quintet.engine.config import OptimizerConfig
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.optim import learning_rate_at
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.image.config import ImageDataConfig
from quintet.image.vqgan.config import VQGanRecipe, VQGanVAEConfig
from quintet.image.vqgan.task import VQGanTask
from quintet.nn.similarity import psnr, total_variation
from quintet.shared.tokenizer.config import DiscriminatorConfig, TokenizerLossConfig
from quintet.shared.tokenizer.pixels import bicubic


def recipe(**changes: Any) -> VQGanRecipe:
    model = VQGanVAEConfig(
        dim=8,
        channel_multipliers=(1, 2),
        patch_size=2,
        num_res_blocks=(1,),
        quantiser=changes.pop("quantiser", "fsq"),
        levels=(4, 4),
        codebook_bits=4,
    )
    losses = TokenizerLossConfig(**{"adversarial_from": 0.0, **changes.pop("losses", {})})
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=4)
    settings: dict[str, Any] = {
        "steps": 8,
        "batch_size": 4,
        "device": "cpu",
        "workers": 0,
        "trackers": (),
        "optim": optimizer,
        "discriminator_optim": dataclasses.replace(optimizer, ema_decay=0.0),
        "discriminator": DiscriminatorConfig(dim=8, layers=1),
        "images": ImageDataConfig(size=(16, 16), builtin_count=64, valid_limit=5),
        **changes,
    }
    return VQGanRecipe(model=model, losses=losses, **settings)


def open_run(settings: VQGanRecipe, path: Path) -> Run:
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    return Run(VQGanTask(settings), settings, World(settings), RunFolder(path))


def parameters(run: Run, part: str) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in run.parts[part].parameters.items()}


def moved(run: Run, part: str, before: dict[str, Tensor]) -> bool:
    return any(not before[n].equal(p) for n, p in run.parts[part].parameters.items())


# -- every choice ---------------------------------------------------------------------------


class Watch:
    """Notes, as each part steps, which parameters of the whole run hold a gradient."""

    def __init__(self, run: Run):
        self.run, self.seen = run, {}
        for name, part in run.parts.items():
            part.step = self._noted(name, part.step)  # type: ignore[method-assign]

    def _noted(self, name: str, step: Any) -> Any:
        def noted(at: Any) -> Any:
            self.seen[name] = {
                other: sum(p.grad is not None for p in part.module.parameters())
                for other, part in self.run.parts.items()
            }
            return step(at)

        return noted


QUANTISERS = ["fsq", "lfq", "bsq", "vq"]
ADVERSARIAL = ["none", "hinge", "relativistic"]
PENALTIES = ["none", "r1", "r1_tangent", "lecam"]
PAIR = ("hinge", "r1")
CHOICES = [
    # Each pair of losses with one quantiser, and the other quantisers with one pair.
    pytest.param(
        *choice, marks=() if choice[0] == "fsq" or choice[1:] == PAIR else pytest.mark.slow
    )
    for choice in product(QUANTISERS, ADVERSARIAL, PENALTIES)
]


@pytest.mark.by_default(
    "*-hinge-r1", "fsq-hinge-r1_tangent", "fsq-relativistic-none", "fsq-none-lecam", "fsq-none-none"
)
@pytest.mark.parametrize(("quantiser", "adversarial", "penalty"), CHOICES)
def test_every_choice_trains_and_an_update_leaves_gradients_on_its_own_part_only(
    quantiser: str, adversarial: str, penalty: str, tmp_path: Path
) -> None:
    losses = {"adversarial": adversarial, "penalty": penalty, "penalty_every": 1}
    run = open_run(recipe(quantiser=quantiser, losses=losses), tmp_path)
    watch = Watch(run)
    before = {name: parameters(run, name) for name in run.parts}
    for _ in range(2):
        take_step(run)
    _, table = run.meters.read()
    assert all(
        value == value and abs(value) < 1e6 for row in table.values() for value in row.values()
    )
    assert ("discriminator/loss" in table[1]) == (adversarial != "none")
    assert ("discriminator/penalty" in table[1]) == (adversarial != "none" and penalty != "none")
    assert set(watch.seen) == set(run.parts)
    for name, counts in watch.seen.items():
        assert counts[name] == len(run.parts[name].parameters)
        assert not any(count for other, count in counts.items() if other != name)
    networks = [part.module for part in run.parts.values()] + list(run.parts.frozen.values())
    assert all(p.grad is None for network in networks for p in network.parameters())
    assert all(moved(run, name, before[name]) for name in run.parts)
    run.close()


def test_the_perceptual_distance_is_frozen_and_in_no_checkpoint(tmp_path: Path) -> None:
    run = open_run(recipe(), tmp_path)
    assert set(run.parts.frozen) == {"perceptual"}
    assert not any(p.requires_grad for p in run.parts.frozen["perceptual"].parameters())
    files = {name for part in run.parts.values() for name in part.state()}
    assert files == {
        "vae",
        "vae.ema",
        "vae.extra_state",
        "vae.optim",
        "discriminator",
        "discriminator.optim",
    }
    run.close()
    without = VQGanTask(recipe(losses={"perceptual": 0.0}))
    assert "perceptual" not in without.parts


# -- the discriminator's start ---------------------------------------------------------------------


def test_the_discriminator_starts_at_its_step_and_warms_up_from_there(tmp_path: Path) -> None:
    settings = recipe(losses={"adversarial_from": 0.5, "adversarial_warmup_steps": 2})
    run = open_run(settings, tmp_path)
    assert settings.adversarial_start == 4
    before, rates = parameters(run, "discriminator"), {}
    for step in range(8):
        take_step(run)
        rates[step] = run.parts["discriminator"].optimizer.param_groups[0]["lr"]
        assert moved(run, "discriminator", before) == (step >= 4)
    _, table = run.meters.read()
    assert [step for step, row in table.items() if "discriminator/loss" in row] == [4, 5, 6, 7]
    assert [step for step, row in table.items() if "vae/adversarial" in row] == [4, 5, 6, 7]
    expected = [learning_rate_at(settings.discriminator_optim, step, 4) for step in range(4)]
    assert [rates[step] for step in range(4, 8)] == expected
    assert expected[0] == pytest.approx(1e-3 / 4)
    run.close()


def test_a_penalty_falls_due_at_its_cadence_counted_from_the_discriminators_start(
    tmp_path: Path,
) -> None:
    losses = {"adversarial_from": 0.25, "penalty_every": 3}
    run = open_run(recipe(losses=losses), tmp_path)
    for _ in range(8):
        take_step(run)
    _, table = run.meters.read()
    assert [step for step, row in table.items() if "discriminator/penalty" in row] == [2, 5]
    run.close()


def test_the_adversarial_weight_warms_up(tmp_path: Path) -> None:
    losses = {"adversarial_warmup_steps": 4, "adversarial_cap": 100.0}
    run = open_run(recipe(losses=losses), tmp_path)
    run.task.balancer.weight.fill_(1.0)  # type: ignore[attr-defined]
    run.task.balancer.smoothing = 1.0  # type: ignore[attr-defined]
    for _ in range(5):
        take_step(run)
    _, table = run.meters.read()
    weights = [row["vae/adversarial_weight"] for row in table.values()]
    assert weights == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    run.close()


def test_the_adversarial_weight_is_saved_and_restored(tmp_path: Path) -> None:
    settings = recipe(losses={"penalty": "lecam", "penalty_every": 1})
    run = open_run(settings, tmp_path / "run")
    for _ in range(3):
        take_step(run)
    run.save()
    run.finish()
    weight = run.task.balancer.weight.clone()  # type: ignore[attr-defined]
    averages = run.task.parts["discriminator"].extra_state.ema_logits.clone()  # type: ignore[attr-defined]
    run.close()
    again = open_run(settings, tmp_path / "run")
    assert not again.task.balancer.weight.equal(weight)  # type: ignore[attr-defined]
    again.restore(3)
    assert again.task.balancer.weight.equal(weight)  # type: ignore[attr-defined]
    assert again.task.parts["discriminator"].extra_state.ema_logits.equal(averages)  # type: ignore[attr-defined]
    assert averages.abs().sum() > 0
    again.close()


# Without and with statistics of their own; the quantisers between them have none either.
@pytest.mark.by_default("vq")
@pytest.mark.parametrize(
    "quantiser",
    ["fsq", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lfq", "bsq")), "vq"],
)
def test_steps_after_a_restore_are_the_steps_that_would_have_been_taken(
    quantiser: str, tmp_path: Path
) -> None:
    settings = recipe(quantiser=quantiser, losses={"penalty": "lecam", "penalty_every": 2})
    run = open_run(settings, tmp_path / "run")
    for _ in range(2):
        take_step(run)
    run.save()
    run.finish()
    again = open_run(settings, tmp_path / "run")
    again.restore(2)
    for _ in range(3):
        take_step(run)
        take_step(again)
    assert_same(state(run), state(again))
    run.close()
    again.close()


def state(run: Run) -> dict[str, Tensor]:
    return {
        f"{file}:{name}": value
        for part in run.parts.values()
        for file, tensors in part.state().items()
        for name, value in tensors.items()
    }


# -- accumulation ---------------------------------------------------------------------------


class Noise:
    """Pictures as floats."""

    def __len__(self) -> int:
        return 64

    def name(self, index: int) -> str:
        return f"sample {index}"

    def keyed(self, index: int, key: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"image": torch.rand(3, 16, 16, generator=generator), "text": ""}


def gradients(settings: VQGanRecipe, path: Path) -> dict[str, Tensor]:
    """The tokenizer's gradients in its first step."""
    path.mkdir()
    task = VQGanTask(settings, sets={"train": Noise(), "valid": None})
    run = Run(task, settings, World(settings), RunFolder(path))
    actual: dict[str, Tensor] = {}
    part = run.parts["vae"]
    step = part.step

    def noted(at: Any) -> Any:
        actual.update({n: p.grad.clone() for n, p in part.parameters.items() if p.grad is not None})
        return step(at)

    part.step = noted  # type: ignore[method-assign]
    take_step(run)
    run.close()
    return actual


def largest_difference(decorrelation_weight: float, path: Path) -> float:
    """Between one batch of eight and two micro-batches of four."""
    whole = recipe(losses={"adversarial": "none"}, precision="fp64", batch_size=8)
    whole = dataclasses.replace(
        whole, model=dataclasses.replace(whole.model, decorrelation_weight=decorrelation_weight)
    )
    halves = dataclasses.replace(whole, batch_size=4, accumulate=2)
    one, two = gradients(whole, path / "one"), gradients(halves, path / "two")
    assert one.keys() == two.keys()
    assert all(value.dtype == torch.float64 for value in one.values())
    assert max(value.abs().max().item() for value in one.values()) > 1e-3
    return max((value - two[name]).abs().max().item() for name, value in one.items())


def test_two_micro_batches_give_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    assert largest_difference(decorrelation_weight=0.0, path=tmp_path) < 1e-10


def test_only_the_decorrelation_loss_is_per_micro_batch(tmp_path: Path) -> None:
    assert 1e-10 < largest_difference(decorrelation_weight=0.05, path=tmp_path) < 1e-2


def test_fp64_trains_on_uint8_images(tmp_path: Path) -> None:
    run = open_run(recipe(precision="fp64"), tmp_path)
    take_step(run)
    run.close()


# -- measuring ------------------------------------------------------------------------------


class FixedNet:
    """A tokenizer that answers what it was told."""

    def __init__(self, images: Tensor, ids: Tensor):
        self.images, self.ids = images, ids

    def __call__(self, real: Tensor) -> Any:
        from quintet.shared.tokenizer.model import Reconstruction

        return Reconstruction(self.images, self.ids, torch.zeros(()))


def measured(task: VQGanTask, real: Tensor, made: Tensor, ids: Tensor) -> dict[str, float]:
    batch = Batch({"image": real}, list(range(len(real))), torch.zeros(len(real), dtype=torch.long))
    rows = task.measure({"vae": FixedNet(made, ids)}, batch)
    return task.summarise({name: row.values for name, row in rows.items()})  # type: ignore[union-attr]


def test_codebook_usage_is_counted_over_all_codes() -> None:
    task = VQGanTask(recipe())  # 4 x 4 = 16 codes
    real = torch.rand(2, 3, 16, 16)
    ids = torch.tensor([[[0, 0], [3, 3]], [[15, 15], [7, 7]]])
    actual = measured(task, real, real, ids)
    assert actual["codebook_usage"] == 4 / 16
    assert actual["perplexity"] == pytest.approx(4.0)
    assert actual["tokens_per_code"] == 8 / 16
    skewed = measured(task, real, real, torch.zeros(2, 2, 2, dtype=torch.long))
    assert skewed["codebook_usage"] == 1 / 16
    assert skewed["perplexity"] == pytest.approx(1.0)


def alarms(task: VQGanTask, ids: Tensor, step: int = 100) -> list[str]:
    """What the monitors say about two evaluations with these ids."""
    metrics = task.summarise({"ids": ids, "psnr": torch.ones(len(ids))})
    report = {"step": step, **{f"val/{name}": value for name, value in metrics.items()}}
    return [said for _ in range(2) for monitor in task.monitors if (said := monitor(report))]


def large_codebook(quantiser: str) -> VQGanTask:
    settings = recipe()
    model = dataclasses.replace(
        settings.model, quantiser=quantiser, levels=(8, 8, 8), codebook_bits=9
    )
    return VQGanTask(dataclasses.replace(settings, model=model))


def test_a_small_validation_set_is_no_collapse() -> None:
    task = large_codebook("fsq")
    few = torch.arange(20).view(1, 4, 5)  # all different, of 512 codes
    assert task.summarise({"ids": few})["codebook_usage"] < 0.05
    assert alarms(task, few) == []
    assert alarms(task, torch.zeros(1, 2, 2, dtype=torch.long)) == []  # too few to judge


@pytest.mark.parametrize(
    ("quantiser", "remedy"),
    [
        ("fsq", "smaller levels"),
        ("lfq", "entropy_weight"),
        ("bsq", "entropy_weight"),
        ("vq", "quantiser fsq"),
    ],
)
def test_a_collapse_is_named_with_the_remedy_of_the_quantiser(quantiser: str, remedy: str) -> None:
    task = large_codebook(quantiser)
    collapsed = torch.zeros(4, 8, 8, dtype=torch.long)
    (said,) = alarms(task, collapsed)
    assert "the codes have collapsed" in said
    assert remedy in said
    assert alarms(task, collapsed, step=2) == []  # in the warm-up


@pytest.mark.by_default("kl")
@pytest.mark.parametrize("quantiser", ["kl", "bounded"])
def test_continuous_latents_have_no_codebook_to_watch(quantiser: str, tmp_path: Path) -> None:
    settings = recipe()
    model = dataclasses.replace(settings.model, quantiser=quantiser, latent_channels=3)
    run = open_run(dataclasses.replace(settings, model=model), tmp_path)
    take_step(run)
    assert ("vae/kl" in run.meters.read()[0]) == (quantiser == "kl")
    metrics = run.evaluate()
    assert not [name for name in metrics if "code" in name or name == "perplexity"]
    assert metrics["latent_std"] > metrics["latent_std_min"] > 0
    assert ("kl_bits" in metrics) == (quantiser == "kl")
    large = VQGanTask(run.recipe)  # type: ignore[arg-type]
    assert len(large.monitors) == len(VQGanTask(recipe()).monitors) - 1
    run.close()


def test_noise_follows_from_the_samples_and_not_from_their_batch() -> None:
    settings = recipe()
    model = dataclasses.replace(settings.model, quantiser="kl", latent_channels=3)
    task = VQGanTask(dataclasses.replace(settings, model=model))
    real, keys = torch.rand(4, 3, 16, 16), torch.tensor([5, 6, 7, 5])
    noise = task._noise(real, Batch({}, [0, 1, 2, 3], keys))
    assert noise is not None
    assert noise.shape == (4, 3, *task.tokenizer.grid(real))
    assert torch.equal(noise[0], noise[3])
    assert not torch.equal(noise[0], noise[1])
    part = task._noise(real[2:], Batch({}, [2, 3], keys[2:]))
    assert part is not None
    assert torch.equal(part, noise[2:])
    assert VQGanTask(settings)._noise(real, Batch({}, [0, 1, 2, 3], keys)) is None


def test_metrics_are_right_on_handmade_images() -> None:
    task = VQGanTask(recipe())
    real = torch.zeros(2, 3, 16, 16)
    real[0, :, :, 8:] = 1.0  # half black, half white
    real[1] = 0.25
    output = real.clone()
    output[1] += 0.1
    actual = measured(task, real, output, torch.zeros(2, 4, 4, dtype=torch.long))
    assert actual["l1"] == pytest.approx(0.05, rel=1e-5)
    # The mean colour of the first is 0.5, a mean squared error of 0.25; of the second it is exact.
    perfect = psnr(real[1:], real[1:]).item()
    assert actual["psnr_mean_colour"] == pytest.approx((6.0206 + perfect) / 2, rel=1e-4)
    assert actual["psnr"] == pytest.approx((20.0 + perfect) / 2, rel=1e-4)


def test_reconstructions_are_clamped_before_evaluation() -> None:
    task = VQGanTask(recipe())
    real = torch.ones(1, 3, 16, 16)
    actual = measured(task, real, real + 5, torch.zeros(1, 4, 4, dtype=torch.long))
    assert actual["l1"] == 0.0


def test_the_bicubic_baseline_blurs() -> None:
    flat = torch.full((1, 3, 16, 16), 0.3)
    assert torch.allclose(bicubic(flat, 4), flat, atol=1e-6)
    noise = torch.rand(1, 3, 16, 16)
    blurred = bicubic(noise, 4)
    assert total_variation(blurred) < 0.5 * total_variation(noise)


def test_total_variation_is_the_mean_step_between_neighbours() -> None:
    ramp = torch.arange(4.0).expand(1, 3, 4, 4)
    assert total_variation(ramp).item() == 1.0
    assert total_variation(torch.ones(2, 3, 4, 4)).tolist() == [0.0, 0.0]


# -- looking at pictures --------------------------------------------------------------------


def test_uint8_and_float_images_are_equal() -> None:
    task = VQGanTask(recipe())
    values = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    keys = torch.zeros(2, dtype=torch.long)
    from_bytes = task.real(Batch({"image": values}, [0, 1], keys))
    from_floats = task.real(Batch({"image": values.float() / 255}, [0, 1], keys))
    assert from_bytes.equal(from_floats)
    assert from_bytes.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("image", "fits"),
    [
        (torch.rand(2, 3, 8, 8), True),
        (torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8), True),
        (torch.rand(2, 3, 8, 8) * 255, False),
        (torch.rand(2, 3, 8, 8) * 2 - 1, False),
    ],
)
def test_values_out_of_range_are_rejected_with_the_remedy(image: Tensor, fits: bool) -> None:
    task = VQGanTask(recipe())
    if fits:
        task.check({"image": image})
    else:
        with pytest.raises(ValueError, match="divide by 255"):
            task.check({"image": image})


def test_two_tasks_of_one_seed_begin_alike_and_of_two_seeds_do_not() -> None:
    one, two = (VQGanTask(recipe(seed=3)).parts for _ in range(2))
    other = VQGanTask(recipe(seed=4)).parts
    for name in ("vae", "discriminator"):
        assert_same(one[name].network.state_dict(), two[name].network.state_dict())
        first = next(iter(one[name].network.parameters()))
        assert not first.equal(next(iter(other[name].network.parameters())))
