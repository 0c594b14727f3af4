"""The video task: one tokenizer update, two discriminators, metrics and exhibits.

What clips share with pictures (the balance, the ramp, the cadence of penalties) is tested in
tests/image/test_task.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from harness import assert_same
from quintet.engine.config import OptimizerConfig
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.nn.similarity import ssim
from quintet.shared.tokenizer.config import DiscriminatorConfig
from quintet.shared.tokenizer.model import Reconstruction
from quintet.video.config import VideoDataConfig
from quintet.video.tokenizer.config import (
    MotionDiscriminatorConfig,
    VideoLossConfig,
    VideoRecipe,
    VideoTokenizerConfig,
)
from quintet.video.tokenizer.model import VideoTokenizer, temporal_error
from quintet.video.tokenizer.task import VideoTask, bicubic_baseline

DISCRIMINATORS = {"frame_discriminator", "motion_discriminator"}


def recipe(**changes: Any) -> VideoRecipe:
    model = VideoTokenizerConfig(
        init_dim=8,
        max_dim=8,
        patch_size=4,
        layers=("residual", "compress_time"),
        levels=(4, 4),
        codebook_bits=4,
        **changes.pop("model", {}),
    )
    about_losses: dict[str, Any] = {"adversarial_from": 0.0, **changes.pop("losses", {})}
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=4)
    settings: dict[str, Any] = {
        "steps": 8,
        "batch_size": 4,
        "device": "cpu",
        "workers": 0,
        "trackers": (),
        "optim": optimizer,
        "discriminator_optim": dataclasses.replace(optimizer, ema_decay=0.0),
        "frame_discriminator": DiscriminatorConfig(dim=8, layers=1),
        "motion_discriminator": MotionDiscriminatorConfig(dim=8, layers=1),
        "videos": VideoDataConfig(frames=5, size=(16, 16), builtin_count=64, valid_limit=5),
        **changes,
    }
    return VideoRecipe(model=model, losses=VideoLossConfig(**about_losses), **settings)


class Noise:
    """Clips as floats."""

    def __len__(self) -> int:
        return 64

    def name(self, index: int) -> str:
        return f"sample {index}"

    def keyed(self, index: int, key: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        video = torch.rand(3, 5, 16, 16, generator=generator)
        return {"video": video, "still": False, "text": ""}


def open_run(settings: VideoRecipe, path: Path) -> Run:
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    task = VideoTask(settings, sets={"train": Noise(), "valid": None})
    return Run(task, settings, World(settings), RunFolder(path))


def state(run: Run) -> dict[str, Tensor]:
    return {
        f"{file}:{name}": value.clone()
        for part in run.parts.values()
        for file, tensors in part.state().items()
        for name, value in tensors.items()
    }


def weights(run: Run) -> dict[str, dict[str, Tensor]]:
    return {
        name: {n: p.detach().clone() for n, p in part.parameters.items()}
        for name, part in run.parts.items()
    }


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return any(not before[name].equal(after[name]) for name in before)


def holders(run: Run) -> list[dict[str, set[str]]]:
    """A list that grows, as parts step, by who steps and which parts hold gradients then."""
    seen: list[dict[str, set[str]]] = []

    def watched(name: str, step: Any) -> Any:
        def noted(at: Any) -> Any:
            networks = {n: part.module for n, part in run.parts.items()} | run.parts.frozen
            held = {
                n
                for n, net in networks.items()
                if any(p.grad is not None for p in net.parameters())
            }
            seen.append({name: held})
            return step(at)

        return noted

    for name, part in run.parts.items():
        part.step = watched(name, part.step)  # type: ignore[method-assign]
    return seen


# -- every choice -----------------------------------------------------------------------------


@pytest.mark.by_default(
    "hinge-r1", "hinge-r1_tangent", "relativistic-lecam", "relativistic-none", "none-none"
)
@pytest.mark.parametrize("penalty", ["none", "r1", "r1_tangent", "lecam"])
@pytest.mark.parametrize("adversarial", ["none", "hinge", "relativistic"])
def test_every_choice_steps_all_parts_and_no_gradient_strays(
    adversarial: str, penalty: str, tmp_path: Path
) -> None:
    losses = {"adversarial": adversarial, "penalty": penalty, "penalty_every": 1}
    run = open_run(recipe(losses=losses), tmp_path)
    parts = {"tokenizer"} | (DISCRIMINATORS if adversarial != "none" else set())
    assert set(run.parts) == parts
    before, seen = weights(run), holders(run)
    for _ in range(2):
        take_step(run)
    assert seen == [{name: {name}} for _ in range(2) for name in run.parts]
    after = weights(run)
    assert all(moved(before[name], after[name]) for name in parts)
    networks = [*(part.module for part in run.parts.values()), *run.parts.frozen.values()]
    assert all(p.grad is None for network in networks for p in network.parameters())
    _, table = run.meters.read()
    assert all(abs(value) < 1e6 for row in table.values() for value in row.values())
    for discriminator in DISCRIMINATORS:
        assert (f"{discriminator}/loss" in table[1]) == (adversarial != "none")
        punished = adversarial != "none" and penalty != "none"
        assert (f"{discriminator}/penalty" in table[1]) == punished
    run.close()


@pytest.mark.by_default("vq")
@pytest.mark.parametrize("quantiser", ["lfq", "bsq", "vq"])
def test_other_quantisers_train_between_both_discriminators(quantiser: str, tmp_path: Path) -> None:
    run = open_run(recipe(model={"quantiser": quantiser}), tmp_path)
    before = weights(run)
    for _ in range(2):
        take_step(run)
    after = weights(run)
    assert all(moved(before[name], after[name]) for name in run.parts)
    run.close()


def test_without_motion_there_is_one_discriminator(tmp_path: Path) -> None:
    run = open_run(recipe(losses={"motion": False}), tmp_path)
    assert set(run.parts) == {"tokenizer", "frame_discriminator"}
    take_step(run)
    _, table = run.meters.read()
    assert not any("motion_discriminator" in name for name in table[0])
    run.close()


def test_both_discriminators_contribute_to_the_adversarial_loss(tmp_path: Path) -> None:
    """It is the mean over discriminators: the tokenizer's first step depends on each of them."""
    terms = {}
    for motion in (False, True):
        run = open_run(recipe(losses={"motion": motion}), tmp_path / str(motion))
        take_step(run)
        _, table = run.meters.read()
        terms[motion] = table[0]["tokenizer/adversarial"]
        run.close()
    assert terms[False] != terms[True]


# -- a start in the middle of the run ---------------------------------------------------------


@pytest.mark.by_default("True")
@pytest.mark.parametrize("motion", [True, False])
def test_discriminators_start_together_at_their_step(motion: bool, tmp_path: Path) -> None:
    settings = recipe(losses={"adversarial_from": 0.5, "motion": motion})
    run = open_run(settings, tmp_path)
    discriminators = set(run.parts) - {"tokenizer"}
    before = weights(run)
    for step in range(6):
        take_step(run)
        now = weights(run)
        assert {n for n in discriminators if moved(before[n], now[n])} == (
            discriminators if step >= 4 else set()
        )
    _, table = run.meters.read()
    for name in [
        *(f"{discriminator}/loss" for discriminator in discriminators),
        "tokenizer/adversarial",
    ]:
        assert [step for step, row in table.items() if name in row] == [4, 5]
    run.close()


ONE, LECAM = {"motion": False}, {"penalty": "lecam"}
RELATIVISTIC = {**LECAM, "adversarial": "relativistic"}
STOPS = [(ONE, 3), (LECAM, 4), (RELATIVISTIC, 5)]
OTHER_STOPS = [(ONE, 4), (ONE, 5), (LECAM, 3), (LECAM, 5), (RELATIVISTIC, 3), (RELATIVISTIC, 4)]


# Before, at and after the start of the discriminators, each with one kind of loss.
@pytest.mark.by_default("losses2-5")
@pytest.mark.parametrize(
    ("losses", "stop"),
    [*STOPS, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_STOPS)],
)
def test_a_restored_run_takes_the_steps_that_would_have_been_taken(
    losses: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    """Saved before, at and after the discriminators' start."""
    settings = recipe(losses={"adversarial_from": 0.5, "penalty_every": 1, **losses})
    run = open_run(settings, tmp_path)
    for _ in range(stop):
        take_step(run)
    run.save()
    run.finish()
    again = open_run(settings, tmp_path)
    again.restore(stop)
    assert_same(state(run), state(again))
    for _ in range(3):
        take_step(run)
        take_step(again)
    assert_same(state(run), state(again))
    run.close()
    again.close()


def test_each_discriminator_has_its_own_lecam_averages(tmp_path: Path) -> None:
    run = open_run(recipe(losses={"penalty": "lecam", "penalty_every": 1}), tmp_path)
    for _ in range(2):
        take_step(run)
    states: list[Any] = [run.task.parts[name].extra_state for name in sorted(DISCRIMINATORS)]
    assert states[0] is not states[1]
    assert all(extra_state.ema_logits.abs().sum() > 0 for extra_state in states)
    assert not states[0].ema_logits.equal(states[1].ema_logits)
    files = {name for part in run.parts.values() for name in part.state()}
    assert {
        "frame_discriminator.extra_state",
        "motion_discriminator.extra_state",
        "tokenizer.extra_state",
    } <= files
    run.close()


# -- the perceptual frames --------------------------------------------------------------------


def batch_of(video: Tensor, keys: list[int]) -> Batch:
    return Batch({"video": video}, list(range(len(keys))), torch.tensor(keys))


def chosen(task: VideoTask, keys: list[int], frames: int = 17) -> list[list[int]]:
    """Which frames are compared: frame t of every clip is of the value t."""
    ramp = torch.arange(frames).float()[:, None, None].expand(len(keys), 3, frames, 4, 4)
    seen = task.perceptual_images(ramp, batch_of(ramp, keys))
    assert seen.shape[1:] == (3, 4, 4)
    return seen[:, 0, 0, 0].long().reshape(len(keys), -1).tolist()


def test_perceptual_frames_depend_on_the_key_of_the_sample_alone() -> None:
    task = VideoTask(recipe(losses={"perceptual_frames": 3}))
    keys = [11, 7, 2**62 + 5, 90]
    together = chosen(task, keys)
    assert [chosen(task, [key])[0] for key in keys] == together
    assert chosen(task, keys[::-1]) == together[::-1]
    torch.manual_seed(5)
    assert chosen(task, keys) == together
    assert chosen(task, [11, 12])[0] != chosen(task, [11, 12])[1]


def test_perceptual_frames_reach_every_frame_about_equally_often() -> None:
    task = VideoTask(recipe(losses={"perceptual_frames": 2}))
    actual = np.array(chosen(task, list(range(4000)), frames=5)).ravel()
    shares = np.bincount(actual, minlength=5) / len(actual)
    assert len(shares) == 5
    assert np.abs(shares - 0.2).max() < 0.02  # four standard deviations


def test_perceptual_frames_of_real_and_fake_are_the_same() -> None:
    task = VideoTask(recipe())
    video = torch.rand(3, 3, 5, 16, 16)
    batch = batch_of(video, [1, 2, 3])
    assert task.perceptual_images(video + 1, batch).equal(task.perceptual_images(video, batch) + 1)


def test_a_clip_of_one_frame_is_compared_once() -> None:
    task = VideoTask(recipe(losses={"perceptual_frames": 2}))
    assert chosen(task, [1, 2], frames=1) == [[0], [0]]


# -- accumulation -----------------------------------------------------------------------------


def first_gradients(settings: VideoRecipe, path: Path, name: str) -> dict[str, Tensor]:
    run = open_run(settings, path)
    actual: dict[str, Tensor] = {}
    part = run.parts[name]
    step = part.step

    def noted(at: Any) -> Any:
        actual.update({n: p.grad.clone() for n, p in part.parameters.items() if p.grad is not None})
        return step(at)

    part.step = noted  # type: ignore[method-assign]
    take_step(run)
    run.close()
    return actual


@pytest.mark.by_default("tokenizer-*", "motion_discriminator-*")
@pytest.mark.parametrize(
    ("part", "losses"),
    [
        ("tokenizer", {"adversarial": "none"}),  # the balance is a statistic of a micro-batch
        ("frame_discriminator", {"penalty": "none"}),
        ("motion_discriminator", {"penalty": "r1", "penalty_every": 1}),
    ],
)
def test_micro_batches_give_the_gradients_of_the_whole_batch(
    part: str, losses: dict[str, Any], tmp_path: Path
) -> None:
    """Perceptual frames go with the samples' keys, and each discriminator sees every clip once."""
    model = {"decorrelation_weight": 0.0}
    settings = recipe(losses=losses, model=model, precision="fp64", batch_size=8)
    whole = first_gradients(settings, tmp_path / "whole", part)
    assert max(value.abs().max().item() for value in whole.values()) > 1e-3
    for size, count in ((4, 2), (1, 8)):
        pieces = dataclasses.replace(settings, batch_size=size, accumulate=count)
        actual = first_gradients(pieces, tmp_path / f"{count}", part)
        assert actual.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(actual[name], value, rtol=0, atol=1e-10, msg=name)


# -- measuring --------------------------------------------------------------------------------


def brute_psnr(made: np.ndarray, real: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((made - real) ** 2)))


def measured(task: VideoTask, real: Tensor, made: Tensor, ids: Tensor) -> dict[str, Tensor]:
    answer = lambda video: Reconstruction(made, ids, torch.zeros(()))
    batch = batch_of(real, list(range(len(real))))
    rows = task.measure({"tokenizer": answer}, batch)
    return {name: row.values for name, row in rows.items()}  # type: ignore[union-attr]


@pytest.fixture
def clips() -> tuple[Tensor, Tensor]:
    """What is real, and something made of it that leaves 0..1 in places."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(3, 3, 5, 4, 4, generator=generator)
    real = coarse.repeat_interleave(4, 3).repeat_interleave(4, 4).contiguous()
    return real, real + 0.2 * torch.randn(real.shape, generator=generator)


def test_metrics_match_reference_implementations(clips: tuple[Tensor, Tensor]) -> None:
    task = VideoTask(recipe())
    real, output = clips
    actual = measured(task, real, output, torch.zeros(3, 3, 4, 4, dtype=torch.long))
    for index in range(3):
        a, b = real[index].double().numpy(), output[index].double().clamp(0, 1).numpy()
        colour = a.mean((1, 2, 3), keepdims=True)
        steps_a, steps_b = a[:, 1:] - a[:, :-1], b[:, 1:] - b[:, :-1]
        expected = {
            "psnr": brute_psnr(b, a),
            "l1": np.abs(b - a).mean(),
            "motion_error": np.abs(steps_b - steps_a).mean(),
            "motion_error_still": np.abs(steps_a).mean(),
            "psnr_mean_colour": brute_psnr(np.broadcast_to(colour, a.shape), a),
            "psnr_mean_frame": brute_psnr(np.broadcast_to(a.mean(1, keepdims=True), a.shape), a),
            "ssim": np.mean(
                [
                    ssim(output[index : index + 1, :, t].clamp(0, 1), real[index : index + 1, :, t])
                    for t in range(5)
                ]
            ),
        }
        for name, value in expected.items():
            assert actual[name][index].item() == pytest.approx(value, rel=1e-4), name


def enlarged_by_hand(clip: np.ndarray, factor: int, time_factor: int) -> np.ndarray:
    """(3, t, h, w): kept frames shrunk and enlarged by Pillow, the others by straight lines."""
    _, length, height, width = clip.shape

    def resized(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        image = Image.fromarray(plane.astype(np.float32))
        return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC))

    out = np.empty_like(clip)
    kept: dict[int, np.ndarray] = {}
    for t in range(0, length, time_factor):
        planes = [resized(plane, (height // factor, width // factor)) for plane in clip[:, t]]
        kept[t] = np.stack([resized(plane, (height, width)) for plane in planes])
    for t in range(length):
        low = t // time_factor * time_factor
        share = (t - low) / time_factor
        out[:, t] = (1 - share) * kept[low] + (share * kept[low + time_factor] if share else 0)
    return out.clip(0, 1)


@pytest.mark.parametrize(("factor", "time_factor", "length"), [(4, 2, 5), (2, 4, 9), (2, 1, 1)])
def test_the_baseline_keeps_a_pixel_for_each_id(factor: int, time_factor: int, length: int) -> None:
    generator = torch.Generator().manual_seed(1)
    real = torch.rand(2, 3, length, 16, 24, generator=generator)
    actual = bicubic_baseline(real, factor, time_factor)
    for index in range(2):
        expected = enlarged_by_hand(real[index].numpy(), factor, time_factor)
        assert np.abs(actual[index].numpy() - expected).max() < 0.02
    assert np.abs(actual.numpy() - real.numpy()).mean() > 0.1


def test_the_measured_baseline_has_the_factors_of_the_tokenizer(
    clips: tuple[Tensor, Tensor],
) -> None:
    real, output = clips
    actual = measured(VideoTask(recipe()), real, output, torch.zeros(3, 3, 4, 4, dtype=torch.long))
    expected = [brute_psnr(enlarged_by_hand(clip.numpy(), 4, 2), clip.numpy()) for clip in real]
    assert actual["psnr_bicubic"].tolist() == pytest.approx(expected, abs=0.05)


def test_codes_in_use_are_counted_over_the_whole_codebook(clips: tuple[Tensor, Tensor]) -> None:
    task = VideoTask(recipe())  # 4 x 4 = 16 codes
    ids = torch.zeros(3, 3, 4, 4, dtype=torch.long)
    ids[1], ids[2] = 5, 15
    actual = task.summarise(measured(task, *clips, ids))
    assert actual["codebook_usage"] == 3 / 16
    assert actual["perplexity"] == pytest.approx(3.0)
    assert actual["tokens_per_code"] == 9


def test_nothing_moves_in_a_single_frame() -> None:
    real = torch.rand(2, 3, 1, 16, 16)
    assert temporal_error(real, torch.rand_like(real)).tolist() == [0.0, 0.0]
    task = VideoTask(recipe(videos=VideoDataConfig(frames=1, size=(16, 16))))
    actual = measured(task, real, real, torch.zeros(2, 1, 4, 4, dtype=torch.long))
    assert all(torch.isfinite(values).all() for values in actual.values())


# -- what comes in ----------------------------------------------------------------------------


def test_uint8_and_float_clips_are_equal() -> None:
    task = VideoTask(recipe())
    values = torch.randint(0, 256, (2, 3, 5, 16, 16), dtype=torch.uint8)
    from_bytes = task.real(batch_of(values, [0, 1]))
    assert from_bytes.equal(task.real(batch_of(values.float() / 255, [0, 1])))
    assert from_bytes.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("scale", "shift", "fits"), [(1.0, 0.0, True), (255.0, 0.0, False), (2.0, -1.0, False)]
)
def test_values_out_of_range_are_rejected_with_the_remedy(
    scale: float, shift: float, fits: bool
) -> None:
    task = VideoTask(recipe())
    video = torch.rand(2, 3, 5, 16, 16) * scale + shift
    if fits:
        task.check({"video": video})
    else:
        with pytest.raises(ValueError, match=r"video values range from .* divide by 255"):
            task.check({"video": video})


def test_one_seed_begins_alike_whether_or_not_motion_is_judged() -> None:
    one, two = (VideoTask(recipe(losses={"motion": m})).parts for m in (True, False))
    for name in ("tokenizer", "frame_discriminator"):
        assert_same(one[name].network.state_dict(), two[name].network.state_dict())
    other = VideoTask(recipe(seed=4)).parts["tokenizer"].network
    first = next(iter(one["tokenizer"].network.parameters()))
    assert not first.equal(next(iter(other.parameters())))


def test_the_temporal_loss_is_the_error_of_the_frame_differences() -> None:
    real, output = torch.rand(2, 3, 5, 8, 8), torch.rand(2, 3, 5, 8, 8)
    differences = (output[:, :, 1:] - output[:, :, :-1]) - (real[:, :, 1:] - real[:, :, :-1])
    with torch.device("meta"):
        model = VideoTokenizer(recipe().model)
    with_it, without = (
        model.pixel_loss(output, real, VideoLossConfig(temporal=weight)) for weight in (3.0, 0.0)
    )
    torch.testing.assert_close(with_it.loss - without.loss, 3 * differences.abs().mean())
    assert set(with_it.terms) - set(without.terms) == {"temporal"}


def test_a_still_error_costs_nothing_in_time() -> None:
    real = torch.rand(2, 3, 5, 8, 8)
    torch.testing.assert_close(temporal_error(real + 0.25, real), torch.zeros(2), atol=1e-6, rtol=0)
