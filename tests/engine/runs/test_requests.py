"""Requests to a run: carried out at a report, without a trace in what it computes."""

import json
import os
from pathlib import Path

import pytest

from harness import Processes, assert_same, lines, run, steps_reported, tensors, trajectory
from quintet.engine.errors import RunError
from quintet.engine.runs import requests
from quintet.engine.runs.folder import RunFolder
from toy import ToyRecipe

RECIPE = ToyRecipe(
    steps=24,
    log_every=1,
    evaluate_every=12,
    save_every=12,
    keep_last=9,
    workers=0,
    stop_when_flat=3,
    batch_size=2,
    slow_step=0.01,
)


def events(path: Path) -> list[str]:
    return [event["message"] for event in lines(path, "events")]


def training(path: Path) -> list[dict[str, object]]:
    return [report for report in trajectory(path) if "order" in report]


def folder(path: Path) -> RunFolder:
    return RunFolder.create(path, {"settings": {}})


@pytest.fixture(scope="module", params=[1, 2])
def quiet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody asked for anything, on one process or two."""
    path = tmp_path_factory.mktemp("quiet") / f"of-{request.param}"
    run(RECIPE, path, size=request.param)
    return path


def size_of(path: Path) -> int:
    return json.loads((path / "config.json").read_text())["processes"]


@pytest.mark.by_default("1")
def test_a_run_that_saves_and_evaluates_on_request_computes_the_same(
    quiet: Path, tmp_path: Path
) -> None:
    size, asked = size_of(quiet), tmp_path / "asked"
    processes = Processes(RECIPE, asked, size=size)
    processes.wait_until(lambda: steps_reported(asked) >= 1)
    requests.ask(asked, "save")
    assert requests.ask(asked, "evaluate")[0] == "evaluate"
    processes.wait_until(lambda: any("requested" in event for event in events(asked)))
    assert processes.wait() == [0] * size, processes.said()
    assert not requests.file_of(asked).exists()
    assert training(asked) == training(quiet)
    assert_same(tensors(asked, 24), tensors(quiet, 24))
    more = {r["step"] for r in lines(asked) if "val/error" in r} - {12, 24}
    (step,) = more
    assert step in RunFolder.open(asked).steps()
    for file, name in (("best.json", "step"), ("checkpoints/step-00000024/state.json", "flat")):
        one, other = (json.loads((path / file).read_text())[name] for path in (asked, quiet))
        assert one == other


@pytest.mark.by_default("2")
def test_a_run_stopped_on_request_resumes_to_the_same_end(quiet: Path, tmp_path: Path) -> None:
    size, asked = size_of(quiet), tmp_path / "asked"
    processes = Processes(RECIPE, asked, size=size)
    processes.wait_until(lambda: steps_reported(asked) >= 1)
    requests.ask(asked, "stop")
    assert processes.wait() == [0] * size, processes.said()
    assert "by a request; the state is saved. Resume with" in processes.said()
    assert max(RunFolder.open(asked).steps()) == steps_reported(asked) < 24
    run(RECIPE, asked, "resume", size=size)
    assert training(asked) == training(quiet)
    assert_same(tensors(asked, 24), tensors(quiet, 24))


def test_a_request_to_a_dead_run_does_not_stop_the_next_one(tmp_path: Path) -> None:
    dead = tmp_path / "run"
    processes = Processes(RECIPE, dead)
    processes.wait_until(lambda: steps_reported(dead) >= 1)
    processes.signal(9)
    processes.wait()
    requests.ask(dead, "stop")
    run(RECIPE, dead, "resume")
    assert steps_reported(dead) == 24
    assert "a request to an earlier start of this run was dropped" in events(dead)


def test_what_is_asked_twice_adds_up_and_is_taken_once(tmp_path: Path) -> None:
    held = folder(tmp_path / "run")
    requests.ask(held.path, "stop")
    assert requests.ask(held.path, "save") == ["save", "stop"] == requests.pending(held.path)
    assert requests.take(held) == (["save", "stop"], "")
    assert requests.take(held) == ([], "")
    held.unlock()


def test_a_folder_that_no_process_started_takes_no_request(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="resume it first"):
        requests.ask(tmp_path, "save")


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"[" * 5000, b'{"start": 1}', b"\xff"])
def test_a_damaged_request_is_dropped(content: bytes, tmp_path: Path) -> None:
    held = folder(tmp_path / "run")
    requests.file_of(held.path).write_bytes(content)
    actions, sentence = requests.take(held)
    assert actions == []
    assert "dropped" in sentence
    assert not requests.file_of(held.path).exists()
    held.unlock()


@pytest.mark.parametrize("actions", [None, 3, "stop", ["erase", {}]])
def test_an_unknown_action_is_none(actions: object, tmp_path: Path) -> None:
    held = folder(tmp_path / "run")
    text = json.dumps({"start": held.start, "actions": actions})
    requests.file_of(held.path).write_text(text)
    assert requests.take(held) == ([], "")
    held.unlock()


def test_a_request_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    held = folder(tmp_path / "run")
    os.mkfifo(requests.file_of(held.path))
    assert requests.take(held)[0] == []
    held.unlock()


def test_actions_survive_as_a_number() -> None:
    for code in range(8):
        assert requests.to_code(requests.from_code(code)) == code
