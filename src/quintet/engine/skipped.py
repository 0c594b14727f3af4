"""Skipped updates: too many in a row fail a run, and one that skipped most has not been trained."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from quintet.engine.meters import Entry, stacked

REMEDY = "lower the learning rate, or inspect the samples that events.jsonl names"


class Failure(NamedTuple):
    """Too many non-finite updates in a row: the step that the last of them began at, and the
    message."""

    step: int
    cause: str


class Count(NamedTuple):
    """Updates of one part since the start of the run."""

    updates: int = 0
    skipped: int = 0


Counts = dict[str, Count]


class SkippedUpdates:
    """Skipped updates of each part: in a row, and since the start of the run."""

    def __init__(self, parts: Iterable[str], limit: int):
        self.limit = limit
        self.streaks = dict.fromkeys(parts, 0)
        self.counts: Counts = dict.fromkeys(self.streaks, Count())

    def load(self, streaks: Mapping[str, int], counts: Mapping[str, Count]) -> None:
        self.streaks = {name: streaks.get(name, 0) for name in self.streaks}
        self.counts = {name: counts.get(name, Count()) for name in self.streaks}

    def state(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """For a checkpoint, with the updates since the last report."""
        streaks, counts, _ = self._after(self._flags(entries))
        return {"skips": streaks, "updates": counts}

    def too_many(self, entries: Iterable[Entry]) -> bool:
        """Whether the updates since the last report fail the run."""
        return self._after(self._flags(entries))[2] >= self.limit

    def _flags(self, entries: Iterable[Entry]) -> list[tuple[str, float]]:
        """Updates since the last report, equal on every process: the part, and 1 if skipped."""
        names = {f"{part}/skipped": part for part in self.streaks}
        flags = [entry for entry in entries if entry.name in names]
        values = stacked(flags).tolist() if flags else []
        return [(names[entry.name], value) for entry, value in zip(flags, values)]

    def _after(self, flags: Iterable[tuple[str, float]]) -> tuple[dict[str, int], Counts, int]:
        """Streaks and counts after further updates, and the longest streak on the way."""
        streaks, counts = dict(self.streaks), dict(self.counts)
        longest = max(streaks.values(), default=0)
        for part, flag in flags:
            skipped = flag > 0.5
            streaks[part] = streaks[part] + 1 if skipped else 0
            counts[part] = Count(counts[part].updates + 1, counts[part].skipped + skipped)
            longest = max(longest, streaks[part])
        return streaks, counts, longest

    def add(
        self,
        table: Mapping[int, Mapping[str, float]],
        samples: Mapping[int, Sequence[int]],
        say: Callable[[str], None],
    ) -> Failure | None:
        """Count and name the skipped updates of a report, whose table is the same on all processes;
        a failure where there are too many in a row."""
        names = {f"{part}/skipped": part for part in self.streaks}
        flags = [(names[n], v) for row in table.values() for n, v in row.items() if n in names]
        self.counts = self._after(flags)[1]
        for step, row in table.items():
            for name in self.streaks:
                if row.get(f"{name}/skipped", 0.0) < 0.5:
                    self.streaks[name] = 0 if f"{name}/skipped" in row else self.streaks[name]
                    continue
                self.streaks[name] += 1
                terms = [k for k, v in row.items() if v - v != 0 and k.startswith(name)]
                cause = f"{', '.join(terms) or 'its loss or its data'}; samples {samples[step]}"
                number = step + 1  # steps are counted from 1 wherever a user meets them
                say(f"skipped the update of '{name}' at step {number}: not finite: {cause}")
                if self.streaks[name] >= self.limit:
                    reason = f"{self.streaks[name]} updates of '{name}' in a row were not finite"
                    return Failure(step, f"{reason}, the last at step {number}: {cause}")
        return None


def read(about: Mapping[str, Any]) -> Counts:
    """Counts of a state.json; none of one that lacks them."""
    counts = about.get("updates")
    rows = counts.items() if isinstance(counts, Mapping) else ()
    return {
        str(part): Count(*pair)
        for part, pair in rows
        if isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
    }


def problems(counts: Mapping[str, Count]) -> list[str]:
    """A sentence for each part that skipped more than half of its updates."""
    return [
        f"{count.skipped} of {count.updates} updates of '{part}' were skipped as not finite"
        for part, count in counts.items()
        if 2 * count.skipped > count.updates
    ]
