"""Shared by all commands: the overview, the parsing of flags, and messages."""

import dataclasses
import os
import shutil
import textwrap
import types
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from quintet import __version__, rooms
from quintet.console import say_last
from quintet.engine.config import Recipe, is_gone
from quintet.engine.errors import RunError

HELP = f"""\
  quintet demo                                   ready models and a training run, on one page

Quintet {__version__} trains generative models. Their families, by room:
FAMILIES

  quintet list                                   the recipes, _tiny ones for a CPU; trained models
  quintet sample ready/mesh --text "a tall cone" --out out      use a model of the package
  quintet doctor image PHOTOS                    check a data folder; alone: the machine
  quintet doctor image/vqgan                     whether a recipe fits, and how long it would take
  quintet pack PHOTOS packed                     pack a folder into few large files to train from
  quintet train image/vqgan_tiny --run runs/a    train on built-in data
  quintet train image/vqgan PHOTOS --run runs/b  train on a folder of your own
  quintet train mesh/autoencoder --run runs/c    meshes take two steps: codes first,
  quintet train mesh/transformer --autoencoder runs/c --run runs/d
  quintet encode runs/c SHAPES --out coded       data as codes in shards, to train a generator from
  quintet train music/mulan SONGS --run runs/e   a joint embedding of music and text
  quintet train speech/voicebox VOICES --run runs/f
  quintet resume runs/b --steps 20000            resume exactly where it stopped
  quintet launch slurm image/vqgan --run runs/b  a script for several nodes; or kubernetes, skypilot
  quintet report runs/b [RUN …]                  one page that shows a run, or several
  quintet watch runs/b                           that page live in a browser, with buttons
  quintet evaluate runs/b [FOLDER]               metrics on validation data, or on a folder
  quintet evaluate runs/b --judges psnr fid      external metrics on the run's outputs
  quintet evaluate --pair ORIGINALS OTHERS       judge any two folders of files
  quintet judges                                 list the judges and what they need
  quintet compare PHOTOS runs/a runs/b           image tokenizers side by side; or a.json b.json
  quintet sample runs/b photo.jpg --out out      use the model
  quintet sample runs/d --text "a table with three legs" --count 8 --format obj
  quintet sample runs/f --text "ba do ki" --voice me.wav --out spoken.wav
  quintet serve ready/image runs/f               a page to try models, and endpoints for clients
  quintet export runs/b model                    weights, configuration and a model card
  quintet replay runs/b --step 1200              repeat one step and show its samples
  quintet doctor runs/b                          check a run folder for damage

Help of each: quintet train --help, quintet train image/vqgan --help. --debug shows tracebacks.
On several GPUs: torchrun --nproc-per-node 8 -m quintet -- train image/vqgan PHOTOS --run runs/b
"""
ASKING = ("-h", "--help")
Step = int | Literal["best"] | None
"""A checkpoint of a run, by its step or as the best one."""


def overview() -> str:
    """HELP with the families there are."""
    lines: list[str] = []
    for room in rooms.rooms():
        recipes = (recipe() for recipe in rooms.Room(room).recipes.values())
        families = dict.fromkeys(rooms.family_of(recipe).name for recipe in recipes)
        lines.append(f"  {room:<8} {', '.join(families)}")
    return HELP.replace("FAMILIES", "\n".join(lines))


def fail(message: str) -> int:
    say(message)
    return 2


def say(message: str) -> None:
    """Print from the main process; all ranks get here with the same message."""
    if is_main():
        say_last(f"quintet: {message}")


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def parse(kind: Any, arguments: list[str], command: str, shown: str | None = None) -> Any:
    """Parse flags into a dataclass. Help begins with `shown`, or the examples of the command."""
    import tyro  # deferred: takes 0.1 s, which the overview can save

    name_values(kind)

    if any(word in ASKING for word in arguments):
        print(f"{shown or examples(command)}\n\n{about(kind)}\n")
    return tyro.cli(kind, args=arguments, prog=f"quintet {command}", description="")


def group(kind: Any, about: str) -> Any:
    """The flags of a dataclass among those of another. Where tyro is told what they are about, it
    does not search source files for it."""
    import tyro

    return Annotated[kind, tyro.conf.arg(name="", help=about)]


def name_values(kind: Any) -> None:
    """Show `--step INT` in help where tyro would show `--step {None}|INT`."""
    import tyro

    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.type):
            name_values(field.type)
        elif field.name == "run":
            kind.__annotations__[field.name] = Annotated[field.type, tyro.conf.arg(metavar="RUN")]
        elif field.type is Step:
            kind.__annotations__[field.name] = Annotated[Step, tyro.conf.arg(metavar="STEP")]
        elif optional(field.type):
            word = tyro.conf.arg(metavar=optional(field.type))
            kind.__annotations__[field.name] = Annotated[field.type, word]


def optional(kind: Any) -> str | None:
    """`INT` for `int | None`; None for other types."""
    if get_origin(kind) is types.UnionType and get_args(kind)[1:] == (types.NoneType,):
        return getattr(get_args(kind)[0], "__name__", "VALUE").upper()
    return None


def about(kind: Any) -> str:
    """A docstring without its arguments, wrapped to the width of the terminal."""
    width = min(100, shutil.get_terminal_size().columns)
    paragraphs = kind.__doc__.partition("Args:")[0].strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(text.split()), width) for text in paragraphs)


def examples(command: str) -> str:
    """The lines of HELP that show this command."""
    begin = f"  quintet {command.split()[0]} "
    return "\n".join(line for line in HELP.splitlines() if f"{line} ".startswith(begin))


def check_positive(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise RunError(f"{flag} is {value}; it must be above 0")


def check_step(step: Step) -> None:
    """Refuse negative steps: `RUN@-1` would be read as the name of a run."""
    if isinstance(step, int) and step < 0:
        raise RunError(f"--step is {step}; give the step of a checkpoint, or best")


def need_data(recipe: Recipe, run: Path, remedy: str, moved: str) -> None:
    """Refuse a Python data set with the remedy, and a missing folder with the command that takes it
    at its new place."""
    if recipe.data is not None and recipe.data.startswith("python:"):
        raise RunError(f"{run} was trained on a Python data set; {remedy}")
    if is_gone(recipe.data):
        raise RunError(f"{recipe.data}, the data of {run}, is gone; if it was moved: {moved}")


def recorded(run: Path) -> tuple[str, Any]:
    from quintet.engine.runs.folder import RunFolder

    folder = RunFolder.open(run)
    return rooms.recorded(folder.about, folder.path)


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
        for n, f in rooms.Room(room).recipes.items()
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {text.splitlines()[0]}" for name, text in rows)
