"""`quintet resume`: its flags are the settings that may change on resume."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet.cli.common import ASKING, examples, need_data, optional, parse, recorded
from quintet.cli.train import launch, row, spell_compile, spelt, with_absolute_paths
from quintet.engine.config import Recipe, resolved
from quintet.engine.errors import RunError
from quintet.engine.settings import settings_of, updated

ABOUT = """\
Resume a run exactly from its last checkpoint. Other settings are those of the run; the global
batch stays the same."""


def resume(arguments: list[str]) -> None:
    runs = [Path(word) for word in arguments if (Path(word) / "config.json").is_file()]
    recipe = recorded(runs[0])[1] if runs else Recipe()
    # Of one sitting, not of the run.
    recipe = dataclasses.replace(recipe, minutes=None, accept_changed_data=False)
    if any(word in ASKING for word in arguments):
        print(resume_help(recipe, runs[0] if runs else Path("runs/b")))
        return
    asked = parse(flags_of(recipe), spell_compile(arguments), "resume")
    name, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "resume it from Python: trainer.train(resume=True)")
    changes = {name: getattr(asked, _identifier(name)) for name in _free(recipe)}
    changed = with_absolute_paths(updated(recipe, changes))
    check_length(asked.run, changed.steps)
    launch(name, dataclasses.replace(changed, data=resolved(changed.data)), asked.run, "resume")


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
    """One line per flag."""
    free = [setting for setting in settings_of(recipe) if setting.free]
    return "\n".join(
        [
            f"{examples('resume').replace('runs/b', shlex.quote(str(run)))}\n",
            f"{ABOUT}\n",
            "usage: quintet resume RUN [--steps N …]\n",
            "Flags and their defaults (quintet resume RUN --help shows those of the run):",
            *(row(f"{s.flag} {_shown(s.default)}", s.description) for s in free),
        ]
    )


def _shown(default: object) -> str:
    """A switch takes no value."""
    return "" if isinstance(default, bool) else spelt(default)


def check_length(run: Path, steps: int) -> None:
    from quintet.engine.runs.folder import RunFolder

    reached = max(RunFolder.open(run).steps(), default=0)
    if steps < reached:
        raise RunError(f"{run} is at step {reached} already; give --steps beyond it")
