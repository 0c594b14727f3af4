"""The command line. Every answer is a sentence; a traceback comes only with --debug."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from quintet import __version__, rooms
from quintet.engine.config import ConfigError, Recipe
from quintet.engine.errors import RunError, Stopped
from quintet.media.errors import BadFile

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


def main(arguments: list[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [word for word in given if word != "--debug"]
    try:
        status = run_command(given)
    except (RunError, ConfigError, BadFile) as error:
        if debug:
            raise
        status = fail(str(error))
    except Stopped as stop:
        say(str(stop))
        status = stop.status
    except ImportError as error:
        if debug or "quintet[" not in str(error):  # an extra that is not installed says its name
            raise
        # Out of a worker process it comes with the traceback that it had there.
        status = fail(str(error).strip().splitlines()[-1].removeprefix("ImportError: "))
    except OSError as error:
        if debug or error.errno is None:
            raise
        where = f": {error.filename}" if error.filename else ""
        status = fail(f"{os.strerror(error.errno)}{where}")
    sys.stdout.flush()
    sys.exit(status)


def run_command(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if given[0] == "--version":
        print(__version__)
        return 0
    command = COMMANDS.get(given[0])
    if command is None:
        raise RunError(f"there is no command '{given[0]}'; there are {', '.join(COMMANDS)}")
    command(given[1:])
    return 0


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


# -- train and resume ---------------------------------------------------------------------------


def train(given: list[str]) -> None:
    """Train a recipe."""
    if not given or given[0].startswith("-"):
        print(
            "usage: quintet train RECIPE [DATA] --run DIR [--steps N …]\n\nrecipes:\n"
            f"{listing()}\n\n{examples('train')}\n\n"
            "quintet train RECIPE --help shows every setting."
        )
        if not given or given[0] not in ("-h", "--help"):
            raise RunError("name a recipe first, for example image/vqgan_tiny")
        return
    name, rest = given[0], spell_compile(given[1:])
    default = rooms.recipe_function(name)()
    kind = dataclasses.make_dataclass(
        "Train",
        [
            ("data", tyro.conf.Positional[str | None], None),
            ("run", Path, Path("runs") / name.replace("/", "-")),
            ("go_on", Annotated[bool, tyro.conf.arg(name="continue")], False),
            ("settings", Annotated[type(default), tyro.conf.arg(name="")], default),
        ],
    )
    kind.__doc__ = (
        f"{rooms.recipe_function(name).__doc__}\n\nArgs:\n"
        "    data: Folder of data; without it the built-in data is used.\n"
        "    run: Folder of the new run.\n"
        "    go_on: Start the run, or go on with it if it is there.\n"
        "    settings: What the run is made of."
    )
    asked = parse(kind, rest, f"train {name}")
    data = asked.data if asked.data is not None else asked.settings.data
    recipe = dataclasses.replace(with_whole_paths(asked.settings), data=resolved(data))
    launch(name, recipe, asked.run, "continue" if asked.go_on else "new")


def with_whole_paths(settings: Any) -> Any:
    """The same settings, at whatever depth, with the paths among them resolved."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = with_whole_paths(value)
        elif field.metadata.get("path"):
            changes[field.name] = resolved(value)
    return dataclasses.replace(settings, **changes)


def resolved(path: str | None) -> str | None:
    """So that the run can go on from another working folder."""
    return None if path is None else str(Path(path).resolve())


def spell_compile(given: list[str]) -> list[str]:
    """--compile and --no-compile, for the setting that is also 'auto'."""
    words: list[str] = []
    for index, word in enumerate(given):
        following = given[index + 1] if index + 1 < len(given) else ""
        if word == "--no-compile":
            words += ["--compile", "off"]
        elif word == "--compile" and following not in ("on", "off", "auto"):
            words += ["--compile", "on"]
        else:
            words.append(word)
    return words


def launch(name: str, recipe: Recipe, run: Path, mode: Any) -> None:
    from quintet.engine.launch import start
    from quintet.engine.pretrained import initial_weights
    from quintet.engine.world import shut_down
    from quintet.report import ReportSink

    try:
        step = start(
            lambda settings: rooms.build(name, settings),
            recipe,
            run,
            name=name,
            mode=mode,
            sinks=lambda folder: [ReportSink(folder.path)],
            weights=initial_weights,
        )
    finally:
        shut_down()
    if is_main():
        show_end(run, step)


def show_end(run: Path, step: int) -> None:
    pictures = sorted((run / "exhibits").glob("*/*"))
    print(f"{run} is at step {step}.")
    if pictures:
        print(f"Look at {pictures[-1]}")
    print(f"The whole run on one page: {run / 'report.html'}")
    print(f"Next: quintet sample {run} --out out, quintet export {run} model")


@dataclasses.dataclass(kw_only=True)
class Resume:
    """Go on with a run, exactly where its last checkpoint stands."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    steps: int | None = None
    """New length of the run; the schedule keeps its recorded length."""
    schedule_steps: int | None = None
    """New length of the learning-rate schedule."""
    minutes: float | None = None
    """Stop cleanly after so many minutes."""
    batch_size: int | None = None
    """Samples per process and micro-batch; the global batch stays."""
    workers: int | None = None
    """Processes that load data."""
    log_every: int | None = None
    """Steps between reports."""
    save_every: int | None = None
    """Steps between checkpoints."""
    evaluate_every: int | None = None
    """Steps between evaluations."""


def resume(given: list[str]) -> None:
    asked = parse(Resume, given, "resume")
    name, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "go on with it there: trainer.train(resume=True)")
    changes = {k: v for k, v in vars(asked).items() if k != "run" and v is not None}
    if asked.minutes is None:
        changes["minutes"] = None
    changed = dataclasses.replace(recipe, **changes)
    check_length(asked)
    if asked.schedule_steps is not None:
        reschedule(asked.run, asked.schedule_steps)
    launch(name, changed, asked.run, "resume")


def check_length(asked: Resume) -> None:
    from quintet.engine.folder import RunFolder

    reached = max(RunFolder.open(asked.run).steps(), default=0)
    if asked.steps is not None and asked.steps < reached:
        raise RunError(f"{asked.run} is at step {reached} already; give --steps beyond it")


def reschedule(run: Path, steps: int) -> None:
    """Under the lock: a run that another process trains is left alone."""
    from quintet.engine.folder import RunFolder

    if not is_main():
        return
    folder = RunFolder.open(run)
    folder.lock()
    try:
        folder.about["settings"]["schedule_steps"] = steps
        folder.write_config(folder.about)
    finally:
        folder.unlock()


def need_data(recipe: Recipe, run: Path, remedy: str) -> None:
    if recipe.data is not None and recipe.data.startswith("python:"):
        raise RunError(f"{run} reads a data set from Python; {remedy}")


def recorded(run: Path) -> tuple[str, Any]:
    from quintet.engine.folder import RunFolder

    if not run.is_dir():
        raise RunError(f"there is no run at {run}")
    return rooms.recorded(RunFolder.open(run).about, run)


# -- after training -----------------------------------------------------------------------------


@dataclasses.dataclass(kw_only=True)
class Evaluate:
    """Measure the averaged weights on held-out data, or on a folder; a table and a line of JSON."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    data: tyro.conf.Positional[str | None] = None
    """Measure all of this folder instead of the run's held-out share."""
    step: int | None = None
    """Which checkpoint; without it the newest sound one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes the GPU where there is one."""
    batch_size: int | None = None
    """Samples at a time."""


def evaluate(given: list[str]) -> None:
    from quintet.engine.evaluate import of_run
    from quintet.engine.world import World, shut_down

    asked = parse(Evaluate, given, "evaluate")
    name, recipe = recorded(asked.run)
    if asked.data is None:
        need_data(recipe, asked.run, "name a folder to measure on")
    recipe = dataclasses.replace(
        without_limit(recipe) if asked.data else recipe,
        device=asked.device,
        compile="off",
        batch_size=asked.batch_size or recipe.batch_size,
        data=resolved(asked.data) or recipe.data,
    )
    task = rooms.build(name, recipe, asked.run)
    metrics = of_run(task, recipe, asked.run, World(recipe), asked.step, whole=bool(asked.data))
    if is_main():
        table(metrics)
        print(json.dumps(metrics))
    shut_down()


def without_limit(settings: Any) -> Any:
    """The same settings, at whatever depth, with as many samples held out as there are."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = without_limit(value)
        elif field.name == "valid_limit":
            changes[field.name] = sys.maxsize
    return dataclasses.replace(settings, **changes)


def table(rows: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("measure", "value")
    for name, value in rows.items():
        shown.add_row(name, f"{value:.5g}" if isinstance(value, float) else str(value))
    Console().print(shown)


def sample(given: list[str]) -> None:
    """Each room has its own flags, so the run comes first."""
    if not given or given[0].startswith("-"):
        print("usage: quintet sample RUN [INPUT …] --out DIR [flags of the run's room]\n")
        print(f"{examples('sample')}\n\nquintet sample RUN --help shows its flags.")
        if given and given[0] in ("-h", "--help"):
            return
        raise RunError("name a run first: quintet sample RUN --help shows its flags")
    run = Path(given[0])
    room = importlib.import_module(f"quintet.{room_of(run)}.sample")
    kind = dataclasses.make_dataclass(
        "Sample",
        [
            ("inputs", tyro.conf.Positional[tuple[Path, ...]], ()),
            ("out", Path, Path("out")),
            ("flags", Annotated[spelled(room.Flags), tyro.conf.arg(name="")], room.Flags()),
        ],
    )
    kind.__doc__ = (
        f"{room.Flags.__doc__}\n\nArgs:\n    inputs: Files or folders to work on.\n"
        "    out: Folder for what is made.\n    flags: What to make."
    )
    asked = parse(kind, gathered(given[1:]), f"sample {run}")
    for path in room.sample(run, asked.inputs, asked.out, asked.flags):
        print(path)


def spelled(flags: Any) -> Any:
    """The flag of a field `from_` is `--from`, which no field can be called."""
    for field in dataclasses.fields(flags):
        if field.name.endswith("_"):
            name = tyro.conf.arg(name=field.name.rstrip("_"))
            flags.__annotations__[field.name] = Annotated[field.type, name]
    return flags


def gathered(given: list[str]) -> list[str]:
    """`--text a --text b` as `--text a b`, of which otherwise the last would silently win."""
    words: list[str] = []
    flags: dict[str, list[str]] = {}
    values = words
    for word in given:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = flags.setdefault(name, [])
            values += [value] if equals else []
        else:
            values.append(word)
    return words + [word for name, found in flags.items() for word in (name, *found)]


def room_of(source: Path) -> str:
    """The room of a run or of an exported model."""
    from quintet.engine.folder import RunFolder

    about = RunFolder.open(source).about if source.is_dir() else {}
    if "model" in about:
        return rooms.model_class(about, source).label().partition("/")[0]
    return rooms.room_of(recorded(source)[0])


@dataclasses.dataclass(kw_only=True)
class Export:
    """Write weights, configuration and a model card; `from_pretrained` and the Hub read them."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: tyro.conf.Positional[Path]
    """A new folder."""


def export(given: list[str]) -> None:
    import quintet
    from quintet.report import model_card

    asked = parse(Export, given, "export")
    recorded(asked.run)
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise RunError(f"{asked.out} exists and is not empty; choose a new folder")
    model = quintet.load(asked.run)
    model.save_pretrained(asked.out)
    (asked.out / "README.md").write_text(model_card(asked.run, model), encoding="utf-8")
    print(
        f"{asked.out}: load it with quintet.{type(model).__name__}.from_pretrained('{asked.out}')"
    )


@dataclasses.dataclass(kw_only=True)
class Report:
    """Write report.html: curves, exhibits and health events of a run on one page."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""


def report(given: list[str]) -> None:
    from quintet.report import write_report

    asked = parse(Report, given, "report")
    recorded(asked.run)
    print(write_report(asked.run))


@dataclasses.dataclass(kw_only=True)
class Replay:
    """Take one step again from the checkpoint before it; show its losses and its samples."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    step: int
    """The step to take again: the one that brought the run to this number."""


def replay(given: list[str]) -> None:
    from quintet.engine.replay import replay as again

    asked = parse(Replay, given, "replay")
    name, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "so its steps can be taken again only there")
    found = again(
        lambda settings: rooms.build(name, settings, asked.run), recipe, asked.run, asked.step
    )
    table(found.losses)
    print(f"samples: {', '.join(found.samples)}")
    print(json.dumps({"step": asked.step, "losses": found.losses, "samples": found.ids}))


# -- looking around -----------------------------------------------------------------------------


def listing() -> str:
    rows = [
        (f"{room}/{n}", f.__doc__ or "")
        for room in rooms.rooms()
        for n, f in rooms.recipes(room).items()
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {text.splitlines()[0]}" for name, text in rows)


@dataclasses.dataclass(kw_only=True)
class List:
    """Show what can be trained."""


def list_recipes(given: list[str]) -> None:
    parse(List, given, "list")
    print(listing())


@dataclasses.dataclass(kw_only=True)
class Doctor:
    """Say what the machine has, and what is wrong with a folder of data, file by file."""

    room: tyro.conf.Positional[str | None] = None
    """The room that is to read the folder, for example image."""
    data: tyro.conf.Positional[Path | None] = None
    """The folder."""


def doctor(given: list[str]) -> None:
    asked = parse(Doctor, given, "doctor")
    if asked.room is None:
        from quintet.engine.doctor import machine

        table(machine())
        return
    if asked.room not in rooms.rooms() or asked.data is None:
        raise RunError(f"doctor takes a room ({', '.join(rooms.rooms())}) and a folder")
    bad = count = 0
    for _, problem in importlib.import_module(f"quintet.{asked.room}.data").check(asked.data):
        count += 1
        if problem:
            bad += 1
            print(problem)
    print(f"{count} files, {count - bad} sound, {bad} that training would skip")
    if bad == count:
        raise RunError(f"nothing in {asked.data} can be used")


@dataclasses.dataclass(kw_only=True)
class Demo:
    """Train on built-in data on the CPU, in a few minutes, and show what came of it."""

    run: Path = Path("runs/demo")
    """Where; started again, it goes on."""
    steps: int | None = None
    """Fewer steps for a quick look."""


def demo(given: list[str]) -> None:
    asked = parse(Demo, given, "demo")
    name = "image/vqgan_tiny"
    recipe = dataclasses.replace(rooms.recipe_function(name)(), device="cpu")
    if asked.steps:
        recipe = dataclasses.replace(recipe, steps=asked.steps)
    launch(name, recipe, asked.run, "continue")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "list": list_recipes,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "sample": sample,
    "export": export,
    "report": report,
    "replay": replay,
    "doctor": doctor,
    "demo": demo,
}
