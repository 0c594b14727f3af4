"""Scripts run as a user runs them, in a process of their own that starts quickly: see harness."""

import multiprocessing
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from harness import Said, free_port

_context = multiprocessing.get_context("forkserver")


def _child(
    script: Path, words: list[str], folder: Path, action: Any, environment: dict[str, str]
) -> None:
    for handle, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), handle)
    os.chdir(folder)
    os.environ |= environment
    sys.argv = [str(script), *words]
    torch.set_num_threads(1)
    warnings.simplefilter(action)
    status = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_script(script: Path, *words: object, folder: Path, action: str = "error") -> Said:
    """What `python SCRIPT WORDS…` answers in that folder; warnings are errors unless told."""
    return run_on([folder], script, *words, action=action)[0]


def run_on(folders: list[Path], script: Path, *words: object, action: str = "error") -> list[Said]:
    """The same on several processes that form a group, each in a folder of its own."""
    given, size, port = [str(word) for word in words], len(folders), free_port()
    children: list[Any] = []
    for rank, folder in enumerate(folders):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        names = {name: str(number) for name, number in place.items()}
        environment = names | {"MASTER_ADDR": "127.0.0.1"} if size > 1 else {}
        args = (script, given, folder, action, environment)
        children.append(_context.Process(target=_child, args=args))
        children[-1].start()
    for child, folder in zip(children, folders):
        child.join(240)
        if child.exitcode is None:
            for other in children:
                other.kill()
            raise AssertionError(f"{script.name} hung:\n{(folder / 'err').read_text()}")
    return [
        Said(child.exitcode, (folder / "out").read_text(), (folder / "err").read_text())
        for child, folder in zip(children, folders)
    ]
