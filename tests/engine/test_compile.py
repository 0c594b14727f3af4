import dataclasses
import json
import os
import re
import tempfile

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from harness import Messages
from quintet.engine.launch import start
from quintet.engine.loop import take_step
from quintet.engine.machine import compiling
from quintet.engine.machine.compiling import RECORD, TIMED, UNDECIDED, WARM, pays
from quintet.engine.machine.world import World, keep_compiled_code
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.rooms import build, recipe_function
from toy import ToyRecipe, ToyTask

pytestmark = [  # the compiler's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).tanh()


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = (
            nn.ModuleList(Layer(width) for _ in range(10)) for width in (8, 4)
        )

    def regions(self) -> list[nn.Module]:
        return [*self.wide, *self.narrow]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.wide:
            x = layer(x)
        x = x[:, :4].contiguous()
        for layer in self.narrow:
            x = layer(x)
        return x


@pytest.fixture
def world() -> World:
    torch.compiler.reset()
    return World(ToyRecipe(device="cpu", precision="fp32", compile="on"))


def test_of_blocks_that_are_alike_one_graph_is_made(world):
    """And they answer as before, under the same names."""
    network, x = Deep(), torch.randn(3, 8)
    exact, names = network(x), list(network.state_dict())
    counters.clear()
    world.compile(network)
    with torch.no_grad(), torch.compiler.set_stance("default", force_backend="aot_eager"):
        torch.testing.assert_close(network(x), exact)
    assert counters["stats"]["unique_graphs"] == 2
    assert list(network.state_dict()) == names


def test_more_shapes_than_the_compiler_allows_by_itself_are_compiled(world):
    network = Deep()
    world.compile(network)
    counters.clear()
    with torch.no_grad(), torch.compiler.set_stance("default", force_backend="aot_eager"):
        for count in range(2, 14):
            network(torch.randn(count, 8))
    assert counters["stats"]["unique_graphs"] == 24


# -- when --------------------------------------------------------------------------------------

EAGERLY = {"device": "cpu", "precision": "fp32", "workers": 0, "dropout": 0.0, "batch_size": 4}
DECIDED = WARM + TIMED


def toy_run(path, about, *, on_gpu=True, **changes) -> Run:
    """`on_gpu`: networks may be compiled, as on a GPU."""
    torch.compiler.reset()
    recipe = ToyRecipe(**{**EAGERLY, "steps": 30, **changes})
    world = World(recipe)
    world.compiles = world.compiles or (on_gpu and recipe.compile == "auto")
    folder = RunFolder(path) if path.exists() else RunFolder.create(path, about)
    return Run(ToyTask(recipe), recipe, world, folder)


def taken(run: Run, steps: int) -> list[str]:
    """Steps of the loop with another backend than the slow one; returns what the run said."""
    said = Messages(run).texts
    with torch.compiler.set_stance("default", force_backend="eager"):
        for _ in range(steps):
            take_step(run)
            run.compiler.decide(run.step)
    return said


def is_compiled(run: Run) -> bool:
    counts = {len(compiled_in(part.module)) for part in run.parts.values()}
    assert counts in ({0}, {1})
    return counts == {1}


@pytest.mark.by_default(
    "on-about0-*", "off-*", "auto-about3-*", "auto-about4-*", "auto-about5-*", "auto-about7-*"
)
@pytest.mark.parametrize(
    ("compile", "about", "on_gpu", "expected"),
    [
        ("on", {}, False, 0),
        ("on", {RECORD: None}, True, 0),
        ("off", {RECORD: 0}, True, None),
        ("auto", {}, True, 0),
        ("auto", {}, False, None),
        ("auto", {RECORD: UNDECIDED}, True, UNDECIDED),
        ("auto", {RECORD: UNDECIDED}, False, None),
        ("auto", {RECORD: 20}, True, 20),
        ("auto", {RECORD: None}, True, None),
        ("auto", {RECORD: [1]}, True, 0),
    ],
)
def test_the_setting_comes_first_and_then_the_record(compile, about, on_gpu, expected, tmp_path):
    run = toy_run(tmp_path / "run", about, on_gpu=on_gpu, compile=compile)
    assert run.compiler.start == expected
    taken(run, 1)
    assert is_compiled(run) == (expected == 0)
    run.close()


def test_a_short_run_is_not_compiled_and_says_so(tmp_path):
    run = toy_run(tmp_path / "run", {RECORD: UNDECIDED})
    (said,) = taken(run, 30)
    assert said.startswith("not compiled: 10 steps of ")
    assert not is_compiled(run)
    assert json.loads((tmp_path / "run/config.json").read_text())[RECORD] is None
    run.close()


def test_a_long_run_is_compiled_once_it_has_been_timed_and_again_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "SECONDS", 1e-6)
    run = toy_run(tmp_path / "run", {RECORD: UNDECIDED}, save_every=1)
    said = taken(run, DECIDED)
    assert not is_compiled(run)
    assert json.loads((tmp_path / "run/config.json").read_text())[RECORD] == DECIDED
    run.save()
    said += taken(run, 3)
    assert is_compiled(run)
    assert said[0].startswith("to be compiled: 10 steps of ")
    assert said[1] == "compiling generator, discriminator …"
    assert re.fullmatch(r"compiled \d+ graphs in \d+ s", said[2])
    run.finish()
    run.close()
    about = json.loads((tmp_path / "run/config.json").read_text())
    resumed = toy_run(tmp_path / "elsewhere", about)
    resumed.step = DECIDED - 1
    taken(resumed, 1)
    assert not is_compiled(resumed)
    taken(resumed, 1)
    assert is_compiled(resumed)
    resumed.close()


def test_a_time_limit_counts_as_the_end_of_the_run(tmp_path):
    run = toy_run(tmp_path / "run", {RECORD: UNDECIDED}, steps=10**9)
    taken(run, DECIDED)
    assert run.compiler.start == DECIDED
    run.close()
    limited = toy_run(tmp_path / "limited", {RECORD: UNDECIDED}, steps=10**9, minutes=1.0)
    taken(limited, DECIDED)
    assert limited.compiler.start is None
    limited.close()


def test_compiling_pays_where_it_saves_more_than_it_takes():
    assert not pays(0)
    assert not pays(80)
    assert pays(100)
    assert not pays(100, shapes=3)
    assert pays(200, shapes=3)


def test_a_new_run_is_undecided_and_a_deterministic_one_stays_eager(tmp_path):
    for name, deterministic, expected in (("a", False, UNDECIDED), ("b", True, None)):
        recipe = ToyRecipe(**EAGERLY, steps=2, trackers=(), deterministic=deterministic)
        start(ToyTask, recipe, tmp_path / name, name="toy", progress=False)
        longer = dataclasses.replace(recipe, steps=3)
        start(ToyTask, longer, tmp_path / name, name="toy", mode="resume", progress=False)
        assert json.loads((tmp_path / name / "config.json").read_text())[RECORD] == expected
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("named", "kept"), [(None, True), ("/tmp/torchinductor_me", True), ("/elsewhere", False)]
)
def test_compiled_code_is_kept_in_the_cache_unless_another_folder_is_named(
    named, kept, tmp_path, monkeypatch
):
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
        if named:
            monkeypatch.setenv(variable, named)
    keep_compiled_code()
    found = os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]
    folders = str(tmp_path / "compiled/inductor"), str(tmp_path / "compiled/triton")
    assert found == (folders if kept else (named, named))


# -- what ----------------------------------------------------------------------------------------


def network_of(name):
    task = build(recipe_function(name)())
    return task.parts[task.main].network


def compiled_in(network):
    return {module for module in network.modules() if module._compiled_call_impl is not None}


@pytest.mark.parametrize("name", ["music/mulan_tiny", "speech/voicebox_tiny"])
def test_a_network_of_many_like_blocks_is_compiled_by_them(world, name):
    network = network_of(name)
    world.compile(network)
    assert compiled_in(network) == set(network.regions())
    assert len(network.regions()) > 2


def test_the_video_tokenizer_is_compiled_whole_but_where_its_blocks_are_recomputed(world):
    network = network_of("video/tokenizer_tiny")
    world.compile(network)
    assert compiled_in(network) == {network}
    world.recomputes, network = True, network_of("video/tokenizer_tiny")
    world.compile(network)
    assert compiled_in(network) == set(network.regions())
