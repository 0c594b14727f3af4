"""An error in what the server imports is swallowed by it, and every child would import it anew."""

import multiprocessing
import sys
from pathlib import Path

import pytest

import harness
from campaign.children import Program
from quintet import rooms


def modules() -> set[str]:
    return set(sys.modules)


def test_children_find_everything_imported() -> None:
    assert harness.TESTS  # it tells the server where tests are
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        held = pool.apply(modules)
    families = [family for room in rooms.rooms() for family in rooms.Room(room).families]
    assert {f"quintet.{family.room}.{family.name}.task" for family in families} <= held
    others = {"quintet.cli.export", "torch._inductor", "torch.utils.tensorboard", "typeguard"}
    assert others | {"harness", "many", "preload"} <= held


def answer(folder: Path, words: list[str], fresh: bool) -> tuple[list[int | None], str]:
    program = Program(words, folder / "run", fresh=fresh, log=folder / "said.log")
    return program.wait(), program.said().replace(str(folder), "FOLDER")


@pytest.mark.slow  # two processes that import everything
def test_a_forked_command_answers_and_trains_as_a_fresh_process(tmp_path: Path) -> None:
    words = ["--steps", "2", "--batch-size", "2", "--workers", "0", "--device", "cpu"]
    words += ["--images.valid-limit", "2", "--images.size", "32", "32", "--trackers"]
    statuses, refusals, bytes_of = [], [], []
    for kind in ("forked", "fresh"):
        folder = tmp_path / kind
        run = folder / "run"
        train = ["train", "image/vqgan_tiny", "--run", str(run), *words]
        statuses.append(answer(folder, train, kind == "fresh")[0])
        refusals.append(answer(folder, train, kind == "fresh"))
        files = sorted(run.glob("checkpoints/*/*.safetensors"))
        bytes_of.append({file.relative_to(run): file.read_bytes() for file in files})
    assert statuses == [[0], [0]]
    assert harness.trajectory(tmp_path / "forked/run") == harness.trajectory(tmp_path / "fresh/run")
    assert bytes_of[0]
    assert bytes_of[0] == bytes_of[1]
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == [2]
