"""The flow generator of clips on a small autoencoder: continuation, chunks, distillation, files."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet
from harness import assert_same
from quintet import VideoFlow, VideoFlowTrainer, VideoTokenizer
from quintet.cli import main
from quintet.engine.errors import RunError
from quintet.engine.machine.world import World
from quintet.engine.task import Batch
from quintet.video import recipes
from quintet.video.flow.model import with_still_parts
from quintet.video.flow.outputs import outputs
from quintet.video.flow.task import VideoFlowTask, build

MODEL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "text_length": 8}
FEW: dict[str, Any] = {
    "steps": 2,
    "batch_size": 2,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
}
FRAMES, SIDE = 9, 16
SOLVED: dict[str, Any] = {"steps": 2, "cond_scale": 2.5}


@pytest.fixture(scope="module")
def tokenizer() -> VideoTokenizer:
    torch.manual_seed(0)
    layers = ("residual", "compress_time", "compress_time")
    narrow: dict[str, Any] = {"init_dim": 8, "max_dim": 16, "patch_size": 4, "layers": layers}
    return VideoTokenizer(quantiser="kl", latent_channels=4, squeeze_excite=False, **narrow).eval()


@pytest.fixture(scope="module")
def saved(tokenizer: VideoTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer.save_pretrained(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def model(tokenizer: VideoTokenizer) -> VideoFlow:
    """With weights that are not zero anywhere, so that every input counts."""
    torch.manual_seed(1)
    model = VideoFlow(tokenizer, image_size=SIDE, frames=FRAMES, **MODEL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model.measure_latents(tokenizer.to_codes(torch.rand(4, 3, FRAMES, SIDE, SIDE)))


def recipe(tokenizer: Path, **changes: Any) -> Any:
    base = recipes.flow_tiny()
    videos = dataclasses.replace(
        base.videos, builtin_count=8, valid_limit=4, frames=FRAMES, size=(SIDE, SIDE)
    )
    own: dict[str, Any] = {
        "tokenizer": str(tokenizer),
        "videos": videos,
        "model": dataclasses.replace(base.model, dim=32, layers=1, patch=1),
        "generation": dataclasses.replace(base.generation, sampling_steps=2),
    }
    return dataclasses.replace(base, **{**own, **FEW, **changes})


def prepared(settings: Any) -> VideoFlowTask:
    task = build(settings)
    task.prepare(World(settings))
    return task


def test_given_frames_stay_and_the_rest_is_new(model: VideoFlow) -> None:
    clip = torch.rand(3, 5, SIDE, SIDE)
    made = model.generate(["a"], count=2, clip=clip, steps=2)
    assert made.shape == (2, 3, FRAMES, SIDE, SIDE)
    assert torch.equal(made[:, :, :5], clip.expand(2, -1, -1, -1, -1))
    assert not torch.equal(made[0, :, 5:], made[1, :, 5:])
    from_a_frame = model.generate(["a"], clip=clip[:, 0], steps=2)
    assert torch.equal(from_a_frame[0, :, 0], clip[:, 0])


def test_a_clip_goes_from_a_first_frame_to_a_last_one(model: VideoFlow) -> None:
    first, last = torch.rand(2, 3, SIDE, SIDE)
    made = model.generate(["a"], count=2, clip=first, last=last, steps=2)
    assert made.shape == (2, 3, FRAMES, SIDE, SIDE)
    for clip in made:
        assert torch.equal(clip[:, 0], first)
        assert torch.equal(clip[:, -1], last)
    assert not torch.equal(made[0], made[1])
    other = model.generate(["a"], count=2, clip=first, last=1 - last, steps=2)
    assert not torch.allclose(other[:, :, 1:4], made[:, :, 1:4], atol=1e-3)  # it is seen
    ending = torch.rand(3, 6, SIDE, SIDE)
    made = model.generate(["a"], last=ending, steps=1)
    assert torch.equal(made[0, :, -4:], ending[:, -4:])


def test_what_is_given_is_seen(model: VideoFlow) -> None:
    first, second = torch.rand(2, 3, 5, SIDE, SIDE)
    one, other = (model.generate(["a"], clip=clip, steps=2) for clip in (first, second))
    assert not torch.allclose(one[:, :, 5:], other[:, :, 5:], atol=1e-3)


@pytest.mark.by_default("4")
@pytest.mark.parametrize("overlap", [None, 0, 4])
def test_a_clip_in_chunks_is_the_whole(model: VideoFlow, overlap: int | None) -> None:
    settings: dict[str, Any] = {"steps": 2, "overlap": overlap, "seed": 3}
    whole = model.generate(["a"], frames=20, **settings)
    assert whole.shape[2] == 20
    part = model.generate(["a"], frames=FRAMES, **settings)
    assert torch.equal(whole[:, :, :FRAMES], part)
    again = model.generate(["a"], clip=part[0], frames=20, **settings)
    assert torch.allclose(again, whole, atol=1e-5)


@pytest.mark.parametrize(("given", "frames"), [(3, FRAMES), (FRAMES, 13), (20, 24)])
def test_a_clip_is_continued_by_a_chunk_unless_told_otherwise(
    model: VideoFlow, given: int, frames: int
) -> None:
    clip = torch.rand(3, given, SIDE, SIDE)
    made = model.generate(["a"], clip=clip, steps=1)
    assert made.shape[2] == frames
    assert torch.equal(made[0, :, :given], clip)


def test_a_clip_does_not_depend_on_its_batch(model: VideoFlow) -> None:
    texts = [f"number {index}" for index in range(10)]
    together = model.generate(texts, steps=2)
    assert torch.equal(model.generate(texts[7:], steps=2, first=7), together[7:])


def test_continuations_are_measured_beside_copies_of_real_frames(saved: Path) -> None:
    task = prepared(recipe(saved))
    batch = task.data("valid").keyed(0, None)
    batch = Batch(task.collate([batch]), [0], torch.tensor([5]))
    values = {name: float(rows.values) for name, rows in task.measure_generation(batch).items()}
    clip = task.codes["valid"].source.keyed(0, None)["video"][None].float() / 255
    for name, guess in (("last", clip[:, :, 4:5]), ("mean", clip[:, :, :5].mean(2, True))):
        error = (guess - clip[:, :, 5:9]).square().mean()
        assert values[f"continued_psnr_{name}"] == pytest.approx(-10 * math.log10(error), abs=1e-3)
    made = task.model.generate([batch.data["caption"][0]], clip=clip[0, :, :5], **SOLVED)
    error = (made[:, :, 5:9] - clip[:, :, 5:9]).square().mean()
    assert values["continued_psnr"] == pytest.approx(-10 * math.log10(error), abs=1e-3)


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"clip": (3, 9, 16, 16), "frames": 9}, "the clip has 9 frames already; frames is 9"),
        ({"clip": (3, 5, 8, 16)}, "this model continues clips of 16 x 16 pixels"),
        ({"frames": 0}, "frames is 0; it must be 1 or more"),
        ({"overlap": 8}, "overlap is 8; it must be 0 to 4 frames"),
        ({"steps": 0}, "steps must be 1 or more"),
        ({"last": (3, 16, 16), "frames": 20}, "a clip to a last frame has the 9 frames of train"),
        ({"last": (3, 8, 16)}, "this model continues clips of 16 x 16 pixels"),
    ],
)
def test_clips_that_cannot_be_made_are_refused(
    model: VideoFlow, keywords: dict[str, Any], sentence: str
) -> None:
    values = dict(keywords)
    for name in {"clip", "last"} & values.keys():
        values[name] = torch.rand(values[name])
    with pytest.raises(ValueError, match=sentence):
        model.generate(["a"], **values)


def test_the_first_latent_frames_are_given_in_training(saved: Path) -> None:
    task = prepared(recipe(saved))
    given = task.given(torch.arange(300), (3, 4, 4))
    assert given.shape == (300, 1, 3, 4, 4)
    frames = given[:, 0].flatten(2)
    assert torch.equal(frames.any(2), frames.all(2))  # whole frames
    kinds = {tuple(row) for row in frames.all(2).tolist()}
    assert kinds == {(True, False, False), (True, True, False), (True, False, True)}
    still = task.given(torch.arange(3), (1, 4, 4))
    assert not still.any()
    batch = Batch({"codes": torch.zeros(1, 4, 3, 4, 4)}, [0], torch.arange(2000))
    shares = task.random_known(batch).flatten(1).any(1).float().mean()
    assert abs(shares - task.recipe.known_share) < 0.04


def test_the_trainer_learns_a_data_set_of_clips(tokenizer: VideoTokenizer, tmp_path: Path) -> None:
    items = [{"video": torch.rand(3, FRAMES, SIDE, SIDE), "text": f"{n}"} for n in range(8)]
    model = VideoFlow(tokenizer, image_size=SIDE, frames=FRAMES, **MODEL)
    sizes = {"valid_fraction": 0.25, "count": 2, "sampling_steps": 2}
    trainer = VideoFlowTrainer(model, items, **FEW, **sizes, run=tmp_path / "run")
    assert trainer.train() == 2
    assert trainer.generate(["3"], steps=2).shape == (1, 3, FRAMES, SIDE, SIDE)


def test_a_tokenizer_with_ids_is_refused(tmp_path: Path) -> None:
    discrete = VideoTokenizer(init_dim=8, max_dim=8, layers=("residual",), levels=(8, 5))
    with pytest.raises(RunError, match="has ids and no latents"):
        build(recipe(discrete.save_pretrained(tmp_path / "tokenizer")))


def test_judges_get_a_clip_for_each_held_out_caption(saved: Path) -> None:
    task = prepared(recipe(saved))
    made = outputs(task)
    source = made.open({}, task.data("valid"))
    items = [source.keyed(index, None) for index in range(2)]
    group = made.make(items, Batch(made.collate(items), [0, 1], torch.zeros(2, dtype=torch.int64)))
    for sample in (*group.originals, *group.outputs, *group.baselines["training"]):
        assert sample.dtype == torch.uint8
        assert sample.shape == (FRAMES, 3, SIDE, SIDE)


def test_trained_sampled_and_distilled_by_the_command_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: Any) -> list[str]:
        capsys.readouterr()
        with pytest.raises(SystemExit, match="0"):
            main([str(word) for word in words])
        return capsys.readouterr().out.split()

    sizes = ["--steps", 2, "--workers", 0, "--batch-size", 2, "--videos.frames", FRAMES]
    sizes += ["--videos.size", SIDE, SIDE, "--videos.builtin-count", 8, "--videos.valid-limit", 2]
    sizes += ["--generation.count", 1, "--generation.reference-count", 2]
    sizes += ["--generation.sampling-steps", 2, "--device", "cpu", "--trackers"]
    narrow = ["--model.dim", 32, "--model.layers", 1, "--model.patch", 2]
    runs = tmp_path / "run", tmp_path / "few"
    call("train", "video/flow_tiny", "--tokenizer", saved, "--run", runs[0], *sizes, *narrow)
    call("train", "video/flow_few_tiny", "--teacher", runs[0], "--run", runs[1], *sizes)
    Image.fromarray(np.full((SIDE, SIDE, 3), 99, np.uint8)).save(tmp_path / "a.png")
    for run in runs:
        words = ["--text", "a star", "--clip", tmp_path / "a.png", "--count", 1]
        call("sample", run, *words, "--last", tmp_path / "a.png", "--out", tmp_path / "out")
        words += ["--frames", 12]
        files = call("sample", run, *words, "--steps", 1, "--out", tmp_path / "out")
        assert Path(files[0]).name == "00-a-star-000.mp4"
        assert len(files) > 1  # and a sheet
        model = quintet.load(run)
        again = VideoFlow.from_pretrained(model.save_pretrained(tmp_path / f"model-{run.name}"))
        assert_same(dict(model.state_dict()), dict(again.state_dict()))
        first, second = (each.generate(["a"], steps=1) for each in (model, again))
        assert torch.equal(first, second)


# -- changes from the last given frame ------------------------------------------------------------


@pytest.fixture(scope="module")
def changing(tokenizer: VideoTokenizer) -> VideoFlow:
    torch.manual_seed(1)
    model = VideoFlow(tokenizer, image_size=SIDE, frames=FRAMES, changes=True, **MODEL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model.measure_latents(tokenizer.to_codes(torch.rand(4, 3, FRAMES, SIDE, SIDE)))


def known_frames(*frames: bool) -> torch.Tensor:
    return torch.tensor(frames).view(1, 1, -1, 1, 1).expand(2, 1, -1, 4, 4)


@pytest.mark.parametrize(
    ("frames", "sources"),
    [
        ((True, False, False, False), (None, 0, 0, 0)),
        ((True, True, False, False), (None, None, 1, 1)),
        ((True, False, False, True), (None, 0, 0, None)),
        ((False, False, False, True), (None, None, None, None)),
    ],
)
def test_frames_are_changes_from_the_last_known_one(
    changing: VideoFlow, frames: tuple[bool, ...], sources: tuple[int | None, ...]
) -> None:
    latents, known = torch.randn(2, 4, 4, 4, 4), known_frames(*frames)
    changes = changing.relative(latents, known)
    for place, source in enumerate(sources):
        if source is None:
            assert torch.equal(changes[:, :, place], latents[:, :, place])
            continue
        own = latents[:, :, place] - latents[:, :, source]
        scale = changing.change_std.view(1, -1, 1, 1) * math.sqrt(place - source)
        torch.testing.assert_close(changes[:, :, place], own / scale)
    torch.testing.assert_close(changing.absolute(changes, known), latents)


def test_the_deviation_of_changes_is_measured(changing: VideoFlow, saved: Path) -> None:
    model = dataclasses.replace(recipe(saved).model, changes=True)
    task = prepared(recipe(saved, model=model))
    train = task.codes["train"]
    rows = torch.stack([train.codes_of(index) for index in range(len(train))]).double()
    latents = task.arranged(rows, task.config.grid).float()
    assert task.model.change_std.std() > 0
    again = VideoFlow(task.model.tokenizer, image_size=SIDE, frames=FRAMES, changes=True, **MODEL)
    again.measure_latents(latents)
    torch.testing.assert_close(task.model.change_std, again.change_std, rtol=1e-2, atol=0)


def test_small_changes_hold_the_last_frame(changing: VideoFlow) -> None:
    """Whatever the network says; and what the tokenizer loses of it stays."""
    deviation = changing.change_std.clone()
    clip = torch.rand(3, 5, SIDE, SIDE)
    changing.set_change_std(torch.zeros(4))
    try:
        held = changing.generate(["a"], clip=clip, steps=2)
    finally:
        changing.set_change_std(deviation)
    latents = changing.encode(clip[None])
    decoded = changing.decode(torch.cat((latents, latents[:, :, -1:]), 2))
    expected = with_still_parts(decoded, clip[None])
    torch.testing.assert_close(held[:, :, 5:], expected[:, :, 5:], atol=0.02, rtol=0)
    assert not torch.allclose(held[:, :, 5:], decoded[:, :, 5:], atol=0.02)


def test_what_does_not_move_stays_as_it_was_given() -> None:
    """On the left, decoded frames are wrong by 0.1 and flicker by less; on the right they move."""
    given = torch.rand(1, 3, 3, SIDE, 4 * SIDE) * 0.8
    made = (given[:, :, 2:] + 0.1).repeat(1, 1, 6, 1, 1)
    made[:, :, 3:] += 0.05 * torch.rand(1, 3, 3, SIDE, 4 * SIDE)
    right = slice(2 * SIDE, None)
    made[:, :, 3:, :, right] = (made[:, :, 3:, :, right] + 0.5).remainder(1)
    whole = with_still_parts(made, given)
    assert torch.equal(whole[:, :, :3], made[:, :, :3])
    left = slice(2 * SIDE - 5)
    held = given[:, :, 2:].expand(-1, -1, 3, -1, -1)
    assert torch.equal(whole[:, :, 3:, :, left], held[..., left])
    inside = slice(2 * SIDE + 5, None)
    assert torch.equal(whole[:, :, 3:, :, inside], made[:, :, 3:, :, inside])
