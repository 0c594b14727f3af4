import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from quintet.engine.config import TrackerConfig
from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder, read_lines
from quintet.engine.runs.sinks import (
    Callback,
    Journal,
    Progress,
    brief,
)
from quintet.engine.runs.trackers import TensorBoard, numbers, trackers
from quintet.media.audio import write_wav
from quintet.media.meshes.files import write_mesh

RECORD = {"step": 10, "net/loss": 0.5, "order": "ab", "val/bad": math.nan, "none": None}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"recipe": "toy"})


def test_the_journal_keeps_reports_and_events(folder):
    journal = Journal(folder)
    journal.report(RECORD)
    journal.event(11, "a sentence")
    journal.exhibits(11, [])
    journal.close()
    assert read_lines(folder.metrics) == [{**RECORD, "val/bad": None}]
    assert read_lines(folder.events) == [{"step": 11, "message": "a sentence"}]


def test_a_callback_is_given_a_copy_of_each_report():
    found = []
    sink = Callback(found.append)
    record = dict(RECORD)
    sink.report(record)
    found[0]["step"] = 99
    assert record == RECORD
    sink.event(1, "nothing to it")
    sink.exhibits(1, [])
    sink.close()
    assert len(found) == 1


def test_only_numbers_go_to_trackers():
    assert set(numbers(RECORD)) == {"net/loss", "val/bad"}


def test_tensorboard_holds_the_numbers_at_their_steps(folder):
    (sink,) = trackers(["tensorboard"], folder, TrackerConfig())
    assert isinstance(sink, TensorBoard)
    for step in (10, 20):
        sink.report({"step": step, "net/loss": step / 2, "order": "text"})
    sink.event(20, "a sentence")
    sink.close()
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("net/loss")] == [(10, 5.0), (20, 10.0)]
    assert events.Tags()["scalars"] == ["net/loss"]


def missing(name: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as python itself marks what cannot be imported


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra(folder, monkeypatch, name):
    missing(name, monkeypatch)
    with pytest.raises(RunError, match=rf"'{name}' is not installed.*quintet\[{name}\]"):
        trackers([name], folder, TrackerConfig())


def test_tensorboard_is_optional(folder, monkeypatch):
    missing("torch.utils.tensorboard", monkeypatch)
    assert trackers(["tensorboard"], folder, TrackerConfig()) == []


TRACKER = """
calls = []
def init(**settings): calls.append(("init", settings))
def log(values, step=None): calls.append(("log", values, step))
def finish(): calls.append(("finish",))
class Image:
    def __init__(self, source): self.source = source
class Video(Image): pass
class Audio(Image): pass
class Object3D(Image): pass
"""


@pytest.fixture
def exhibits(tmp_path) -> list[Path]:
    Image.new("RGB", (6, 4), "red").save(tmp_path / "sheet.png")
    still = Image.new("P", (6, 4))
    still.save(tmp_path / "clip.gif", save_all=True, append_images=[Image.new("P", (6, 4), 1)])
    write_wav(tmp_path / "spoken.wav", np.zeros(80, np.float32), 8000)
    (tmp_path / "words.txt").write_text("ba do ki")
    (tmp_path / "clip.mp4").write_bytes(b"not looked into")
    write_mesh(tmp_path / "box.glb", np.eye(3), np.array([[0, 1, 2]]))
    names = ("sheet.png", "clip.gif", "clip.mp4", "spoken.wav", "words.txt", "box.glb")
    return [tmp_path / name for name in names]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_receives_reports_and_exhibits_under_the_names_asked_for(
    name, folder, exhibits, tmp_path, monkeypatch
):
    """The stand-in has the functions and classes of both; neither is installed for the tests."""
    (tmp_path / f"{name}.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    config = TrackerConfig(project="cats", run_name="third", entity="team", tags=("a", "b"))
    (sink,) = trackers([name], folder, config)
    sink.report({"step": 10, "net/loss": 0.5})
    sink.exhibits(10, exhibits)
    sink.close()
    (_, about), (_, values, step), (_, shown, at), end = sys.modules[name].calls
    monkeypatch.delitem(sys.modules, name)
    assert (about["project"], about["name"], about["resume"]) == ("cats", "third", "allow")
    assert about["config"] == folder.about
    if name == "wandb":
        assert (about["id"], about["entity"], about["tags"]) == (folder.id, "team", ["a", "b"])
    assert (values, step, at, end) == ({"net/loss": 0.5}, 10, 10, ("finish",))
    kinds = {key: (type(value).__name__, Path(value.source).name) for key, value in shown.items()}
    assert kinds == {
        "exhibits/sheet": ("Image", "sheet.png"),
        "exhibits/clip": ("Video", "clip.mp4"),  # and not the same again as a gif
        "exhibits/spoken": ("Audio", "spoken.wav"),
        "exhibits/box": ("Object3D", "box.glb"),
    }


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """What a stand-in for a tracker was initialised with, at a start in a folder."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def start(name: str, path: Path, run_name: str | None = None) -> dict:
        (tmp_path / f"{name}.py").write_text(TRACKER)
        monkeypatch.delitem(sys.modules, name, raising=False)
        trackers([name], RunFolder.open(path), TrackerConfig(run_name=run_name))
        return sys.modules[name].calls[0][1]

    yield start
    for name in ("wandb", "trackio"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_resumed_or_moved_run_stays_one_run_of_its_tracker(folder, tmp_path, stand_in):
    first = stand_in("wandb", folder.path)
    assert (first["id"], first["name"]) == (folder.id, "run")
    moved = folder.path.rename(tmp_path / "moved")
    for path in (moved, moved):
        again = stand_in("wandb", path)
        assert (again["id"], again["name"]) == (folder.id, "run")
    renamed = stand_in("wandb", moved, "better")
    assert (renamed["id"], renamed["name"]) == (folder.id, "better")


@pytest.mark.parametrize("run_name", [None, "mine"])
def test_a_copied_run_is_another_run_of_its_tracker(folder, tmp_path, stand_in, run_name):
    first = {name: stand_in(name, folder.path, run_name) for name in ("wandb", "trackio")}
    copied = Path(shutil.copytree(folder.path, tmp_path / "copied"))
    second = {name: stand_in(name, copied, run_name) for name in ("wandb", "trackio")}
    assert second["wandb"]["id"] != first["wandb"]["id"]
    assert second["trackio"]["name"] != first["trackio"]["name"]  # it knows a run by its name
    for name in ("wandb", "trackio"):
        assert {**stand_in(name, copied, run_name), "config": 0} == {**second[name], "config": 0}
        assert {**stand_in(name, folder.path, run_name), "config": 0} == {
            **first[name],
            "config": 0,
        }


def test_copies_that_are_tracked_later_are_different_runs(folder, tmp_path, stand_in):
    (folder.checkpoints / "step-00000002").mkdir()
    copied = Path(shutil.copytree(folder.path, tmp_path / "copied"))
    assert stand_in("wandb", folder.path)["id"] != stand_in("wandb", copied)["id"]


def test_a_run_started_over_is_another_run_of_its_tracker(tmp_path, stand_in):
    ids = set()
    for _ in range(2):
        folder = RunFolder.create(tmp_path / "run", {"settings": {}})
        folder.unlock()
        ids.add(stand_in("wandb", folder.path)["id"])
    assert len(ids) == 2


def test_the_project_of_the_environment_is_kept(folder, tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    for value, project in (("theirs", "theirs"), ("", "quintet")):
        monkeypatch.setenv("WANDB_PROJECT", value)
        trackers(["wandb"], folder, TrackerConfig())
        assert sys.modules["wandb"].calls[-1][1]["project"] == project
    monkeypatch.delitem(sys.modules, "wandb")


def test_tensorboard_shows_images_animations_sounds_and_texts(folder, exhibits):
    (sink,) = trackers(["tensorboard"], folder, TrackerConfig())
    sink.exhibits(20, exhibits)
    sink.close()
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert tags["images"] == ["exhibits/sheet", "exhibits/clip"]
    assert tags["audio"] == ["exhibits/spoken"]
    assert tags["tensors"] == ["exhibits/words/text_summary"]
    assert events.Images("exhibits/clip")[0].encoded_image_string == exhibits[1].read_bytes()
    assert events.Images("exhibits/clip")[0].step == 20


def test_progress_prints_lines_without_a_terminal(capfd):
    sink = Progress("toy", 20, 0)
    sink.report({"step": 10, "net/loss": 0.5, "samples_per_second": 100.0, "waiting": 0.25})
    sink.event(10, "skipped [bold]x[/bold].png")
    sink.report({"step": 20, "net/loss": 0.25})
    sink.close()
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "step 10/20" in shown.err
    assert "net/loss 0.5" in shown.err
    assert "waiting 25%" in shown.err
    assert "skipped [bold]x[/bold].png" in shown.err  # names of files are not markup
    assert "step 20/20" in shown.err


def test_every_report_is_a_line_of_a_log(capfd):
    sink = Progress("toy", 20, 0)
    for step in range(1, 6):
        sink.report({"step": step, "net/loss": 1 / step})
    shown = capfd.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in shown] == [f"step {n}/20" for n in range(1, 6)]


def test_names_in_a_report_are_not_markup(capfd):
    sink = Progress("toy", 20, 0)
    sink.report({"step": 20, "[/red]/loss": 0.5})
    assert "[/red]/loss 0.5" in capfd.readouterr().err


def test_the_brief_shows_losses_and_measures():
    assert brief({"step": 1, "net/loss": 0.5, "net/norm": 3.0, "val/error": 0.25}) == (
        "net/loss 0.5  error 0.25"
    )


def test_sinks_receive_no_tensors(folder):
    with pytest.raises(TypeError):
        Journal(folder).report({"step": 1, "loss": torch.tensor(1.0)})
