"""What all commands share: the overview, flags out of dataclasses, answers in sentences."""

import os
import sys
from pathlib import Path
from typing import Any

import tyro

from quintet import __version__, rooms
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError

HELP = f"""Quintet {__version__} trains generative models of meshes, video, images, music, speech.

  quintet list                                   what can be trained
  quintet demo                                   train on built-in data, with pictures to look at
  quintet train image/vqgan_tiny --run runs/a    train on built-in data
  quintet train image/vqgan PHOTOS --run runs/b  train on a folder of your own
  quintet resume runs/b --steps 20000            go on, exactly where it stopped
  quintet evaluate runs/b [FOLDER]               measure on held-out data, or on a folder
  quintet train mesh/autoencoder --run runs/c    meshes take two steps: codes first,
  quintet train mesh/transformer --autoencoder runs/c --run runs/d
  quintet sample runs/b photo.jpg --out out      use the model
  quintet sample runs/d --text "a table with three legs" --count 8 --format obj
  quintet sample runs/e songs --text "a slow minor melody on strings" --top 5
  quintet sample runs/f --text "ba do ki" --voice me.wav --out spoken.wav
  quintet export runs/b model                    weights, configuration and a model card
  quintet report runs/b                          one page that shows the run
  quintet replay runs/b --step 1200              take one step again and show what was in it
  quintet doctor [image PHOTOS]                  what the machine has; what is wrong with a folder

Each command explains itself: quintet train --help, quintet train image/vqgan --help.
On several GPUs: torchrun --nproc-per-node 8 -m quintet -- train image/vqgan PHOTOS --run runs/b
--debug shows the traceback of an error.
"""


def fail(message: str) -> int:
    say(message)
    return 2


def say(message: str) -> None:
    """Every process comes here alike; one of them speaks."""
    if is_main():
        print(f"quintet: {message}", file=sys.stderr, flush=True)


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def parse(kind: Any, given: list[str], command: str) -> Any:
    about = f"{kind.__doc__.partition('Args:')[0].rstrip()}\n\n{examples(command)}"
    return tyro.cli(kind, args=given, prog=f"quintet {command}", description=about)


def examples(command: str) -> str:
    """The lines of HELP that show this command."""
    begin = f"  quintet {command.split()[0]}"
    return "\n".join(["examples:", *(s for s in HELP.splitlines() if s.startswith(begin))])


def resolved(path: str | None) -> str | None:
    """So that the run can go on from another working folder."""
    return None if path is None else str(Path(path).resolve())


def need_data(recipe: Recipe, run: Path, remedy: str) -> None:
    if recipe.data is not None and recipe.data.startswith("python:"):
        raise RunError(f"{run} reads a data set from Python; {remedy}")


def recorded(run: Path) -> tuple[str, Any]:
    from quintet.engine.folder import RunFolder

    if not run.is_dir():
        raise RunError(f"there is no run at {run}")
    return rooms.recorded(RunFolder.open(run).about, run)


def table(rows: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("measure", "value")
    for name, value in rows.items():
        shown.add_row(name, f"{value:.5g}" if isinstance(value, float) else str(value))
    Console().print(shown)


def listing() -> str:
    rows = [
        (f"{room}/{n}", f.__doc__ or "")
        for room in rooms.rooms()
        for n, f in rooms.recipes(room).items()
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {text.splitlines()[0]}" for name, text in rows)
