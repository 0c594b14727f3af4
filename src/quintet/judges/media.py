"""The media that can be judged, found by the files of a folder."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from quintet.engine.errors import RunError
from quintet.judges.base import Judge, Options

MEDIA = {
    "image": "images",
    "video": "videos",
    "speech": "speech",
    "music": "music",
    "mesh": "meshes",
}
"""Each medium, and the module here that has its judges."""


class MediumModule(Protocol):
    SUFFIXES: Sequence[str]
    JUDGES: Sequence[type[Judge]]

    def reader(self, options: Options) -> tuple[Callable[[Path], Any], dict[str, str]]:
        """How a file becomes a sample, and that in words for the receipt."""
        ...


def module_of(medium: str) -> MediumModule:
    return importlib.import_module(f"quintet.judges.{MEDIA[medium]}")  # type: ignore[return-value]


def all_judges() -> list[type[Judge]]:
    return [judge for medium in MEDIA for judge in module_of(medium).JUDGES]


def medium_of(folder: Path) -> str:
    """By the first file that some medium knows; sounds are speech unless said otherwise."""
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}")
    for path in sorted(folder.rglob("*")):
        for medium in MEDIA:
            if path.suffix.lower() in module_of(medium).SUFFIXES:
                return medium
    raise RunError(f"{folder} has no pictures, videos, sounds or meshes; name the right folder")


def chosen(medium: str, names: str | None) -> list[Judge]:
    """The judges of a comma-separated list; without one, all that work on this machine."""
    known = {judge.name: judge for judge in module_of(medium).JUDGES}
    if names is None:
        working = [judge() for judge in known.values()]
        return [judge for judge in working if judge.problem() is None]
    judges: list[Judge] = []
    for name in names.split(","):
        if name not in known:
            raise RunError(f"there is no judge '{name}' of {medium}; there are {', '.join(known)}")
        judge = known[name]()
        if problem := judge.problem():
            raise RunError(f"the judge {name} {problem}")
        judges.append(judge)
    return judges
