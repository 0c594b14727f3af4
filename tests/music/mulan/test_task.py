"""The task through the engine: one loss over the whole global batch, and collapse is noticed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
from quintet.engine.config import OptimizerConfig
from quintet.engine.data.wire import widened
from quintet.engine.errors import RunError
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.sinks import Sink
from quintet.music.config import MusicDataConfig
from quintet.music.mulan.config import MuLaNConfig, MuLaNRecipe
from quintet.music.mulan.task import BestCaptions, MuLaNTask
from quintet.nn.text import ByteTokenizer
from quintet.shared.contrastive import retrieval
from quintet.shared.exhibits import SimilarityMatrix, colour_map

MODEL: dict[str, Any] = {
    "sample_rate": 4000,
    "n_fft": 512,
    "hop_length": 100,
    "n_mels": 32,
    "patch_size": (8, 8),
    "dim": 32,
    "layers": 1,
    "heads": 2,
    "head_dim": 16,
    "text_length": 80,
    "text_dim": 32,
    "text_layers": 1,
    "text_heads": 2,
    "text_head_dim": 16,
    "dim_latent": 16,
    "quantiser_depth": 2,
    "quantiser_bits": 4,
}


def recipe(**changes: Any) -> MuLaNRecipe:
    model = MuLaNConfig(**{**MODEL, **changes.pop("model", {})})
    sounds = {"sample_rate": 4000, "seconds": 1.5, "min_seconds": 0.5, "builtin_count": 64}
    sounds |= {"valid_limit": 6, "buckets": 2, **changes.pop("sounds", {})}
    settings: dict[str, Any] = {
        "steps": 4,
        "batch_size": 8,
        "device": "cpu",
        "workers": 0,
        "trackers": (),
        "log_every": 1,
        "evaluate_every": 0,
        "optim": OptimizerConfig(learning_rate=1e-3, warmup_steps=2, max_grad_norm=0.0),
        **changes,
    }
    return MuLaNRecipe(model=model, sounds=MusicDataConfig(**sounds), **settings)


class Notes(Sink):
    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, step: int, message: str) -> None:
        self.said.append(message)


def open_run(settings: MuLaNRecipe, path: Path, sets: Any = None, sinks: Any = ()) -> Run:
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    task = MuLaNTask(settings, sets=sets)
    return Run(task, settings, World(settings), RunFolder(path), sinks)


def first_gradients(settings: MuLaNRecipe, path: Path) -> dict[str, torch.Tensor]:
    """Of the first step, caught before the optimizer takes them."""
    run = open_run(settings, path)
    part, caught = run.parts["mulan"], dict[str, torch.Tensor]()
    step = part.step

    def catch(at: Any) -> Any:
        caught.update({n: p.grad.clone() for n, p in part.parameters.items() if p.grad is not None})
        return step(at)

    part.step = catch  # type: ignore[method-assign]
    take_step(run)
    run.close()
    return caught


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert one
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-10, atol=1e-12, msg=name)


# -- the whole batch ------------------------------------------------------------------------


@pytest.mark.by_default("2-decoupled", "2-sigmoid", "4-softmax")
@pytest.mark.parametrize("kind", ["softmax", "decoupled", "sigmoid"])
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_give_the_gradient_of_one_big_batch(
    kind: str, parts: int, tmp_path: Path
) -> None:
    whole = recipe(precision="fp64", model={"loss": kind})
    cut = dataclasses.replace(whole, batch_size=8 // parts, accumulate=parts)
    expected = first_gradients(whole, tmp_path / "whole")
    assert expected["log_temperature"].abs() > 1e-6
    assert_close(expected, first_gradients(cut, tmp_path / "cut"))


@pytest.mark.by_default("softmax")
@pytest.mark.parametrize("kind", ["softmax", "decoupled", "sigmoid"])
def test_two_processes_give_the_gradient_of_one_big_batch(kind: str, tmp_path: Path) -> None:
    """Adam's first moment after one step is a tenth of the gradient."""
    whole = recipe(precision="fp64", model={"loss": kind}, steps=1)
    halves = dataclasses.replace(whole, batch_size=2, accumulate=2)
    harness.run(whole, tmp_path / "one", name="music/mulan_tiny", measured=False)
    harness.run(halves, tmp_path / "two", size=2, name="music/mulan_tiny", measured=False)
    one, two = (
        {n: t for n, t in harness.tensors(tmp_path / f, 1).items() if "exp_avg/" in n}
        for f in ("one", "two")
    )
    assert_close(one, two)


def test_one_micro_batch_is_computed_once_and_several_twice(tmp_path: Path) -> None:
    for accumulate, expected in ((1, 1), (2, 4)):
        run = open_run(recipe(batch_size=4, accumulate=accumulate), tmp_path / str(accumulate))
        calls: list[bool] = []
        run.parts["mulan"].module.register_forward_hook(
            lambda *_: calls.append(torch.is_grad_enabled())  # noqa: B023
        )
        take_step(run)
        run.close()
        assert len(calls) == expected
        assert sum(calls) == accumulate


def test_the_reported_loss_is_that_of_the_global_batch(tmp_path: Path) -> None:
    actual = []
    for size, accumulate in ((8, 1), (2, 4)):
        run = open_run(
            recipe(precision="fp64", batch_size=size, accumulate=accumulate), tmp_path / str(size)
        )
        take_step(run)
        actual.append(run.meters.read()[0]["mulan/loss"])
        run.close()
    assert actual[0] == pytest.approx(actual[1], rel=1e-10)


# -- data -----------------------------------------------------------------------------------


def test_a_batch_of_full_sounds_needs_no_mask() -> None:
    task = MuLaNTask(recipe())
    held, train = task.data("valid"), task.data("train")
    full = task.collate([held.keyed(i, None) for i in range(3)])
    assert full["lengths"] is None
    assert full["wavs"].shape == (3, 6000)
    assert full["text"].shape == (3, 80)
    mixed = task.collate([train.keyed(i, None) for i in range(8)])
    assert mixed["lengths"].max() <= mixed["wavs"].shape[1]
    assert mixed["lengths"].min() < mixed["wavs"].shape[1]


def test_shorter_texts_give_the_same_gradients(tmp_path: Path, monkeypatch: Any) -> None:
    settings = recipe(model={"text_length": 200}, precision="fp64")
    lengths = []
    encode = ByteTokenizer.encode
    monkeypatch.setattr(
        ByteTokenizer,
        "encode",
        lambda self, texts: lengths.append(self.length) or encode(self, texts),
    )
    short = first_gradients(settings, tmp_path / "short")
    monkeypatch.setattr("quintet.music.data.text_length", lambda _, most: most)
    assert_close(first_gradients(settings, tmp_path / "full"), short)
    assert set(lengths) == {120, 200}


def test_ids_of_ones_own_are_cut_and_padded() -> None:
    task = MuLaNTask(recipe(model={"vocab_size": 500}))
    items = [{"wav": torch.ones(50), "text": "", "tokens": torch.arange(1, n)} for n in (5, 200)]
    batch = task.collate(items)
    assert batch["text"].shape == (2, 80)
    assert batch["text"][0, 4:].eq(0).all()
    task.check(batch)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"wavs": torch.full((2, 50), 9000.0)}, "32768"),
        ({"wavs": torch.full((2, 50), float("nan"))}, "32768"),
        ({"text": torch.full((2, 80), 300)}, "vocab_size"),
    ],
)
def test_a_first_batch_that_does_not_fit_is_named(change: dict[str, Any], remedy: str) -> None:
    good = {"wavs": torch.zeros(2, 50), "text": torch.ones(2, 80, dtype=torch.int64)}
    task = MuLaNTask(recipe())
    task.check(good)
    with pytest.raises(ValueError, match=remedy):
        task.check({**good, **change})


def test_one_pair_is_no_batch(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="two or more pairs"):
        open_run(recipe(batch_size=1), tmp_path)


def test_a_frozen_encoder_and_built_in_captions_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="give a folder"):
        open_run(recipe(model={"text": "frozen"}), tmp_path)


class Frozen:
    """Embeddings of two captions, as a table of a frozen encoder would give them."""

    def __call__(self, texts: list[str]) -> dict[str, torch.Tensor]:
        values = torch.stack([torch.full((3, 32), float(len(text))) for text in texts])
        values[:, :, ::2] = -1
        return {"text": values, "mask": torch.tensor([[True, True, False]] * len(texts))}


def test_embeddings_of_a_frozen_encoder_take_the_place_of_ids() -> None:
    task = MuLaNTask(recipe(model={"text": "frozen"}))
    task.texts = Frozen()  # type: ignore[assignment]
    held = task.data("valid")
    batch = widened(task.collate([held.keyed(i, None) for i in range(3)]))
    task.check(batch)
    actual = task.model(batch["wavs"], batch["lengths"], batch["text"], batch["mask"])
    assert actual.text.shape == (3, 16)
    assert not [n for n, _ in task.model.named_parameters() if n.startswith("text.encoder")]


# -- collapse -------------------------------------------------------------------------------


class OneCaption:
    """Noise, and the same caption for all of it: there is nothing to learn."""

    def __len__(self) -> int:
        return 64

    def name(self, index: int) -> str:
        return f"sample {index}"

    def length(self, index: int) -> int:
        return 2000

    def keyed(self, index: int, key: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"wav": torch.randn(2000, generator=generator) * 0.1, "text": "a sound"}


# The monitor reads embeddings, whatever the loss.
@pytest.mark.parametrize("kind", ["softmax", pytest.param("decoupled", marks=pytest.mark.slow)])
def test_a_run_that_collapses_is_told_so(kind: str, tmp_path: Path) -> None:
    notes = Notes()
    settings = recipe(
        steps=60,
        model={"loss": kind, "temperature": 1.0},
        optim=OptimizerConfig(learning_rate=3e-3, warmup_steps=5),
    )
    run = open_run(settings, tmp_path, {"train": OneCaption(), "valid": None}, [notes])
    for _ in range(30):
        take_step(run)
        run.report()
    run.close()
    assert any("the embeddings have collapsed" in output for output in notes.said), notes.said


def test_a_run_that_learns_is_not(tmp_path: Path) -> None:
    notes = Notes()
    run = open_run(
        recipe(batch_size=16, optim=OptimizerConfig(learning_rate=3e-3, warmup_steps=5)),
        tmp_path,
        None,
        [notes],
    )
    for _ in range(25):
        take_step(run)
        run.report()
    run.close()
    assert not any("collapsed" in output for output in notes.said)


# -- measuring and showing ------------------------------------------------------------------


def test_the_measures_are_of_the_whole_held_out_set(tmp_path: Path) -> None:
    run = open_run(recipe(batch_size=4), tmp_path)
    metrics = run.evaluate()
    run.close()
    assert 0 <= metrics["recall_at_1"] <= metrics["recall_at_5"] <= metrics["recall_at_10"] == 1
    names = {"instrument", "tempo", "scale", "rhythm", "register", "drums"}
    assert {f"zero_shot_{name}" for name in names} <= metrics.keys()
    files = {path.name for path in run.folder.exhibits.rglob("*") if path.is_file()}
    assert {"similarity.png", "captions.txt", "captions-0.wav"} <= files


def test_recall_counts_both_ways() -> None:
    audio = torch.eye(4)
    text = audio[[0, 1, 3, 2]]  # two of four are right
    actual = retrieval(audio, text, torch.arange(4))
    assert actual["recall_at_1_of_text"] == actual["recall_at_1_of_audio"] == 0.5
    assert actual["recall_at_5"] == 1
    assert retrieval(audio, audio, torch.arange(4))["median_rank_of_audio"] == 1
    assert retrieval(torch.ones(50, 4), torch.ones(50, 4), torch.arange(50))["recall_at_10"] == 0


def test_the_picture_is_warm_where_sound_and_caption_are_alike(tmp_path: Path) -> None:
    low, middle, high = colour_map(torch.tensor([[-1.0, 0.0, 1.0]]).numpy())[0].astype(int)
    assert low[2] > low[0]
    assert high[0] > high[2]
    assert middle.min() > 240
    (path,) = SimilarityMatrix("s", torch.eye(3)).write(tmp_path)
    assert path.stat().st_size > 0


def test_the_page_names_the_nearest_captions_first(tmp_path: Path) -> None:
    wavs = [torch.zeros(100), torch.zeros(50)]
    table = torch.tensor([[0.1, 0.9, 0.5], [0.2, -0.3, 0.1]])
    files = BestCaptions("c", wavs, 8000, ["one", "two", "three"], table, top=2).write(tmp_path)
    assert [file.name for file in files] == ["c-0.wav", "c-1.wav", "c.txt"]
    lines = files[-1].read_text().splitlines()
    assert lines[:4] == ["c-0.wav", "  its own:  one", "  1. +0.900  two", "  2. +0.500  three"]
