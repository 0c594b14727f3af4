"""A file that lists the training and validation files of a folder.

A user writes it, `{"train": ["a.png"], "valid": ["b.png"]}`, or it is the record of a run (its
`data.json`), whose split does not change when files are added.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quintet.files import once
from quintet.media.errors import BadFile, printable
from quintet.media.ranges import say

ACCEPT = "--accept-changed-data"


class SplitFile(NamedTuple):
    path: Path
    sides: Mapping[str, Collection[str]]
    """Names by split."""
    unused: Mapping[str, Collection[str]]
    """Other names in the folder when the run began, by split; only in the record of a run."""
    takes_new: bool
    """Whether new files, which the record of a run does not name, are used."""

    @property
    def settled(self) -> bool:
        """Whether it is the record of a run that takes no new files."""
        return bool(self.unused) and not self.takes_new

    def choose(self, folder: Path, names: Sequence[str], split: str, own_folder: bool) -> list[str]:
        """The names that belong to the split. New files are for training, unless the validation
        data has its own folder."""
        side = set(self.sides[split])
        if not self.unused:
            self._require(folder, names)
            return [name for name in names if name in side]
        new: set[str] = set()
        if split == "train" or own_folder:
            other = () if own_folder else self.sides["valid"]
            new = set(names).difference(side, other, self.unused.get(split, ()))
        if new and not self.takes_new:
            say(
                f"{printable(folder)}: {len(new):,} files are new since the run began and left "
                f"out, such as {printable(min(new))}; {ACCEPT} uses them"
            )
            new.clear()
        return [name for name in names if name in side or name in new]

    def _require(self, folder: Path, names: Sequence[str]) -> None:
        """Refuse a user's list of another folder; files out of range may be missing."""
        listed = [name for side in self.sides.values() for name in side]
        if not set(listed).intersection(names):
            first = printable(listed[0]) if listed else "nothing"
            reason = f"lists {len(listed):,} files, {first} the first; none of them can be used"
            raise BadFile(self.path, reason, f"give paths relative to {printable(folder)}")


def read_split(path: str) -> SplitFile:
    return once(("split", path), lambda: _read(Path(path)))


def _read(path: Path) -> SplitFile:
    try:
        lists = json.loads(path.read_bytes())
        sides = {split: _names(lists[split]) for split in ("train", "valid")}
        unused = {split: _names(names) for split, names in lists.get("unused", {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"is not a list of training and validation files ({type(error).__name__}: {error})"
        remedy = 'write {"train": ["a.png"], "valid": ["b.png"]}; data.json of a run may be deleted'
        raise BadFile(path, reason, remedy) from error
    return SplitFile(path, sides, unused, bool(lists.get("takes_new")))


def _names(value: Any) -> Collection[str]:
    if not isinstance(value, (list, dict)) or not all(isinstance(name, str) for name in value):
        raise TypeError("names are a list")
    return value
