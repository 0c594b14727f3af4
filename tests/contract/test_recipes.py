"""What every recipe promises, whichever room it is in: found by name, run through the same claims.

A room joins by having recipes.py; nothing here is to be edited.
"""

import ast
import atexit
import dataclasses
import inspect
import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import adopting
import harness
import quintet
from campaign.subjects import OF_ROOM, replaced
from harness import assert_same, tensors, trajectory
from quintet import rooms
from quintet.cli import main
from quintet.engine.config import Recipe, from_json, to_json
from quintet.engine.errors import Stopped
from quintet.engine.launch import start
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder

NAMES = [name for name in rooms.names() if name.endswith("_tiny")]
ADOPTING = [name for name in NAMES if adopting.adopts(rooms.recipe_function(name)())]


class Variant(str):
    """The name of a recipe, with some of its settings changed."""

    changes: dict[str, Any]

    def __new__(cls, name: str, **changes: Any) -> "Variant":
        variant = super().__new__(cls, name)
        variant.changes = changes
        return variant


# Settings that take another way through a step: keyed noise inside of the network, no ids; losses
# of another quantiser; another optimizer.
VARIANTS = [
    pytest.param(Variant("image/vqgan_tiny", quantiser="kl"), id="image/vqgan_tiny-kl"),
    pytest.param(  # the code of images; so is the noise of the next
        Variant("video/tokenizer_tiny", quantiser="kl"),
        id="video/tokenizer_tiny-kl",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Variant("image/vqgan_tiny", quantiser="bounded"),
        id="image/vqgan_tiny-bounded",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Variant("image/vqgan_tiny", quantiser="bsq"),
        id="image/vqgan_tiny-bsq",
        marks=pytest.mark.slow,
    ),
    pytest.param(  # as the recipes for a GPU
        Variant("image/vqgan_tiny", optimizer="muon"),
        id="image/vqgan_tiny-muon",
        marks=pytest.mark.slow,
    ),
]
needs_diffusers = pytest.mark.skipif(find_spec("diffusers") is None, reason="needs diffusers")
# Of the recipes that adopt models, that of images: the others take the same code ten times longer.
# The task of one more is that of mesh/autoencoder_tiny.
# Autoencoders are tokenizers of kind kl, which is a variant of image/vqgan_tiny; flows and masked
# generators of clips are those of images, a flow of few steps its teacher's with another loss.
SLOW = (
    "image/flow_few_tiny",
    "video/maskgit_tiny",
    "image/autoencoder_tiny",
    "video/autoencoder_tiny",
    "video/flow_tiny",
    "video/flow_few_tiny",
    "video/adopt_tiny",
    "music/adopt_tiny",
    "music/clap_tiny",
    "mesh/autoencoder_compact_tiny",
)
MARKED = [
    pytest.param(
        name,
        marks=[
            *([needs_diffusers] if name in ADOPTING else []),
            *([pytest.mark.slow] if name in SLOW else []),
        ],
    )
    for name in NAMES
]
EACH = [*MARKED, *VARIANTS]
# Every process would import the library of an adopted model, which takes longer than its steps.
IMPORTING = [pytest.param(n, marks=[needs_diffusers, pytest.mark.slow]) for n in ADOPTING]
OWN = [param for param in MARKED if param.values[0] not in ADOPTING]
IN_PROCESSES = [*OWN, *IMPORTING, *VARIANTS]

# Each of these by default in two claims or more, each claim of steps that differ in kind; the slow
# tests have the rest. Those accumulated are also divided, as both begin with the same run. A recipe
# that is not among them is held to every claim.
BY_DEFAULT = {
    "resumed": (
        *("image/vqgan_tiny", "image/flow_tiny", "image/adopt_tiny", "mesh/transformer_tiny"),
        *("music/mulan_tiny", "speech/voicebox_tiny", "speech/vocoder_tiny"),
    ),
    "accumulated": (
        *("image/vqgan_tiny-kl", "image/maskgit_tiny", "image/adopt_tiny", "image/clip_tiny"),
        *("mesh/autoencoder_tiny", "mesh/retopology_tiny", "music/codec_tiny"),
        *("speech/voicebox_tiny", "speech/vocoder_tiny", "video/tokenizer_tiny"),
    ),
    "divided": (
        *("image/vqgan_tiny-kl", "mesh/autoencoder_tiny", "mesh/retopology_tiny"),
        "music/codec_tiny",
    ),
    "looked into": (
        *("image/vqgan_tiny", "image/flow_tiny", "image/maskgit_tiny", "image/clip_tiny"),
        *("mesh/transformer_tiny", "music/mulan_tiny", "video/tokenizer_tiny"),
    ),
}
KNOWN = {name for names in BY_DEFAULT.values() for name in names}


def later(param: Any, claim: str) -> Any:
    """The same, as a slow one where others stand for it."""
    case = param.id or param.values[0]
    marks = [pytest.mark.slow] if case in KNOWN and case not in BY_DEFAULT[claim] else []
    return pytest.param(*param.values, id=param.id, marks=[*param.marks, *marks])


def every(claim: str, params: list[Any] = EACH) -> Any:
    return pytest.mark.parametrize("name", [later(p, claim) for p in params], scope="module")


EVERY_LOOKED_INTO = every("looked into")

# Where a recipe has such a field, a smaller value; the claims do not depend on it.
SMALLER = {
    "batch_size": 2,
    "workers": 0,
    "trackers": (),
    "device": "cpu",
    "compile": "off",
    "log_every": 1,
    "save_every": 0,
    "evaluate_every": 0,
    "valid_limit": 2,
    "builtin_count": 16,
    "max_faces": 12,
    "max_seconds": 1.5,
    "count": 1,
    "reference_count": 4,
    "compared": 4,
    "warm_discriminator": 1,
    "sampling_steps": 3,
    "valid_seconds": 0.5,
    "retrievals": 2,
    "corrections": 2,
}
# A layer of its own sees what is given; gradients of texts vanish beside the usual eps at first.
YOUNG_FLOW = {"known_share": 1.0, "eps": 1e-20}
OF_RECIPE: dict[str, dict[str, Any]] = {
    "image/clip_tiny": {"size": (32, 32)},
    "image/flow_tiny": YOUNG_FLOW,
    "image/flow_few_tiny": YOUNG_FLOW,
    "music/adopt_tiny": {"train": "all"},
    "music/flow_tiny": YOUNG_FLOW,
    "music/clap_tiny": {"sample_rate": 8000, "seconds": 1.0, "min_seconds": 1.0},
    "music/codec_tiny": {"dim": 8, "period_dim": 4, "window_dim": 4, "seconds": 0.2},
    "speech/voicebox_tiny": {"duration_dropout": 0.2},  # drawn by key, as the equalities demand
    "video/adopt_tiny": {"train": "all"},
    "video/flow_tiny": YOUNG_FLOW,
    "video/flow_few_tiny": YOUNG_FLOW,
    "video/maskgit_tiny": {"layers": 1, "heads": 1, "text_dim": 32},
}
# Terms that are documented to be statistics of one micro-batch; without them halves are equal.
PER_MICRO_BATCH = {"decorrelation_weight": 0.0, "entropy_weight": 0.0, "adversarial": "none"}
LATE = {"adversarial_from": 0.5}  # a part that starts late must start inside of four steps


taught = partial(harness.run, measured=False)


def taught_here(name: str, recipe: Recipe, path: Path, mode: Any = "new") -> None:
    """In this process, without evaluation: it changes nothing, see below."""
    go = harness.task_of(name, measured=False)
    start(go, recipe, path, name=name, mode=mode, load=rooms.load, progress=False)


def small(name: str, **changes: Any) -> Recipe:
    narrow = OF_ROOM.get(name.partition("/")[0], {})
    changes_of_variant = name.changes if isinstance(name, Variant) else {}
    wanted = SMALLER | narrow | LATE | OF_RECIPE.get(name, {}) | changes_of_variant
    recipe = replaced(rooms.recipe_function(name)(), wanted)
    stages = {setting: str(stage(maker, name)) for setting, maker in recipe.stages.items()}
    return dataclasses.replace(recipe, steps=4, **stages, **changes)


@lru_cache
def stage(maker: str, name: str) -> Path:
    """A frozen model that a recipe is built on: four steps of the recipe that trains such, or a
    folder of another library."""
    if maker not in rooms.names():
        return adopting.folder(adopting.ADOPTED[name])
    name, place = f"{maker}_tiny", Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place)
    go = lambda settings: rooms.build(settings)
    start(go, small(name), place / "run", name=name, load=rooms.load, progress=False)
    return quintet.load(place / "run").save_pretrained(place / "model")


@pytest.fixture(scope="module")
def run(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The recipe as a run that has taken three of its four steps. Tests share it: the one that
    gives it an update more stands below those that measure it."""
    recipe, folder = small(name), RunFolder(tmp_path_factory.mktemp("run"))
    opened = Run(rooms.build(recipe), recipe, World(recipe), folder)
    for _ in range(3):
        take_step(opened)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def metrics(run: Run) -> dict[str, float]:
    """Its first evaluation, which has left exhibits."""
    return run.evaluate()


def state(run: Run) -> dict[str, Tensor]:
    return {
        f"{file}:{name}": value.clone()
        for part in run.parts.values()
        for file, tensors in part.state().items()
        for name, value in tensors.items()
    }


def test_every_room_has_a_tiny_recipe_for_each_of_its_recipes() -> None:
    names = set(rooms.names())
    twins = {re.sub("_(tiny|medium|large).*", "", name) for name in names}
    assert {f"{name}_tiny" for name in twins} | twins <= names
    assert {name.partition("/")[0] for name in NAMES} == set(rooms.rooms())


@pytest.mark.parametrize("name", rooms.names())
def test_a_recipe_survives_json_and_back(name: str) -> None:
    recipe = rooms.recipe_function(name)()
    text = json.dumps(to_json(recipe), allow_nan=False)
    assert from_json(type(recipe), json.loads(text)) == recipe


@pytest.mark.parametrize("name", rooms.names())
def test_a_recipe_says_in_its_first_line_what_it_is(name: str) -> None:
    assert (rooms.recipe_function(name).__doc__ or "").splitlines()[0].strip()


@pytest.mark.parametrize("name", rooms.names())
def test_help_shows_every_setting_of_a_recipe(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", name, "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    for field in dataclasses.fields(rooms.recipe_function(name)()):
        assert f"--{field.name.replace('_', '-')}" in shown


@lru_cache
def fields_without_a_sentence(kind: type) -> list[str]:
    """Of one dataclass, its bases left out."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return [
        f"{kind.__name__}.{ast.unparse(line.target)}"
        for line, following in zip(body, [*body[1:], None])
        if isinstance(line, ast.AnnAssign) and not isinstance(following, ast.Expr)
    ]


@pytest.mark.parametrize("name", rooms.names())
def test_every_setting_of_a_recipe_has_a_sentence(name: str) -> None:
    waiting, lacking = [type(rooms.recipe_function(name)())], []
    while waiting:
        kind = waiting.pop()
        for owner in filter(dataclasses.is_dataclass, kind.__mro__):
            lacking += fields_without_a_sentence(owner)
        defaults = [f.default_factory for f in dataclasses.fields(kind)]
        made = [make() for make in defaults if make is not dataclasses.MISSING]
        waiting += [type(value) for value in made if dataclasses.is_dataclass(value)]
    assert lacking == []


@every("resumed")
def test_four_steps_are_two_and_two_more(name: str, tmp_path: Path) -> None:
    recipe = small(name, save_every=2, keep_last=5)
    taught_here(name, recipe, tmp_path / "straight")
    for mode in ("new", "resume"):
        with pytest.raises(Stopped):
            taught_here(name, dataclasses.replace(recipe, minutes=1e-9), tmp_path / "cut", mode)
    taught_here(name, recipe, tmp_path / "cut", "resume")
    assert_same(tensors(tmp_path / "straight", 4), tensors(tmp_path / "cut", 4))
    assert trajectory(tmp_path / "straight") == trajectory(tmp_path / "cut")


@pytest.fixture(scope="module")
def whole(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A run of whole batches in fp64, and its settings."""
    recipe = replaced(small(name, precision="fp64"), PER_MICRO_BATCH | {"batch_size": 4})
    path = tmp_path_factory.mktemp("whole") / "run"
    taught_here(name, recipe, path)
    return recipe, path


def assert_same_steps(whole: Path, halves: Path) -> None:
    """In fp64 nothing is left but the order of sums. The data, its keys and its order are equal."""
    first, second = tensors(whole, 4), tensors(halves, 4)
    assert first.keys() == second.keys()
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-7, atol=1e-9, msg=key)
    orders = [[r["order"] for r in harness.lines(run) if "order" in r] for run in (whole, halves)]
    assert orders[0] == orders[1]


@every("accumulated")
def test_two_micro_batches_give_the_step_of_the_whole(
    name: str, whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    recipe, path = whole
    halves = dataclasses.replace(recipe, batch_size=2, accumulate=2)
    taught_here(name, halves, tmp_path / "halves")
    assert_same_steps(path, tmp_path / "halves")


@every("divided", IN_PROCESSES)
def test_two_processes_give_the_step_of_the_whole(
    name: str, whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    recipe, path = whole
    taught(dataclasses.replace(recipe, batch_size=2), tmp_path / "halves", size=2, name=name)
    assert_same_steps(path, tmp_path / "halves")


@pytest.mark.slow  # threads of several test processes spin against each other
@pytest.mark.parametrize("name", EACH, scope="module")
def test_two_threads_that_race_give_the_same_steps_every_time(name: str, tmp_path: Path) -> None:
    """With its own batch and longer samples, as small ones are not shared among threads."""
    recipe = small(name, batch_size=rooms.recipe_function(name)().batch_size)
    recipe = replaced(recipe, {"builtin_count": 512, "max_faces": 24, "max_seconds": 3.0})
    torch.set_num_threads(2)
    try:
        states = [after_steps(name, recipe, tmp_path / str(turn)) for turn in range(4)]
    finally:
        torch.set_num_threads(1)
    for other in states[1:]:
        assert_same(states[0], other)


def after_steps(name: str, recipe: Recipe, path: Path) -> dict[str, Tensor]:
    run = Run(rooms.build(recipe), recipe, World(recipe), RunFolder(path))
    for _ in range(2):
        take_step(run)
    found = state(run)
    run.close()
    return found


@EVERY_LOOKED_INTO
def test_an_evaluation_changes_nothing_and_the_next_gives_the_same_numbers(
    name: str, run: Run, metrics: dict[str, float]
) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = state(run)
    modes = {n: [m.training for m in p.module.modules()] for n, p in run.parts.items()}
    grads = {
        n: [p.requires_grad for p in part.module.parameters()] for n, part in run.parts.items()
    }
    place = (run.step, run.stream.position)
    chance = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    again = run.evaluate()
    assert again
    assert_same(before, state(run))
    assert modes == {n: [m.training for m in p.module.modules()] for n, p in run.parts.items()}
    assert grads == {
        n: [p.requires_grad for p in part.module.parameters()] for n, part in run.parts.items()
    }
    assert place == (run.step, run.stream.position)
    assert torch.equal(chance[0], torch.get_rng_state())
    assert chance[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert all(p.grad is None for part in run.parts.values() for p in part.module.parameters())
    assert again == metrics


@EVERY_LOOKED_INTO
def test_evaluation_gives_finite_numbers_and_the_one_that_picks_the_best(
    name: str, run: Run, metrics: dict[str, float]
) -> None:
    assert all(value == value and abs(value) != float("inf") for value in metrics.values())
    assert run.task.best is None or run.task.best[0] in metrics


@EVERY_LOOKED_INTO
def test_exhibits_are_written_and_can_be_read(
    name: str, run: Run, metrics: dict[str, float]
) -> None:
    files = [path for path in run.folder.exhibits.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert path.stat().st_size > 0
        if path.suffix == ".png":
            from quintet.media.pixels import read_image

            assert read_image(path).std() > 0


@EVERY_LOOKED_INTO
def test_every_trainable_parameter_is_in_one_optimizer(name: str, run: Run) -> None:
    owned = [
        id(p)
        for part in run.parts.values()
        for group in part.optimizer.param_groups
        for p in group["params"]
    ]
    assert len(owned) == len(set(owned))
    trainable = [
        p
        for part in rooms.build(run.recipe).parts.values()
        if part.optimizer is not None
        for p in part.network.parameters()
        if p.requires_grad
    ]
    assert len(owned) == len(trainable)
    assert not any(p.requires_grad for net in run.parts.frozen.values() for p in net.parameters())


@EVERY_LOOKED_INTO
def test_every_parameter_of_a_live_part_learns(name: str, run: Run) -> None:
    fresh = rooms.build(run.recipe)
    for part, live in run.parts.items():
        began = dict(fresh.parts[part].network.named_parameters())
        still = [n for n, p in live.parameters.items() if p.equal(began[n])]
        if part.endswith("discriminator"):
            # In the last bias of a hinge loss the gradients of real and fake logits cancel exactly,
            # until a logit passes the margin.
            still = [n for n in still if n != list(began)[-1]]
        assert not still, (part, still)


@EVERY_LOOKED_INTO
def test_an_update_touches_its_own_part_only(name: str, run: Run) -> None:
    """Weights, averages and the optimizer's memory of the others stay as they were."""
    from quintet.engine.update import apply

    batches = run.stream.take(run.recipe.accumulate)
    at = run.begin(batches)
    for update in run.task.updates:
        if not update.when.due(run.step):
            continue
        before = state(run)
        apply(update, run.parts, batches, at, run.meters)
        after = state(run)
        changed = {
            key.split(":")[0].split(".")[0] for key in after if not after[key].equal(before[key])
        }
        assert changed == {update.part}
        assert all(p.grad is None for part in run.parts.values() for p in part.module.parameters())


@EVERY_LOOKED_INTO
def test_every_update_has_had_its_turn(name: str, run: Run) -> None:
    """Or the claims above would hold of nothing."""
    assert all(update.when.due(run.step) for update in run.task.updates)


@EVERY_LOOKED_INTO
def test_every_part_reports_its_loss(name: str, run: Run) -> None:
    """The console shows these, and a replay compares them."""
    take_step(run)
    reported = run.meters.read()[0]
    assert {f"{update.part}/loss" for update in run.task.updates} <= set(reported)


# One in a few steps; the others, and longer runs, are slow tests.
SHARDED = [("music/mulan_tiny", "fp64", 6)]
# Rounding grows from step to step in discriminators at chance, until an id of the codec is another
# one. In fp64 it takes as many steps as the others.
FEWER = {("music/adopt_tiny", "fp32"): 8}
LONGER = [
    (name, precision, FEWER.get((name, precision), 20))
    for name in NAMES
    for precision in ("fp64", "fp32")
]


@pytest.mark.parametrize(
    ("name", "precision", "steps"),
    [*SHARDED, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONGER)],
)
def test_sharded_weights_learn_as_whole_ones_do(
    name: str, precision: str, steps: int, tmp_path: Path
) -> None:
    """Two processes, with DDP and with FSDP; discriminators start half-way."""
    recipe = dataclasses.replace(small(name, precision=precision), steps=steps, batch_size=1)
    recipe = replaced(recipe, {"optimizer": "adamw"})  # muon takes whole matrices
    taught(recipe, tmp_path / "whole", size=2, name=name)
    taught(dataclasses.replace(recipe, fsdp=True), tmp_path / "shards", size=2, name=name)
    reports = [trajectory(tmp_path / folder) for folder in ("whole", "shards")]
    for one, other in zip(*reports, strict=True):
        losses = {key: value for key, value in one.items() if key.endswith("loss")}
        assert {key: other[key] for key in losses} == pytest.approx(losses, rel=1e-4, abs=1e-4)
        assert one.get("order") == other.get("order")
    first, second = tensors(tmp_path / "whole", steps), tensors(tmp_path / "shards", steps)
    assert first.keys() == second.keys()
    if precision == "fp64":
        for key, value in first.items():
            torch.testing.assert_close(second[key], value, rtol=1e-8, atol=1e-8, msg=key)


@pytest.mark.by_default("video/tokenizer_tiny", "music/mulan_tiny")
@pytest.mark.parametrize(
    "name", ["video/tokenizer_tiny", "music/mulan_tiny", "speech/voicebox_tiny"]
)
def test_blocks_computed_again_learn_the_same(name: str, tmp_path: Path) -> None:
    taught(small(name), tmp_path / "kept", name=name)
    taught(small(name, checkpoint_activations=True), tmp_path / "again", name=name)
    assert_same(tensors(tmp_path / "kept", 4), tensors(tmp_path / "again", 4))
