"""Captured steps: step scalars and kinds on any machine; on a GPU captured equals eager exactly."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import adopting
from harness import Messages
from quintet import rooms
from quintet.engine.loop import take_step
from quintet.engine.machine.capture import EAGER, Capture, tensors
from quintet.engine.machine.compiling import RECORD
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import each_setting
from quintet.engine.task import Batch, StepScalars, shapes

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 16
SMALL = {
    "valid_limit": 2,
    "builtin_count": 64,
    "adversarial_from": 0.25,
    "adversarial_warmup_steps": 4,
    "steps": STEPS,
    "planned_steps": STEPS,
    "batch_size": 4,
    "workers": 0,
    "device": "cuda",
    "deterministic": True,
    "compile": "off",
    "warmup_steps": 4,
}
RECIPES = (
    "image/vqgan_tiny",
    "video/tokenizer_tiny",
    "mesh/autoencoder_tiny",
    "mesh/autoencoder_compact_tiny",
    "mesh/retopology_tiny",
    "music/codec_tiny",
    "music/mulan_tiny",
    "speech/voicebox_tiny",
    "speech/vocoder_tiny",
)


def run_of(
    name: str, path: Path, capture: bool, about: dict[str, Any] | None = None, **changes: Any
) -> Run:
    recipe = rooms.recipe_function(name)()
    wanted = {**SMALL, "capture": capture, **changes}
    recipe = each_setting(recipe, lambda field, value: wanted.get(field.name, value))
    folder = RunFolder.create(path, about or {})
    return Run(rooms.build(recipe), recipe, World(recipe), folder)


def trajectory(run: Run, steps: int) -> list[dict[str, Any]]:
    """All that each step leaves: state and metrics."""
    found = []
    for _ in range(steps):
        take_step(run)
        state = {
            f"{file}/{n}": t.cpu().clone()  # on the device, copies would hide the memory of a step
            for file, held in run.parts.state().items()
            for n, t in held.items()
        }
        (metrics,) = run.meters.read()[1].values()
        found.append({"state": state, "metrics": metrics})
    return found


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for number, (a, b) in enumerate(zip(one, other, strict=True), 1):
        assert a["metrics"] == b["metrics"], f"metrics of step {number}"
        assert a["state"].keys() == b["state"].keys()
        differing = [
            name for name, value in a["state"].items() if not torch.equal(value, b["state"][name])
        ]
        assert not differing, f"step {number}: {differing[:3]}"


@needs_gpu
@pytest.mark.parametrize("name", RECIPES)
def test_a_captured_step_equals_an_eager_one(name: str, tmp_path: Path) -> None:
    eager, captured = (run_of(name, tmp_path / str(flag), flag) for flag in (False, True))
    try:
        straight = trajectory(eager, STEPS)
        assert_same(straight, trajectory(captured, STEPS))
        assert captured.capture is not None
        assert not captured.capture.refused
        assert any(kind.graph is not None for kind in captured.capture.kinds.values())
    finally:
        eager.close()
        captured.close()


@needs_gpu
@pytest.mark.parametrize(
    ("name", "quantiser"),
    [
        ("image/vqgan_tiny", "vq"),
        ("image/vqgan_tiny", "kl"),
        ("image/vqgan_tiny", "bounded"),
        ("video/tokenizer_tiny", "kl"),
    ],
)
def test_codes_are_revived_and_noise_is_drawn_alike(
    name: str, quantiser: str, tmp_path: Path
) -> None:
    eager, captured = (
        run_of(name, tmp_path / str(f), f, quantiser=quantiser) for f in (False, True)
    )
    try:
        assert_same(trajectory(eager, STEPS), trajectory(captured, STEPS))
        assert captured.capture is not None
        assert not captured.capture.refused
    finally:
        eager.close()
        captured.close()


@needs_gpu
@pytest.mark.parametrize("kind", [*adopting.IMAGES, *adopting.CLIPS])
def test_steps_of_an_adopted_class_are_captured_and_equal(kind: str, tmp_path: Path) -> None:
    """The discriminator alone at first, then both."""
    pytest.importorskip("diffusers")
    medium = "image" if kind in adopting.IMAGES else "video"
    changes = {
        "autoencoder": str(adopting.folder(kind)),
        "warm_discriminator": EAGER + 2,
        "steps": 4 * EAGER,
        "size": (32, 32),
        "frames": {"AutoencoderKLMochi": 7}.get(kind, 9),
    }
    runs = [run_of(f"{medium}/adopt_tiny", tmp_path / str(f), f, **changes) for f in (False, True)]
    try:
        assert_same(*(trajectory(run, 4 * EAGER) for run in runs))
        capture = runs[1].capture
        assert capture is not None
        assert not capture.refused
        assert any(kind.graph is not None for kind in capture.kinds.values())
    finally:
        for run in runs:
            run.close()


@needs_gpu
@pytest.mark.parametrize("name", ["image/vqgan_tiny", "music/mulan_tiny"])
def test_muon_steps_alike(name: str, tmp_path: Path) -> None:
    runs = [run_of(name, tmp_path / str(f), f, optimizer="muon") for f in (False, True)]
    assert_same(*(trajectory(run, STEPS) for run in runs))
    capture = runs[1].capture
    assert capture is not None
    assert any(kind.graph is not None for kind in capture.kinds.values())
    for run in runs:
        run.close()


@needs_gpu
def test_graphs_give_way_to_steps_that_do_not_fit_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The penalty, due at some steps only, makes a second kind."""
    runs = [
        run_of("image/vqgan_tiny", tmp_path / str(f), f, penalty_every=5) for f in (False, True)
    ]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (0, 0))
    assert_same(*(trajectory(run, 2 * STEPS) for run in runs))
    capture = runs[1].capture
    assert capture is not None
    assert capture.step_bytes > 0, capture.refused
    assert sum(kind.graph is not None for kind in capture.kinds.values()) > 1
    for run in runs:
        run.close()


@needs_gpu
def test_graphs_are_dropped_on_restore_and_the_run_resumes_alike(tmp_path: Path) -> None:
    run = run_of("image/vqgan_tiny", tmp_path / "run", True)
    trajectory(run, 8)
    run.save()
    run.saver.writer.wait()
    straight = trajectory(run, 8)
    run.restore(8)
    assert run.capture is not None
    assert not run.capture.kinds
    assert_same(straight, trajectory(run, 8))
    run.close()


@needs_gpu
def test_a_run_that_is_compiled_under_way_is_captured_anew_and_resumes_alike(
    tmp_path: Path,
) -> None:
    run = run_of("music/mulan_tiny", tmp_path / "run", True, {RECORD: 6}, compile="auto")
    said = Messages(run).texts
    trajectory(run, 6)
    assert run.capture is not None
    assert not said
    assert any(kind.graph is not None for kind in run.capture.kinds.values())
    trajectory(run, 6)
    assert said[0] == "compiling 5 blocks of mulan …"
    assert said[1].startswith("compiled ")
    assert any(kind.graph is not None for kind in run.capture.kinds.values())
    run.save()
    run.saver.writer.wait()
    straight = trajectory(run, 4)
    run.restore(12)
    assert_same(straight, trajectory(run, 4))
    run.close()


@needs_gpu
def test_dropout_is_not_captured_and_says_so(tmp_path: Path) -> None:
    run = run_of("speech/voicebox_tiny", tmp_path / "run", True, dropout=0.1)
    said = Messages(run).texts
    trajectory(run, EAGER + 3)
    assert said == [
        "steps are not captured as CUDA graphs: they draw from generators, as dropout does"
    ]
    run.close()


def fails_in_capture(run: Run) -> None:
    """The first update reads a number on the host, which no graph can."""
    update = run.task.updates[0]

    def losses(nets: Any, batches: Any, context: Any) -> Iterator[Any]:
        if torch.cuda.is_current_stream_capturing():
            batches[0].keys.sum().item()
        return update.losses(nets, batches, context)

    run.task.updates = [dataclasses.replace(update, losses=losses), *run.task.updates[1:]]


@needs_gpu
def test_a_failed_capture_leaves_steps_streams_and_memory_as_eager_ones(tmp_path: Path) -> None:
    """The batches of another stream come free only if no capture is believed to go on."""

    def pools() -> set[tuple[int, int]]:
        torch.cuda.empty_cache()
        return {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}

    before = pools() | {(0, 0)}
    runs = [run_of("image/vqgan_tiny", tmp_path / str(f), f) for f in (False, True)]
    said = Messages(runs[1]).texts
    fails_in_capture(runs[1])
    assert_same(*(trajectory(run, STEPS) for run in runs))
    assert len(said) == 1
    assert said[0].startswith("steps are not captured as CUDA graphs: ")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    reserved = torch.cuda.memory_reserved()
    for _ in range(100):
        take_step(runs[1])
    assert torch.cuda.memory_reserved() <= reserved
    assert pools() <= before
    for run in runs:
        run.close()


@needs_gpu
def test_graphs_give_way_to_an_evaluation_and_are_captured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run_of("image/vqgan_tiny", tmp_path / str(f), f) for f in (False, True)]
    before = [trajectory(run, STEPS) for run in runs]
    runs_out_once(runs[1], monkeypatch)
    assert runs[0].evaluate() == runs[1].evaluate()
    capture = runs[1].capture
    assert capture is not None
    assert capture.pool is None
    after = [trajectory(run, 4) for run in runs]
    assert any(kind.graph is not None for kind in capture.kinds.values())
    assert_same(*(one + other for one, other in zip(before, after)))
    for run in runs:
        run.close()


def runs_out_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first evaluation, at its second batch or later."""
    measure, calls = run.task.measure, 0

    def measured(nets: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measure(nets, batch)

    monkeypatch.setattr(run.task, "measure", measured)


def test_an_evaluation_that_runs_out_of_memory_is_repeated_without_the_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("image/vqgan_tiny", tmp_path / "run", True, device="cpu", deterministic=False)
    expected = run.evaluate()
    said = Messages(run).texts
    run.capture = Capture(run.task, run.meters, run.parts.forget_gradients, run.say)
    run.capture.pool = cast(Any, "of graphs")
    runs_out_once(run, monkeypatch)
    assert run.evaluate() == expected
    assert run.capture.pool is None
    assert said == ["the graphs of steps are released: evaluations do not fit beside them"]
    run.capture.pool = cast(Any, "of graphs, captured again")
    run.evaluate()
    assert run.capture.pool is None  # not tried beside them again
    run.close()


def test_steps_with_recomputed_activations_are_not_captured_and_the_run_says_so(
    tmp_path: Path,
) -> None:
    wanted = {**SMALL, "device": "auto", "checkpoint_activations": True}
    recipe = rooms.recipe_function("video/tokenizer_tiny")()
    recipe = each_setting(recipe, lambda field, value: wanted.get(field.name, value))
    world = World(recipe)
    world.captures = True  # as on one GPU
    run = Run(rooms.build(recipe), recipe, world, RunFolder.create(tmp_path / "run", {}))
    said = Messages(run).texts
    run.restore_latest()
    assert run.capture is None
    assert not world.captures
    assert said[1] == (
        "steps are not captured as CUDA graphs: recomputed activations read the state of the CUDA"
        " generator"
    )
    take_step(run)
    run.close()


def test_a_dial_is_one_tensor_that_follows_the_step() -> None:
    step_scalars = StepScalars(torch.device("cpu"))
    rate = step_scalars.get("rate", lambda step: 0.5 * step, 2)
    key = step_scalars.get("key", lambda step: 2**62 + step, 2)
    assert (rate.item(), key.item()) == (1.0, 2**62 + 2)
    step_scalars.set(3)
    assert (rate.item(), key.item()) == (1.5, 2**62 + 3)
    assert step_scalars.get("rate", lambda step: 0.5 * step, 3) is rate


def test_texts_and_contents_make_no_kind_but_shapes_and_flags_do() -> None:
    data: dict[str, Any] = {"x": torch.zeros(2, 3), "text": ["a", "b"], "mask": None, "flag": True}
    same = {**data, "x": torch.ones(2, 3), "text": ["c", "d"]}
    assert shapes(data) == shapes(same)
    others = ({"x": torch.zeros(2, 4)}, {"x": torch.zeros(2, 3).half()}, {"flag": False})
    for change in (*others, {"mask": torch.zeros(2)}):
        assert shapes(data) != shapes({**data, **change})
    assert len(list(tensors([Batch(data, [0, 1], torch.zeros(2))]))) == 2


def test_a_task_of_a_users_model_is_not_captured_by_default() -> None:
    from quintet.engine.task import Task

    assert Task.capturable is False


def test_a_cpu_run_has_neither_step_scalars_nor_graphs(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"device": "cpu", "deterministic": False}
    run = run_of("image/vqgan_tiny", tmp_path / "run", True, **changes)
    assert run.step_scalars is None
    assert run.capture is None
    run.close()
