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

from harness import Said

_context = multiprocessing.get_context("forkserver")


def _child(script: Path, words: list[str], folder: Path, action: Any) -> None:
    for handle, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), handle)
    os.chdir(folder)
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
    given = [str(word) for word in words]
    child = _context.Process(target=_child, args=(script, given, folder, action))
    child.start()
    child.join(240)
    if child.exitcode is None:
        child.kill()
        raise AssertionError(f"{script.name} hung:\n{(folder / 'err').read_text()}")
    return Said(child.exitcode, (folder / "out").read_text(), (folder / "err").read_text())
