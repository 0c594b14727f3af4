"""A new room is one folder, a new family one folder and a line in the recipes of its room: written
here, they train, resume, evaluate, sample, report and export."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import quintet
from quintet import rooms
from quintet.engine.errors import RunError

FILES = {
    "__init__.py": "",
    "line/__init__.py": "",
    "line/config.py": '''
        from dataclasses import dataclass, field
        from quintet.engine.config import OptimizerConfig, Recipe

        @dataclass(frozen=True, kw_only=True)
        class LineConfig:
            """A line."""

            slope: float = 0.0
            """Initial slope."""

        @dataclass(frozen=True, kw_only=True)
        class LineRecipe(Recipe):
            """Fit a line."""

            model: LineConfig = field(default_factory=LineConfig)
            """The line."""
            optim: OptimizerConfig = field(default_factory=OptimizerConfig)
            """Optimizer."""
    ''',
    "recipes.py": '''
        from quintet.scratch.line.config import LineRecipe

        def line_tiny() -> LineRecipe:
            """A line through points."""
            return LineRecipe(steps=4, batch_size=4, workers=0, log_every=1, trackers=())
    ''',
    "line/model.py": """
        import torch
        from torch import nn
        from quintet.engine.models.pretrained import Pretrained
        from quintet.scratch.line.config import LineConfig

        class Line(Pretrained, nn.Module):
            Config = LineConfig

            def __init__(self, config=None):
                super().__init__()
                self.config = config or LineConfig()
                self.weight = nn.Parameter(torch.full((1,), self.config.slope))

            def forward(self, x):
                return self.weight * x

        Model = Line
    """,
    "line/data.py": """
        import torch

        class Points:
            def __init__(self, split):
                self.split = split

            def __len__(self):
                return 32 if self.split == "train" else 4

            def keyed(self, index, key):
                x = torch.tensor([(index + 1) / 32])
                return {"x": x, "y": 3 * x}

            def name(self, index):
                return f"{self.split} point {index}"
    """,
    "line/task.py": """
        import torch
        from torch.utils.data import default_collate
        from quintet.engine.task import Part, Rows, Task, Update, each
        from quintet.scratch.line.data import Points
        from quintet.scratch.line.model import Line

        class LineTask(Task):
            main = "line"
            best = ("error", "min")

            def __init__(self, recipe):
                self.parts = {"line": Part(Line(recipe.model), recipe.optim)}
                self.updates = [Update("line", each(self.loss))]

            def data(self, split):
                return Points(split)

            def collate(self, items):
                return default_collate(items)

            def loss(self, nets, batch, context):
                loss = (nets["line"](batch.data["x"]) - batch.data["y"]).square().mean()
                return loss, {"loss": loss}

            def measure(self, nets, batch):
                error = (nets["line"](batch.data["x"]) - batch.data["y"]).abs()
                return {"error": Rows(error.flatten())}

        build = LineTask
    """,
    "line/sample.py": '''
        from dataclasses import dataclass

        EXAMPLE = "--at 2 --out out"

        @dataclass(frozen=True, kw_only=True)
        class Flags:
            """Evaluate the line."""

            at: float = 1.0
            """Where."""

        def example(recipe, run):
            return ["--at", "2", "--out", "out"]

        def sample(trained, inputs, out, flags):
            import torch

            out.mkdir(parents=True, exist_ok=True)
            path = out / "value.txt"
            path.write_text(str(trained.model('cpu')(torch.tensor([flags.at])).item()))
            return [path]
    ''',
    "demo.py": """
        from quintet.shared.demo import Figure, RoomDemo, Row, Stage

        ROW = Row(
            title="Lines",
            description="Fits a line.",
            figure=lambda metrics, recipe: Figure(
                value=f"{metrics['error']:.2f}", meaning="error", baseline="without a fit: 1"
            ),
            arguments="--at 2 --out out",
        )
        STAGE = Stage(folder="line", recipe="scratch/line_tiny", row=ROW, steps=4, seconds=1)
        DEMO = RoomDemo(stages=(STAGE,))
    """,
}


def write(files: Mapping[str, str], room: str, root: Path) -> None:
    for name, text in files.items():
        path = root / room / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).replace("quintet.scratch", f"quintet.{room}"), "utf-8")


def forget(package: str) -> None:
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    write(FILES, "scratch", tmp_path / "rooms")
    monkeypatch.setattr(quintet, "__path__", [*quintet.__path__, str(tmp_path / "rooms")])
    yield "scratch"
    forget("quintet.scratch")


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Added to the image room: its folder, and a function in recipes.py."""
    import quintet.image
    from quintet.image import recipes

    root = tmp_path / "rooms"
    write({name: text for name, text in FILES.items() if "/" in name}, "image", root)
    monkeypatch.setattr(quintet, "__path__", [*quintet.__path__, str(root)])
    monkeypatch.setattr(quintet.image, "__path__", [*quintet.image.__path__, str(root / "image")])
    line = dedent(FILES["recipes.py"]).replace("quintet.scratch", "quintet.image")
    scope: dict[str, Any] = {"__name__": recipes.__name__}
    exec(line, scope)
    monkeypatch.setattr(recipes, "line_tiny", scope["line_tiny"], raising=False)
    yield "image"
    forget("quintet.image.line")


@pytest.mark.parametrize("place", ["room", "family"])
def test_one_folder_does_everything_that_rooms_do(place, request, cli, tmp_path) -> None:
    recipe = f"{request.getfixturevalue(place)}/line_tiny"
    run, out = tmp_path / "run", tmp_path / "out"
    assert recipe in cli("list").out
    assert "--optim" in cli("train", recipe, "--help").out
    assert cli("train", recipe, "--run", run, "--device", "cpu").status == 0
    assert cli("resume", run, "--steps", "6").status == 0
    measured = cli("evaluate", run, "--device", "cpu").out.splitlines()[-1]
    assert json.loads(measured)["step"] == 6
    assert "--at" in cli("sample", run, "--help").out
    assert cli("sample", run, "--at", "2", "--out", out).status == 0
    assert float((out / "value.txt").read_text()) > 0  # towards the slope of 3
    assert cli("report", run).status == 0
    assert (run / "report.html").is_file()
    assert cli("export", run, tmp_path / "model").status == 0
    assert type(quintet.load(tmp_path / "model")).__name__ == "Line"


def test_a_room_appears_in_the_demo(room, cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rooms, "rooms", lambda: [room])  # the others take minutes
    shown = cli("demo", "--full", "--run", tmp_path / "demo", "--steps", "1")
    assert shown.status == 0
    page = (tmp_path / "demo/index.html").read_text(encoding="utf-8")
    for text in ("Lines", "Fits a line.", "quintet sample"):
        assert text in page
    assert "error" in shown.out


def test_a_room_without_demo_has_no_stage(room, tmp_path) -> None:
    (tmp_path / "rooms" / room / "demo.py").unlink()
    assert rooms.Room(room).demo is None


def test_what_else_a_family_may_have_is_answered_where_it_is_missing(room) -> None:
    with pytest.raises(RunError, match="scratch/line does not support export as a graph"):
        _ = rooms.Family(room, "line").export
    with pytest.raises(RunError, match="there is no room 'poems'"):
        rooms.room_named("poems")
