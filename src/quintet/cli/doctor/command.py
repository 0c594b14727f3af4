"""`quintet doctor`: check the machine, a recipe before training, a data folder, or a run."""

import dataclasses
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

from quintet import rooms
from quintet.cli.common import group, parse, say, table
from quintet.cli.train import spell_out, with_absolute_paths
from quintet.cli.trained_on import contents_of_run, value_of
from quintet.engine.config import ConfigError, resolved
from quintet.engine.errors import RunError
from quintet.media.errors import BadFile, printable
from quintet.suggest import among, command

TIMEOUT = 300.0
"""Seconds that one measurement of a recipe may take."""
START = "spawn"
"""How its process is started."""


@dataclasses.dataclass(kw_only=True)
class Doctor:
    """Find problems of the machine, a recipe, data or a run before they interrupt training.

    Without arguments, check the machine. With a recipe (and a folder), estimate memory, time and
    disk space; all flags of `train` work here. With a room and a folder, check the files of the
    folder; a published corpus needs no room. With a run, check that its folder is intact.
    """

    what: tyro.conf.Positional[str | None] = None
    """A recipe such as image/vqgan, a room such as image, or the folder of a run."""
    data: tyro.conf.Positional[str | None] = None
    """The data folder, or the address of shards."""
    aligner: Path | None = None
    """A trained run of the speech room: list the recordings whose transcripts it doubts."""


def doctor(arguments: list[str]) -> None:
    if arguments and arguments[0] in rooms.names():
        check_recipe(arguments[0], arguments[1:])
        return
    args = parse(Doctor, arguments, "doctor")
    if args.what is None:
        check_machine()
    elif args.what in rooms.rooms() and args.data is not None:
        from quintet.cli.doctor.data import check_folder

        check_folder(args.what, args.data, args.aligner)
    elif args.data is None and (Path(args.what) / "config.json").exists():
        check_run(Path(args.what))
    elif args.data is None and (room := recognising_room(Path(args.what))):
        from quintet.cli.doctor.data import check_folder

        check_folder(room, Path(args.what), args.aligner)
    else:
        raise RunError(unknown(args.what, args.data))


def recognising_room(folder: Path) -> str | None:
    """The room that knows the layout of a folder, such as that of a published corpus."""
    if not folder.is_dir():
        return None
    for room in rooms.rooms():
        layout = rooms.room_named(room).data.Folder.layout
        if layout is not None and layout(folder):
            return room
    return None


def unknown(what: str, data: str | None) -> str:
    """The error for an argument that is no room, recipe or run."""
    room, _, name = what.partition("/")
    if what in rooms.rooms():
        return f"name the folder to check: {command('doctor', what, 'FOLDER')}"
    if room in rooms.rooms() and name and not Path(what).is_dir():
        listed = [f"{room}/{each}" for each in rooms.Room(room).recipes]
        return f"there is no recipe '{what}'; {among(what, listed)}"
    if data is None and Path(what).is_dir():
        first = rooms.rooms()[0]
        return (
            f"{what} holds no config.json, so it is not a run; to check it as data, name the room "
            f"first: {command('doctor', first, what)} (rooms: {', '.join(rooms.rooms())})"
        )
    return (
        f"'{printable(what)}' is neither a room ({', '.join(rooms.rooms())}), nor a recipe "
        f"(see '{command('list')}'), nor the folder of a run"
    )


def check_machine() -> None:
    from rich.markup import escape

    from quintet.engine.tools.doctor import disk_speed, machine, problems

    here = Path()
    speed = disk_speed(here)
    table({name: escape(value) for name, value in machine(here, speed).items()})
    sentences = problems(here, speed)
    for sentence in sentences:
        print(f"- {sentence}")
    if not sentences:
        print("No problems found.")


# -- a recipe -------------------------------------------------------------------------------


def check_recipe(name: str, arguments: list[str]) -> None:
    from quintet.engine.tools.auto_batch import remedies
    from quintet.engine.tools.estimate import fits, forecast

    recipe = parse_recipe(name, arguments)
    with tempfile.TemporaryDirectory() as folder:
        facts = measured(name, recipe, Path(folder))
    rows = forecast(recipe, facts, shutil.disk_usage(".").free)
    table(rows)
    if facts.get("timed_out"):
        minutes = TIMEOUT / 60
        say(f"the next measurement took more than {minutes:.0f} minutes and was skipped")
    if {"peak", "exhausted"} & set(facts) and not fits(facts):
        advice = remedies(recipe, facts.get("precision", "fp32"))
        raise RunError(f"{name} does not fit into the memory of this machine. {advice}")
    if rows.get("disk", "").endswith("NOT ENOUGH"):
        raise RunError(f"the disk is too small for {name}; lower --keep-last, or free some space")


def parse_recipe(name: str, arguments: list[str]) -> Any:
    """The recipe with the flags of `train`."""
    default = rooms.recipe_function(name)()
    kind = dataclasses.make_dataclass(
        "DoctorRecipe",
        [
            ("data", tyro.conf.Positional[str | None], None),
            ("settings", group(type(default), "As for train."), default),
        ],
    )
    kind.__doc__ = (
        "Measure the memory, time and disk of a run with a few dry steps.\n\nArgs:\n"
        "    data: Data folder; without it the built-in data is used."
    )
    args = parse(kind, spell_out(arguments, default.stages), f"doctor {name}")
    data = args.data if args.data is not None else args.settings.data
    return dataclasses.replace(with_absolute_paths(args.settings), data=resolved(data))


def measured(name: str, recipe: Any, folder: Path) -> dict[str, Any]:
    """Measure a recipe in a separate process, so that its memory is that of the recipe alone and
    the system may kill it for lack of memory."""
    import multiprocessing

    context = multiprocessing.get_context(START)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=measure_here, args=(recipe, folder, sender))
    child.start()
    sender.close()  # otherwise the end of the child would not raise EOFError
    facts: dict[str, Any] = {}
    try:
        while receiver.poll(TIMEOUT):
            facts |= json.loads(receiver.recv_bytes())
        facts["timed_out"] = True
    except EOFError:
        child.join(30)
    finally:
        child.kill()
        child.join()
    if "problem" in facts:
        raise RunError(facts["problem"])
    # Linux kills a process that exhausts the memory without further notice.
    if child.exitcode == -signal.SIGKILL and not facts.get("timed_out"):
        facts["exhausted"] = True
    elif child.exitcode and not facts.get("timed_out"):
        raise RunError(f"the dry step of {name} failed; see its output above")
    return facts


def measure_here(recipe: Any, folder: Path, pipe: Any) -> None:
    from quintet.engine.machine import memory
    from quintet.engine.machine.world import shut_down
    from quintet.engine.tools.estimate import measure

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process

    def report(facts: dict[str, Any]) -> None:
        pipe.send_bytes(json.dumps(facts).encode())

    try:
        measure(rooms.build, recipe, folder, report, rooms.load)
    except (RunError, ConfigError, BadFile, ImportError) as error:
        report({"problem": str(error)})
    except Exception as error:
        if not memory.ran_out(error):
            raise
        report({"exhausted": True})
    shut_down()


# -- a run ----------------------------------------------------------------------------------


def check_run(run: Path) -> None:
    from quintet.engine.runs.verify import verify

    verdict = verify(run, lambda about: task_of(about, run))
    verdict.findings.extend(check_held_out(run))
    for finding in verdict.findings:
        kind = "fault" if finding.fault else "note"
        print(f"{kind}: {printable(finding.path)}: {printable(finding.problem)}")
        print(f"  -> {printable(finding.repair)}")
    count = len(verdict.intact)
    newest = f"the newest at step {verdict.intact[-1]}" if count else "so it starts at step 0"
    print(f"{run}: {count} intact checkpoints, {newest}")
    if verdict.faults:
        raise RunError(f"{run} has {len(verdict.faults)} faults; see the repairs above")
    print("No faults found.")


def check_held_out(run: Path) -> Iterator[Any]:
    """A fault where validation samples were trained on, unless the user wanted it."""
    from quintet.engine.data.record import NAME
    from quintet.engine.runs.folder import RunFolder
    from quintet.engine.runs.verify import Finding
    from quintet.media.held_out import shared

    try:
        recipe = rooms.recorded(RunFolder.open(run).about, run)[1]
    except RunError:
        return  # of Python, or named as damaged
    train, valid = (contents_of_run(run, recipe, split) for split in ("train", "valid"))
    count = 0 if train is None or valid is None else int(shared(valid, train).sum())
    if count and valid is not None:
        yield Finding(
            str(run / NAME),
            f"{count} of {valid.number} validation samples were trained on, by path or by content: "
            "validation metrics are optimistic",
            "start a new run, which leaves them out of training",
            fault=bool(value_of(recipe, "exclude_held_out")),
        )


def task_of(about: dict[str, Any], run: Path) -> Any:
    """The task of a run, on the host; None for a run of a custom model from Python."""
    if "model" in about:
        raise RunError("it is an exported model, not a run; name the run it was exported from")
    if about.get("recipe") is None:
        return None
    name, recipe = rooms.recorded(about, run)
    try:
        return rooms.build(recipe, run)
    except (ConfigError, BadFile, ValueError, OSError) as error:
        raise RunError(f"the networks of {name} cannot be built: {error}") from None
