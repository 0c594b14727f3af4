"""`quintet doctor`: the machine, a recipe before it is trained, a folder of data, a run."""

import dataclasses
import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet import rooms
from quintet.cli.common import parse, table
from quintet.cli.train import spell_compile, with_absolute_paths
from quintet.engine.config import ConfigError, resolved
from quintet.engine.errors import RunError
from quintet.media.errors import BadFile, printable

PATIENCE = 300.0
"""Seconds that one measurement of a recipe may take."""


@dataclasses.dataclass(kw_only=True)
class Doctor:
    """Say what would hurt training: of this machine, of a recipe, of a folder of data, or of a run.

    Without a word, the machine. With a recipe (and a folder), whether it fits into memory, how
    long it would take and how much disk; every flag of `train` works here. With a room and a
    folder, what is in the folder. With a run, whether everything in its folder is sound.
    """

    what: tyro.conf.Positional[str | None] = None
    """A recipe such as image/vqgan, a room such as image, or a run's folder."""
    data: tyro.conf.Positional[Path | None] = None
    """The folder of data."""


def doctor(given: list[str]) -> None:
    if given and given[0] in rooms.names():
        about_recipe(given[0], given[1:])
        return
    asked = parse(Doctor, given, "doctor")
    if asked.what is None:
        about_machine()
    elif asked.what in rooms.rooms() and asked.data is not None:
        from quintet.cli.doctor.data import about_folder

        about_folder(asked.what, asked.data)
    elif asked.data is None and (Path(asked.what) / "config.json").exists():
        about_run(Path(asked.what))
    else:
        raise RunError(unknown(asked.what, asked.data))


def unknown(what: str, data: Path | None) -> str:
    """What the word might have been."""
    room, _, name = what.partition("/")
    if what in rooms.rooms():
        return f"name the folder that is to be checked: quintet doctor {what} FOLDER"
    if room in rooms.rooms() and name and not Path(what).is_dir():
        listed = ", ".join(f"{room}/{each}" for each in rooms.recipes(room))
        return f"there is no recipe '{what}'; this room has {listed}"
    if data is None and Path(what).is_dir():
        first = rooms.rooms()[0]
        return (
            f"{what} holds no config.json, so it is no run; to check it as data name the room "
            f"first: quintet doctor {first} {what} (there are {', '.join(rooms.rooms())})"
        )
    return (
        f"'{printable(what)}' is neither a room ({', '.join(rooms.rooms())}), nor a recipe "
        "('quintet list' shows them), nor the folder of a run"
    )


def about_machine() -> None:
    from rich.markup import escape

    from quintet.engine.tools.doctor import complaints, disk_speed, machine

    here = Path()
    speed = disk_speed(here)
    table({name: escape(value) for name, value in machine(here, speed).items()})
    found = complaints(here, speed)
    for sentence in found:
        print(f"- {sentence}")
    if not found:
        print("Nothing here would hurt training.")


# -- a recipe -------------------------------------------------------------------------------


def about_recipe(name: str, given: list[str]) -> None:
    from quintet.engine.tools.auto_batch import remedies
    from quintet.engine.tools.estimate import fits, forecast

    recipe = asked_recipe(name, given)
    with tempfile.TemporaryDirectory() as place:
        facts = measured(name, recipe, Path(place))
    free = shutil.disk_usage(".").free
    rows = forecast(recipe, facts, free)
    table(rows)
    if facts.get("given_up"):
        minutes = PATIENCE / 60
        print(f"The measurement after these took more than {minutes:.0f} minutes and was left out.")
    if "peak" in facts or facts.get("exhausted"):
        advice = remedies(recipe, facts.get("precision", "fp32"))
        if not fits(facts):
            raise RunError(f"{name} does not fit into the memory of this machine. {advice}")
    if rows.get("disk", "").endswith("NOT ENOUGH"):
        raise RunError(f"the disk is too small for {name}; lower --keep-last, or clear it")


def asked_recipe(name: str, given: list[str]) -> Any:
    """The recipe with the flags that `train` would take."""
    default = rooms.recipe_function(name)()
    kind = dataclasses.make_dataclass(
        "DoctorRecipe",
        [
            ("data", tyro.conf.Positional[str | None], None),
            ("settings", Annotated[type(default), tyro.conf.arg(name="")], default),
        ],
    )
    kind.__doc__ = (
        "Measure what a run would take: memory, time and disk, by a few dry steps.\n\nArgs:\n"
        "    data: Folder of data; without it the built-in data is used.\n"
        "    settings: As for train."
    )
    asked = parse(kind, spell_compile(given), f"doctor {name}")
    for stage in default.stages:
        if getattr(asked.settings, stage) is None:
            flag = stage.replace("_", "-")
            raise RunError(f"{name} is built on a trained {stage}: give --{flag} RUN")
    data = asked.data if asked.data is not None else asked.settings.data
    return dataclasses.replace(with_absolute_paths(asked.settings), data=resolved(data))


def measured(name: str, recipe: Any, place: Path) -> dict[str, Any]:
    """What a process of its own says of the recipe: its memory is the recipe's alone, and where
    the system ends it for lack of memory, this one lives on to tell."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=measure_here, args=(name, recipe, place, theirs))
    child.start()
    theirs.close()
    facts: dict[str, Any] = {}
    try:
        while ours.poll(PATIENCE):
            facts |= json.loads(ours.recv_bytes())
        facts["given_up"] = True
    except EOFError:
        child.join(30)
    finally:
        child.kill()
        child.join()
    if "problem" in facts:
        raise RunError(facts["problem"])
    if child.exitcode == -signal.SIGKILL and not facts.get("given_up"):
        facts["exhausted"] = True
    elif child.exitcode and not facts.get("given_up"):
        raise RunError(f"the dry step of {name} failed; see its output above")
    return facts


def measure_here(name: str, recipe: Any, place: Path, pipe: Any) -> None:
    from quintet.engine.machine import memory
    from quintet.engine.machine.world import shut_down
    from quintet.engine.tools.estimate import measure

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's to end this process

    def say(facts: dict[str, Any]) -> None:
        pipe.send_bytes(json.dumps(facts).encode())

    try:
        measure(lambda settings: rooms.build(name, settings), recipe, place, say, rooms.load)
    except (RunError, ConfigError, BadFile, ImportError) as error:
        say({"problem": str(error)})
    except Exception as error:
        if not memory.ran_out(error):
            raise
        say({"exhausted": True})
    shut_down()


# -- a run ----------------------------------------------------------------------------------


def about_run(run: Path) -> None:
    from quintet.engine.runs.verify import verify

    verdict = verify(run, lambda about: task_of(about, run))
    for finding in verdict.findings:
        kind = "fault" if finding.fault else "note"
        print(f"{kind}: {printable(finding.path)}: {printable(finding.problem)}")
        print(f"  -> {printable(finding.repair)}")
    count = len(verdict.sound)
    newest = f"the newest at step {verdict.sound[-1]}" if count else "so it begins at step 0"
    print(f"{run}: {count} sound checkpoints, {newest}")
    if verdict.faults:
        raise RunError(f"{run} has {len(verdict.faults)} faults; each is named with its repair")
    print("Everything in it is sound.")


def task_of(about: dict[str, Any], run: Path) -> Any:
    """The task of a run, on the host; None where only Python knows the model."""
    if "model" in about:
        raise RunError("it is an exported model, not a run; name the run that it came from")
    if about.get("recipe") is None:
        return None
    name, recipe = rooms.recorded(about, run)
    try:
        return rooms.build(name, recipe, run)
    except (ConfigError, BadFile, ValueError, OSError) as error:
        raise RunError(f"the networks of {name} cannot be built: {error}") from None
