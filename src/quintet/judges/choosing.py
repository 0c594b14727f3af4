"""Judges of a medium, of a folder's files, of a list of names."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from quintet.engine.errors import RunError
from quintet.judges import media
from quintet.judges.base import Judge, Options, PairJudge, SetJudge
from quintet.shared.outputs import Compares
from quintet.suggest import among, command

MEDIA = sorted(module.name for module in pkgutil.iter_modules(media.__path__))
"""Each medium has a module of its judges, named like its room."""
ALIASES = {"lpips": "lpips_alex", "rfid": "fid"}
"""Names of papers: the default network of the lpips package, and the FID of reconstructions."""


class MediumModule(Protocol):
    """`judges/media/ROOM.py`."""

    SUFFIXES: Sequence[str]
    JUDGES: Sequence[type[Judge]]
    ONLY_BY_NAME: bool = False
    """Files that another medium reads too are of this one only if its judges are named."""

    def reader(self, options: Options) -> tuple[Callable[[Path], Any], dict[str, str]]:
        """How a file becomes a sample, and that in words for the receipt."""
        ...

    def sample_of(self, output: Any) -> Any:
        """How what a run makes (shared/outputs.py) becomes a sample."""
        ...

    def write(self, stem: Path, output: Any) -> None:
        """The file that `reader` reads as the same sample; not there for embeddings."""
        ...


def module_of(medium: str) -> MediumModule:
    if medium not in MEDIA:
        raise RunError(f"there are no judges of {medium}; there are some of {', '.join(MEDIA)}")
    return importlib.import_module(f"quintet.judges.media.{medium}")  # type: ignore[return-value]


def of_medium(medium: str) -> dict[str, type[Judge]]:
    """All judges of a medium, by name."""
    every = (judges_of(medium, compares) for compares in ("both", "captions", "embeddings"))
    return {name: judge for judges in every for name, judge in judges.items()}


def medium_of(folder: Path, names: Sequence[str] = ()) -> str:
    """The medium of the first known file. Sounds are music if judges of music are named."""
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}")
    asked = set(_split(names))
    for path in sorted(folder.rglob("*")):
        fitting = [name for name in MEDIA if path.suffix.lower() in module_of(name).SUFFIXES]
        fitting.sort(key=lambda name: getattr(module_of(name), "ONLY_BY_NAME", False))
        if fitting:
            return next((name for name in fitting if asked & {*judges_of(name)}), fitting[0])
    raise RunError(f"{folder} has no pictures, videos, sounds or meshes; name the right folder")


def judges_of(medium: str, compares: Compares = "both") -> dict[str, type[Judge]]:
    """Judges by name that fit what a run's outputs are compared with."""
    module = module_of(medium)
    if compares == "captions":
        captioned = {judge.name: judge for judge in module.JUDGES if judge.reads_captions}
        return {**judges_of(medium, "sets"), **captioned}
    judges: Sequence[type[Judge]] = [j for j in module.JUDGES if not j.reads_captions]
    if compares == "embeddings":
        judges = getattr(module, "EMBEDDING_JUDGES", ())
    elif compares == "sounds":
        judges = [judge for judge in judges if not (judge.reads_text or judge.reads_speaker)]
    elif compares != "both":
        kind = PairJudge if compares == "pairs" else SetJudge
        judges = [judge for judge in judges if issubclass(judge, kind)]
    return {judge.name: judge for judge in judges}


def chosen(
    medium: str, names: Sequence[str] = (), compares: Compares = "both"
) -> tuple[list[Judge], list[str]]:
    """The judges of these names, which must all work; a name may be several, apart by commas.
    Without any, or with `all`: those that work on this machine, and the names of the others;
    without those that must be told who speaks."""
    known = judges_of(medium, compares)
    if list(names) in ([], ["all"]):
        known = {name: kind for name, kind in known.items() if not kind.reads_speaker}
        working = [judge for kind in known.values() if (judge := kind()).problem() is None]
        if not working:
            what = medium if compares == "both" else compares
            raise RunError(f"no judge of {what} works here; {command('judges')} says why")
        return working, [name for name in known if all(name != judge.name for judge in working)]
    judges = []
    for name in _split(names):
        if name not in known:
            raise RunError(_unknown(name, medium, known))
        judge = known[name]()
        if problem := judge.problem():
            raise RunError(f"the judge {name} {problem}")
        judges.append(judge)
    return judges, []


def _split(names: Sequence[str]) -> list[str]:
    words = (word.strip() for name in names for word in name.split(","))
    return list(dict.fromkeys(ALIASES.get(word, word) for word in words if word))


def _unknown(name: str, medium: str, known: Mapping[str, Any]) -> str:
    there = f"there are {', '.join(known)}"
    if kind := of_medium(medium).get(name):
        what = "embeddings" if name not in judges_of(medium) else "pairs"
        what = "captions" if kind.reads_captions else what
        what = "sets" if issubclass(kind, SetJudge) else "texts" if kind.reads_text else what
        return f"{name} compares {what}, and there are none here; {there}"
    others = [other for other in MEDIA if name in of_medium(other)]
    if others:
        return f"{name} is a judge of {' and '.join(others)}; of {medium} {there}"
    return f"there is no judge '{name}' of {medium}; {among(name, list(known))}"
