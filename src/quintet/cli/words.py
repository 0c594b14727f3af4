"""What all commands share: the overview, flags out of dataclasses, answers in sentences."""

import ast
import dataclasses
import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from quintet import __version__, rooms
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError

HELP = f"""\
  quintet demo [--quick]                         all six trainers on built-in data, and a page

Quintet {__version__} trains generative models of meshes, video, images, music and speech.

  quintet list                                   what can be trained
  quintet train image/vqgan_tiny --run runs/a    train on built-in data
  quintet train image/vqgan PHOTOS --run runs/b  train on a folder of your own
  quintet train mesh/autoencoder --run runs/c    meshes take two steps: codes first,
  quintet train mesh/transformer --autoencoder runs/c --run runs/d
  quintet resume runs/b --steps 20000            go on, exactly where it stopped
  quintet evaluate runs/b [FOLDER]               measure on held-out data, or on a folder
  quintet sample runs/b photo.jpg --out out      use the model
  quintet sample runs/d --text "a table with three legs" --count 8 --format obj
  quintet sample runs/e songs --text "a slow minor melody on strings" --top 5
  quintet sample runs/f --text "ba do ki" --voice me.wav --out spoken.wav
  quintet shard PHOTOS packed                    pack a folder into few large files to train from
  quintet import old.pt looked-at                the tensors of an old .pt file, and nothing else
  quintet export runs/b model                    weights, configuration and a model card
  quintet report runs/b [RUN …]                  one page that shows a run, or several
  quintet replay runs/b --step 1200              take one step again and show what was in it
  quintet doctor image PHOTOS                    what is wrong with a folder; alone: the machine
  quintet doctor image/vqgan                     whether a recipe fits, and how long it would take
  quintet doctor runs/b                          whether everything of a run is sound

Each command explains itself: quintet train --help, quintet train image/vqgan --help.
On several GPUs: torchrun --nproc-per-node 8 -m quintet -- train image/vqgan PHOTOS --run runs/b
--debug shows the traceback of an error.
"""
ASKING = ("-h", "--help")


def fail(message: str) -> int:
    say(message)
    return 2


def say(message: str) -> None:
    """Every process comes here alike; one of them speaks."""
    if is_main():
        print(f"quintet: {message}", file=sys.stderr, flush=True)


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def parse(kind: Any, given: list[str], command: str, shown: str | None = None) -> Any:
    """Flags out of a dataclass. Help begins with examples: of the command, or those `shown`."""
    import tyro  # a tenth of a second that the overview does without

    if any(word in ASKING for word in given):
        print(f"{shown or examples(command)}\n\n{about(kind)}\n")
    return tyro.cli(kind, args=given, prog=f"quintet {command}", description="")


def about(kind: Any) -> str:
    """What stands in a docstring before its arguments, as wide as the screen."""
    width = min(100, shutil.get_terminal_size().columns)
    paragraphs = kind.__doc__.partition("Args:")[0].strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(text.split()), width) for text in paragraphs)


def examples(command: str) -> str:
    """The lines of HELP that show this command."""
    begin = f"  quintet {command.split()[0]} "
    return "\n".join(line for line in HELP.splitlines() if f"{line} ".startswith(begin))


def sentences(kind: type) -> dict[str, str]:
    """What stands under each field of a dataclass, with those that it inherits."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        for line, following in pairwise(_body(owner.__module__, owner.__name__)):
            if isinstance(line, ast.AnnAssign) and isinstance(following, ast.Expr):
                text = str(ast.literal_eval(following.value))
                found[ast.unparse(line.target)] = " ".join(text.split())
    return found


@functools.cache
def _body(module: str, name: str) -> list[ast.stmt]:
    """Of a dataclass of Quintet; inspect.getsource would read whole files many times over."""
    place = sys.modules[module].__file__ if module.startswith("quintet.") else None
    tree = ast.parse(Path(place).read_text(encoding="utf-8")) if place else ast.Module([], [])
    classes = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return next((found.body for found in classes), [])


def each_field(settings: Any, change: Callable[[Any, Any], Any]) -> Any:
    """The same settings, with every field at whatever depth as `change(field, value)` gives it."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        nested = dataclasses.is_dataclass(value)
        changes[field.name] = each_field(value, change) if nested else change(field, value)
    return dataclasses.replace(settings, **changes)


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
