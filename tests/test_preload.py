"""An error in what the server imports is swallowed by it, and every child would import it anew."""

import multiprocessing
import sys

import harness
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
