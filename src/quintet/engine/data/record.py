"""The files and texts that a run trains on and is measured on, in RUN/data.json, and what changed
since.

The order of the data is a function of the list of its samples. A run that resumes keeps the list:
new files are left out, changed files and texts are named, and where files are gone it is refused,
unless the user accepts another order.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from quintet.engine.config import Recipe
from quintet.engine.data.source import Source
from quintet.engine.errors import RunError
from quintet.engine.settings import each_setting
from quintet.files import atomic_write

NAME = "data.json"
SPLITS = ("train", "valid")


@runtime_checkable
class HasFiles(Protocol):
    """A source whose samples are files, which may change between two sittings."""

    def files(self) -> Mapping[str, str]:
        """Identity by name: size or digest; of few shards, for all of their samples."""
        ...

    def unused(self) -> Sequence[str]:
        """Names of other files that were there."""
        ...


@runtime_checkable
class HasTexts(Protocol):
    """A source whose samples have captions or transcripts."""

    def texts(self, index: int) -> Sequence[str]:
        """What the model may read with a sample, without reading its file; empty if nothing."""
        ...


class Record(NamedTuple):
    """What data.json holds of one split."""

    size: int
    files: Mapping[str, str]
    unused: Sequence[str]
    texts: Mapping[str, str] = {}
    """Digests of the texts by the names of `files`; empty where the model reads none."""

    @property
    def digest(self) -> str:
        text = json.dumps([self.size, sorted(self.files.items()), sorted(self.texts.items())])
        return _digest(text.encode())


def record_of(source: Source | None) -> Record:
    if isinstance(source, HasFiles):
        files = source.files()
        return Record(len(source), files, source.unused(), _text_digests(source, files))
    return Record(0 if source is None else len(source), {}, ())


def _text_digests(source: Any, files: Mapping[str, str]) -> dict[str, str]:
    if not files or not isinstance(source, HasTexts):
        return {}
    samples: Any = source
    texts = [(samples.name(index), _texts_at(source, index)) for index in range(len(samples))]
    digests = {name: _digest(text) for name, text in texts if text is not None}
    if not digests or digests.keys() <= files.keys():
        return digests
    return {next(iter(files)): _digest(json.dumps(digests).encode())}  # shards, as in `files`


def _texts_at(source: HasTexts, index: int) -> bytes | None:
    try:
        texts = source.texts(index)
    except (OSError, ValueError) as error:
        return type(error).__name__.encode()  # such a sample is replaced
    return json.dumps(texts).encode() if texts else None


def short_text(source: Source) -> str:
    """The shortest text of some samples, for a command line; empty if there is none."""
    if not isinstance(source, HasTexts):
        return ""
    lines = (_line(source, index) for index in range(len(source)))
    return min(islice(filter(None, lines), 16), key=len, default="")


def _line(source: HasTexts, index: int) -> str:
    with suppress(OSError, ValueError):
        for text in source.texts(index)[:1]:
            line = " ".join(text.split())
            return line if line.isprintable() and not line.startswith("-") else ""
    return ""


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def settle(
    run: Path, now: Mapping[str, Record], accepted: bool, say: Callable[[str], None]
) -> None:
    """Compare the data with the record of the run, and write the record, before the first step."""
    path = run / NAME
    if path.exists():
        before = read(path)
        changes = {split: Change(before[split], now[split]) for split in SPLITS}
        if changes["train"].moved and not accepted:
            raise RunError(
                f"the training data of {run} has changed: {changes['train']}. Its order cannot be "
                "kept. Restore the files, or resume with --accept-changed-data: files that remain "
                "keep their split, and new ones are trained on"
            )
        for split, change in changes.items():
            if change.moved or change.edited or change.retold:
                kind, then = CONSEQUENCES[split]
                say(f"the {kind} data has changed since the last start: {change}; {then}")
        if not accepted:  # new files stay new
            now = {split: now[split]._replace(unused=before[split].unused) for split in SPLITS}
    write(path, now)


def changes(run: Path, source: Source) -> str:
    """What has changed of the training data since the last start; empty if nothing."""
    if not (run / NAME).exists():
        return ""
    change = Change(read(run / NAME)["train"], record_of(source))
    return str(change) if change.moved or change.edited or change.retold else ""


CONSEQUENCES = {
    "train": ("training", "the run is no longer a function of its settings and this data alone"),
    "valid": ("validation", "the best checkpoint so far is not compared with later ones"),
}


class Change:
    def __init__(self, before: Record, now: Record):
        both = before.files.keys() & now.files.keys()
        self.counts = before.size, now.size
        self.gone = sorted(before.files.keys() - both)
        self.new = sorted(now.files.keys() - both) if before.files else []
        self.edited = _differing(before.files, now.files)
        self.retold = _differing(before.texts, now.texts)

    @property
    def moved(self) -> bool:
        """Whether the list of samples is another one."""
        return bool(self.gone or self.new or self.counts[0] != self.counts[1])

    def __str__(self) -> str:
        kinds = (
            ("gone or renamed", self.gone),
            ("new", self.new),
            ("edited", self.edited),
            ("with another text", self.retold),
        )
        parts = [f"{len(names):,} {kind} ({_some(names)})" for kind, names in kinds if names]
        if not parts:
            parts = [f"{self.counts[1]:,} samples instead of {self.counts[0]:,}"]
        return ", ".join(parts)


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name.encode(errors="backslashreplace").decode() for name in names[:3])
    return shown + (" …" if len(names) > 3 else "")


def read(path: Path) -> dict[str, Record]:
    try:
        lists = json.loads(path.read_bytes())
        return {
            split: Record(
                int(lists["count"][split]),
                dict(lists[split]),
                list(lists["unused"][split]),
                dict(lists["texts"][split]),
            )
            for split in SPLITS
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(
            f"{path} cannot be read ({type(error).__name__}: {error}); restore it from a copy, or "
            "delete it: the data is then taken as it is now"
        ) from None


def write(path: Path, records: Mapping[str, Record], takes_new: bool = False) -> None:
    content: dict[str, Any] = {
        "count": {split: record.size for split, record in records.items()},
        "unused": {split: list(record.unused) for split, record in records.items()},
        "texts": {split: record.texts for split, record in records.items()},
        **{split: record.files for split, record in records.items()},
        **({"takes_new": True} if takes_new else {}),
    }
    atomic_write(path, json.dumps(content).encode())


def take_new(run: Path) -> None:
    """Let the next start take in files that the record does not name."""
    if (run / NAME).exists():
        write(run / NAME, read(run / NAME), takes_new=True)


def resolved(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with the split that the run has recorded; only data from files reads it."""
    path = run / NAME
    if not path.exists():
        return recipe
    return each_setting(
        recipe, lambda field, value: str(path) if field.metadata.get("split") else value
    )
