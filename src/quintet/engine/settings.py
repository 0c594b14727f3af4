"""The settings of a recipe, walked: one field, one description, one name.

A setting is a field of a frozen dataclass with a sentence under it. Its flag, its Python keyword,
its flag on resume, its JSON name and its row in the docs follow from that field alone.
"""

import ast
import dataclasses
import functools
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quintet.engine.config import (
    ConfigError,
    OptimizerConfig,
    Recipe,
    differences,
    dotted,
    from_json,
    hints_of,
    to_json,
)

R = TypeVar("R")


class Setting(NamedTuple):
    name: str
    """Dotted, as in config.json."""
    kind: Any
    default: Any
    description: str
    owner: type
    """The dataclass that the field belongs to."""
    free: bool
    """May change on resume."""
    recorded: bool
    """A change on resume changes the result, so only a command may ask for it."""
    is_path: bool

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def words(self) -> list[str]:
        """The flag with this value, as typed on the command line."""
        if isinstance(self.default, bool):
            group, dot, name = self.name.rpartition(".")
            return [self.flag if self.default else flag(f"{group}{dot}no_{name}")]
        return [self.flag, *_flat(self.default)]


def _flat(value: object) -> list[str]:
    if not isinstance(value, tuple):
        return [str(value)]
    return [word for item in typing.cast("tuple[object, ...]", value) for word in _flat(item)]


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def settings_of(recipe: Any, prefix: str = "") -> Iterator[Setting]:
    """Every leaf of a recipe, in the order of the fields."""
    kind = type(recipe)
    hints, sentences = hints_of(kind), descriptions(kind)
    for field in dataclasses.fields(recipe):
        name, value = dotted(prefix, field.name), getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, name)
        else:
            marks = (bool(field.metadata.get(mark)) for mark in ("free", "recorded", "path"))
            sentence = sentences.get(field.name, "")
            yield Setting(name, hints[field.name], value, sentence, kind, *marks)


def free_names(recipe: Recipe) -> set[str]:
    """Dotted names of the settings that may change when a run resumes."""
    return {setting.name for setting in settings_of(recipe) if setting.free}


def asked_changes(old: Any, recipe: Recipe) -> dict[str, Any]:
    """Settings on record that a command changes, against those of config.json."""
    recorded = {setting.name for setting in settings_of(recipe) if setting.recorded}
    changes = differences(old, to_json(recipe))
    return {name: now for name, (_, now) in changes.items() if name in recorded}


@functools.cache
def descriptions(kind: type) -> Mapping[str, str]:
    """The sentence under each field of a dataclass, inherited ones included."""
    sentences: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        for line, following in pairwise(_body(owner.__module__, owner.__name__)):
            if isinstance(line, ast.AnnAssign) and isinstance(following, ast.Expr):
                text = str(ast.literal_eval(following.value))
                sentences[ast.unparse(line.target)] = " ".join(text.split())
    return sentences


@functools.cache
def _body(module: str, name: str) -> list[ast.stmt]:
    """inspect.getsource would read whole files many times over."""
    file = getattr(sys.modules.get(module), "__file__", None)
    tree = ast.parse(Path(file).read_text(encoding="utf-8")) if file else ast.Module([], [])
    classes = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return next((node.body for node in classes), [])


def each_setting(settings: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A copy with every field, at any depth, replaced by `change(field, value)`."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        nested = dataclasses.is_dataclass(value)
        changes[field.name] = each_setting(value, change) if nested else change(field, value)
    return dataclasses.replace(settings, **changes)


def updated(recipe: R, changes: Mapping[str, Any]) -> R:
    """A recipe, or the configuration of a model, with settings replaced by dotted name; through
    JSON, which checks every type.

    A group takes a mapping of some of its settings, or a dataclass with all of them.
    """
    tree = to_json(recipe)
    for name, value in changes.items():
        *groups, last = name.split(".")
        branch = tree
        for group in groups:
            if not isinstance(branch.get(group), dict):
                known = ", ".join(sorted(n for n, v in branch.items() if isinstance(v, dict)))
                raise ConfigError(f"unknown setting {name}: {group} is no group; groups: {known}")
            branch = branch[group]
        nested = isinstance(value, Mapping) and isinstance(branch.get(last), dict)
        branch[last] = {**branch[last], **to_json(value)} if nested else to_json(value)
    return from_json(type(recipe), tree)


def opening(name: str, default: Recipe, recipe: Recipe, unlisted: Set[str]) -> str:
    """Which recipe a trainer trains, and what of it was changed."""
    differing = differences(to_json(default), to_json(recipe))
    changed = [n for n in differing if not {n, n.partition(".")[0]} & unlisted]
    settings = "setting" if len(changed) == 1 else "settings"
    listed = f": {', '.join(changed)}" if changed else ""
    return f"{name} from Python: {len(changed) or 'no'} {settings} changed{listed}"


def names_for(recipe: Recipe, keyword: str) -> list[str]:
    """The settings that a Python keyword names: a field of the recipe, or the only setting of that
    name in its groups; for a setting of optimizers, that of all of them. `model` is left out: its
    settings are those of the model that the trainer is given."""
    if keyword in {field.name for field in dataclasses.fields(recipe)}:
        return [keyword]
    leaves = [s for s in settings_of(recipe) if s.name.rpartition(".")[2] == keyword]
    leaves = [s for s in leaves if not s.name.startswith("model.")]
    if len(leaves) > 1 and not all(s.owner is OptimizerConfig for s in leaves):
        groups = " and ".join(s.name for s in leaves)
        raise TypeError(
            f"{keyword} is ambiguous: {groups}; give settings={{{leaves[0].name!r}: …}}"
        )
    return [s.name for s in leaves]


def keywords_of(recipe: Recipe) -> set[str]:
    """All names that `names_for` knows."""
    fields = {field.name for field in dataclasses.fields(recipe)}
    leaves = (s.name for s in settings_of(recipe) if not s.name.startswith("model."))
    return fields | {name.rpartition(".")[2] for name in leaves}


def value_of(recipe: Recipe, keyword: str) -> Any:
    """The setting that a Python keyword names; of optimizers, that of the first."""
    return functools.reduce(getattr, names_for(recipe, keyword)[0].split("."), recipe)
