"""`quintet resume`: its flags are the settings that may change on resume."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet import rooms
from quintet.cli.common import ASKING, examples, need_data, optional, parse, recorded
from quintet.cli.train import launch, row, spell_out, spelt, with_absolute_paths
from quintet.engine.config import OptimizerConfig, Recipe, dotted, is_gone, resolved
from quintet.engine.errors import RunError
from quintet.engine.settings import Setting, settings_of, updated
from quintet.suggest import ALIASES, command, words

CONFIG = "config.json"
ABOUT = """\
Resume a run exactly from its last checkpoint. Other settings are those of the run; the global
batch stays the same."""


def resume(arguments: list[str]) -> None:
    runs = [Path(word) for word in arguments if (Path(word) / CONFIG).is_file()]
    name, recipe = recorded(runs[0]) if runs else ("", Recipe())
    # Both apply to one call, not to the run.
    recipe = dataclasses.replace(recipe, minutes=None, accept_changed_data=False)
    if any(word in ASKING for word in arguments):
        print(resume_help(recipe, runs[0] if runs else Path("runs/b")))
        return
    if runs:
        refuse_fixed(name, recipe, runs[0], arguments)
    asked = parse(flags_of(recipe), spell_out(arguments), "resume")
    name, recipe = recorded(asked.run)
    changes = {name: getattr(asked, _identifier(name)) for name in _free(recipe)}
    changed = with_absolute_paths(updated(recipe, changes))
    moved = command("resume", asked.run, "--data", "FOLDER")
    need_data(changed, asked.run, "resume it from Python: trainer.train(resume=True)", moved)
    check_length(asked.run, changed.steps)
    launch(name, dataclasses.replace(changed, data=resolved(changed.data)), asked.run, "resume")


FIXED: Mapping[str, str] = {
    "seed": "it determines all randomness of the run",
    "precision": "every number of the run depends on it",
    "deterministic": "it selects the kernels that computed the run so far",
    "planned_steps": "parts start at fractions of it",
    "init_from": "weights are loaded at step 0 only",
    "init_partial": "weights are loaded at step 0 only",
    "model": "the weights and their use depend on it",
    "discriminator": "its weights depend on it",
    "losses": "the training objective would change from here on",
    "valid": "metrics would not be comparable with earlier ones",
}
"""Why a setting or a group of settings cannot change on resume."""
OPTIMIZER = "the optimizer state depends on it; only the learning rate may change"
STAGE = "the weights depend on the copy that the run keeps"
DEFAULT = "later steps would read different samples"


def refuse_fixed(name: str, recipe: Recipe, run: Path, arguments: list[str]) -> None:
    """Name the flags of settings that cannot change, with the reason and what to do instead."""
    fixed = {s.name: s for s in settings_of(recipe) if not s.free}
    asked = [word for word in arguments if _setting_named(word) in {*fixed, "valid"}]
    if not asked:
        return
    first = _setting_named(asked[0])
    was = f" (it is {spelt(fixed[first].default)})" if first in fixed else ""
    others = f", and neither can {', '.join(asked[1:])}" if asked[1:] else ""
    reason = f"{asked[0]} cannot change on resume{was}: {_why(recipe, fixed.get(first))}{others}"
    if recipe.data is not None and recipe.data.startswith("python:"):
        raise RunError(f"{reason}. Start a new run with it from Python")
    raise RunError(f"{reason}. Start a new run with it: {new_run(name, recipe, run, arguments)}")


OF_ITS_START = (
    *("data", "planned_steps", "schedule_steps", "precision"),
    *("init_from", "init_partial", "minutes", "accept_changed_data"),
)
"""Settings that a run has from its start; a new run has its own."""


def new_run(name: str, recipe: Recipe, run: Path, arguments: list[str]) -> str:
    """The command for a run with these arguments, the other settings of `run` and its weights."""
    typed = _typed(run, arguments)
    default = {s.name: s.default for s in settings_of(rooms.recipe_function(name)())}
    frozen: dict[str, Any] = {stage: str(run / "frozen" / stage) for stage in recipe.stages}
    lasting = settings_of(dataclasses.replace(recipe, **frozen))
    changed = [s for s in lasting if s.default != default[s.name] and s.name not in OF_ITS_START]
    flags = [word for s in changed if s.name not in typed for word in s.words]
    flags += [word for group in typed.values() for word in group]
    if "init_from" not in typed and any((run / "checkpoints").glob("step-*")):
        flags += ["--init-from", str(run), "--init-partial"]
    needed = is_gone(recipe.data) or (recipe.data is None and "valid" in typed)
    place = "FOLDER" if needed else recipe.data
    data = [place] if place and "data" not in typed else []
    return command("train", name, *data, *flags, "--run", _free_name(run))


def _typed(run: Path, arguments: list[str]) -> dict[str, list[str]]:
    """The flags as typed, with their values, by the name of their setting."""
    groups: dict[str, list[str]] = {}
    name = ""
    for word in arguments:
        name = _setting_named(word) or name
        if name and Path(word) != run:
            groups.setdefault(name, []).append(word)
    return groups


def _free_name(run: Path) -> str | Path:
    if str(run) in ALIASES:
        return f"{ALIASES[str(run)]}-2"
    names = (run.with_name(f"{run.name}-{number}") for number in itertools.count(2))
    return next(path for path in names if not path.exists())


def _setting_named(word: str) -> str:
    """The dotted name of a flag's setting; `--images.no-flip` sets `images.flip`."""
    if not word.startswith("--"):
        return ""
    group, _, name = word[2:].partition("=")[0].replace("-", "_").rpartition(".")
    return dotted(group, name.removeprefix("no_"))


def _why(recipe: Recipe, setting: Setting | None) -> str:
    if setting is None:
        return FIXED["valid"]
    if setting.owner is OptimizerConfig:
        return OPTIMIZER
    if setting.name in recipe.stages:
        return STAGE
    group, _, short = setting.name.rpartition(".")
    if short.startswith("valid") or group in ("generation", "sampling"):
        return FIXED["valid"]
    return FIXED.get("discriminator" if "discriminator" in group else group or short, DEFAULT)


def _free(recipe: Recipe) -> list[str]:
    return [setting.name for setting in settings_of(recipe) if setting.free]


def _identifier(name: str) -> str:
    return name.replace(".", "__")


def flags_of(recipe: Recipe) -> Any:
    """One flag per setting that may change; the default is the recorded value."""
    free = [setting for setting in settings_of(recipe) if setting.free]
    fields: list[Any] = [("run", tyro.conf.Positional[Path])]
    for setting in free:
        named = Annotated[
            setting.kind,
            tyro.conf.arg(
                name=setting.name, help=setting.description, metavar=optional(setting.kind)
            ),
        ]
        default = dataclasses.field(default=setting.default)
        fields.append((_identifier(setting.name), named, default))
    kind = dataclasses.make_dataclass("Resume", fields)
    kind.__doc__ = f"{ABOUT}\n\nArgs:\n    run: The run's folder."
    return kind


def resume_help(recipe: Recipe, run: Path) -> str:
    """One line per flag; all settings of trackers share one."""
    free = [setting for setting in settings_of(recipe) if setting.free]
    trackers = [s.name.partition(".")[2] for s in free if s.name.startswith("tracker.")]
    names = ", ".join(name.replace("_", "-") for name in trackers)
    free = [setting for setting in free if not setting.name.startswith("tracker.")]
    return "\n".join(
        [
            f"{examples('resume').replace('runs/b', words(run))}\n",
            f"{ABOUT}\n",
            "usage: quintet resume RUN [--steps N …]",
            f"Flags and their defaults ({command('resume', 'RUN', '--help')}: those of the run):",
            *(row(f"{s.flag} {_shown(s.default)}", s.description) for s in free),
            row("--tracker.NAME …", f"In trackers: {names}."),
        ]
    )


def _shown(default: object) -> str:
    """The default as shown after a flag; a switch takes no value."""
    return "" if isinstance(default, bool) else spelt(default)


def check_length(run: Path, steps: int) -> None:
    from quintet.engine.runs.folder import RunFolder

    reached = max(RunFolder.open(run).steps(), default=0)
    if steps < reached:
        raise RunError(f"{run} is at step {reached} already; give --steps beyond it")
