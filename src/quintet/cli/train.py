"""`quintet train`."""

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from quintet import rooms
from quintet.cli.common import (
    ASKING,
    examples,
    group,
    is_main,
    listing,
    parse,
)
from quintet.engine.config import Recipe, resolved
from quintet.engine.errors import RunError, Stopped
from quintet.engine.settings import descriptions, each_setting, flag, settings_of
from quintet.suggest import command

if TYPE_CHECKING:
    from quintet.engine.runs.sinks import Sink


def train(arguments: list[str]) -> None:
    """Train a recipe."""
    if not arguments or arguments[0].startswith("-"):
        every = listing().splitlines()
        known = [cut(line, WIDTH) for line in every if not re.search(r"_(tiny|large)", line)]
        print(
            f"{examples('train')}\n\nusage: quintet train RECIPE [DATA] --run DIR [--steps N …]\n\n"
            "recipes:",
            *known,
            "\nEach has a NAME_tiny for a CPU, most also a NAME_large: "
            f"{command('list')} shows all.",
            f"{command('train', 'RECIPE', '--help')} shows its settings.",
            sep="\n",
        )
        if not arguments or arguments[0] not in ASKING:
            raise RunError("name a recipe first, for example image/vqgan_tiny")
        return
    name = arguments[0]
    default = rooms.recipe_function(name)()
    rest = arguments[1:]
    if any(word in ASKING for word in rest):
        print(recipe_help(name, default))
        return
    rest = ["--help" if word == "--help-all" else word for word in rest]
    recipe, asked = asked_for(name, rest)
    launch(name, recipe, asked.run, "resume_or_new" if asked.resume else "new")


def asked_for(name: str, words: list[str]) -> tuple[Recipe, Any]:
    """The recipe that flags ask for, and the flags."""
    default = rooms.recipe_function(name)()
    words = spell_out(words, default.stages)
    asked = parse(flags_of(name, default), words, f"train {name}", recipe_examples(name, default))
    data = asked.data if asked.data is not None else asked.settings.data
    recipe = dataclasses.replace(with_absolute_paths(asked.settings), data=resolved(data))
    if asked.valid is not None:
        recipe = with_valid_folder(recipe, resolved(asked.valid))
    return recipe, asked


OWN = {
    "data": descriptions(Recipe)["data"],
    "valid": "Folder of validation data; by default a part of DATA.",
    "run": "Folder of the new run.",
    "resume": "Start the run, or resume it if it exists.",
}
"""Flags of the command; the others are settings of the recipe."""
Data = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")]


def flags_of(name: str, default: Recipe) -> Any:
    kind = dataclasses.make_dataclass(
        "Train",
        [
            ("data", Data, None),
            ("valid", Annotated[str | None, tyro.conf.arg(metavar="DIR")], None),
            ("run", Path, run_of(name)),
            ("resume", bool, False),
            ("settings", group(type(default), "Settings of the recipe."), default),
        ],
    )
    kind.__doc__ = (
        f"{rooms.recipe_function(name).__doc__}\n\nArgs:\n"
        f"    data: {OWN['data']}\n    valid: {OWN['valid']}\n"
        f"    run: {OWN['run']}\n    resume: {OWN['resume']}"
    )
    return kind


def run_of(name: str) -> Path:
    return Path("runs") / name.replace("/", "-")


# -- help that fits a screen ----------------------------------------------------------------------

WIDTH = 98


def recipe_examples(name: str, default: Recipe) -> str:
    stages = [word for s, a in zip(default.stages, "ab") for word in (flag(s), f"runs/{a}")]
    built_in = command("train", name, *stages, "--run", "runs/new")
    return f"  {built_in}\n  {command('train', name, 'DATA', *stages, '--steps', 5000)}"


def recipe_help(name: str, default: Recipe) -> str:
    """The common settings, then the room's own; a group of settings takes one line."""
    sentences = descriptions(type(default))
    fields = dataclasses.fields(default)
    shared = {field.name for field in dataclasses.fields(Recipe)}
    groups = [f.name for f in fields if dataclasses.is_dataclass(getattr(default, f.name))]
    single = [f for f in fields if f.name not in groups]
    shown = [f.name for f in single if f.metadata.get("common") or f.name not in shared]
    rare = [flag(f.name) for f in single if f.name not in shown and f.name != "data"]
    run = f"{OWN['run'].rstrip('.')}; default: {run_of(name)}."
    own = {"DATA": OWN["data"], "--valid DIR": OWN["valid"]}
    own |= {"--run DIR": run, "--resume": OWN["resume"]}
    settings = {setting.name: setting for setting in settings_of(default)}
    order = dict.fromkeys((*default.stages, "steps", "optim.learning_rate", *shown))
    asked = [settings[setting] for setting in order if setting in settings]
    flags = {f"{s.flag} {spelt(s.default)}": s.description for s in asked}
    return "\n".join(
        [
            f"{recipe_examples(name, default)}\n",
            rooms.recipe_function(name).__doc__ or "",
            "Flags and their defaults:",
            *(row(first, text) for first, text in (own | flags).items()),
            textwrap.fill(
                f"Also {' '.join(rare)}", WIDTH, subsequent_indent="     ", break_on_hyphens=False
            ),
            "Groups of settings, as in --GROUP.NAME VALUE:",
            *(row(flag(g), group_line(sentences[g], getattr(default, g))) for g in groups),
            f"{command('train', name, '--help-all')} explains every setting.",
        ]
    )


def spelt(value: Any) -> str:
    """A value as typed on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(str, cast("tuple[object, ...]", value)))
    return "…" if value is None else str(value)


def row(first: str, text: str) -> str:
    """One line of help; a sentence that is too long ends after its first clause."""
    begin = f"  {first:<27} "
    if len(begin + text) > WIDTH:
        text = re.split(r"; |\. ", text)[0].rstrip(".")
    return cut(begin + text, WIDTH)


def cut(line: str, width: int) -> str:
    """Shorten a line at a space."""
    return line if len(line) <= width else f"{line[: width - 1].rpartition(' ')[0]} …"


def group_line(sentence: str, settings: Any) -> str:
    names = ", ".join(field.name.replace("_", "-") for field in dataclasses.fields(settings))
    return f"{sentence.partition(';')[0].rstrip('.')}: {names}"


def with_absolute_paths(settings: Any) -> Any:
    """Paths from any folder; models may be named as on the Hub, whose client has a cache."""
    from quintet.engine.models.hub import local

    def changed(field: Any, value: Any) -> Any:
        if value is None or not field.metadata.get("path") or value in field.metadata["words"]:
            return value
        return resolved(value if field.name in ("valid_folder", "split_file") else local(value))

    return each_setting(settings, changed)


def with_valid_folder(recipe: Recipe, folder: str | None) -> Recipe:
    if recipe.data is None:
        raise RunError("--valid goes with DATA; built-in data has its own validation samples")
    return each_setting(
        recipe, lambda field, value: folder if field.name == "valid_folder" else value
    )


def spell_out(arguments: list[str], stages: Iterable[str] = ()) -> list[str]:
    """Expand `--compile` and `--no-compile`, whose setting can also be 'auto', and turn `--from`
    into the flag of the first stage, as `from` is a Python keyword."""
    first = next(iter(stages), "from").replace("_", "-")
    words: list[str] = []
    for index, word in enumerate(arguments):
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if word == "--no-compile":
            words += ["--compile", "off"]
        elif word == "--compile" and following not in ("on", "off", "auto"):
            words += ["--compile", "on"]
        elif word == "--from" or word.startswith("--from="):
            words.append(word.replace("--from", f"--{first}", 1))
        else:
            words.append(word)
    return words


def launch(name: str, recipe: Recipe, run: Path, mode: Any) -> None:
    step = train_run(name, recipe, run, mode)
    if is_main():
        show_end(name, recipe, run, step)


def train_run(
    name: str,
    recipe: Recipe,
    run: Path,
    mode: Any,
    *,
    more: "Sequence[Sink]" = (),
    progress: bool = True,
) -> int:
    """Train to the end and return the step reached; `more` are further sinks."""
    from quintet.cli.judges import outside
    from quintet.engine.launch import start
    from quintet.engine.machine.world import shut_down
    from quintet.engine.models.pretrained import initial_weights
    from quintet.report import ReportSink

    try:
        step = start(
            rooms.build,
            recipe,
            run,
            name=name,
            mode=mode,
            sinks=lambda folder: [ReportSink(folder.path), *more],
            weights=initial_weights,
            load=rooms.load,
            judge=outside,
            progress=progress,
        )
    except Stopped:
        # All ranks stop together here. After other errors the process group is left alone: some
        # ranks may be gone, and destroying it could wait for them.
        shut_down()
        raise
    shut_down()
    return step


SHOWN = (
    (".png", ".jpg"),
    (".gif", ".mp4"),
    (".wav",),
    (".glb", ".obj", ".ply", ".stl"),
)
"""Suffixes of exhibits in order of preference; others, such as texts, come last."""


def show_end(name: str, recipe: Recipe, run: Path, step: int) -> None:
    print(f"{run} is at step {step}.")
    exhibit = best_exhibit(run)
    if exhibit:
        print(f"Look at {exhibit}")
    print(f"The whole run on one page: {run / 'report.html'}")
    print("Next:", *next_commands(name, recipe, run), sep="\n  ")


def best_exhibit(run: Path) -> Path | None:
    """The newest exhibit of the preferred kind."""

    def rank(path: Path) -> int:
        kinds = (index for index, suffixes in enumerate(SHOWN) if path.suffix in suffixes)
        return next(kinds, len(SHOWN))

    steps = sorted((run / "exhibits").glob("*/"))
    return min(sorted(steps[-1].iterdir()), key=rank, default=None) if steps else None


def next_commands(name: str, recipe: Recipe, run: Path) -> list[str]:
    """Commands to run next, quoted for a shell."""
    words = rooms.family_of(recipe).sample.example(recipe, run)
    sample = [command("sample", run, *words)] if words else []
    return [*sample, command("export", run, "model")]
