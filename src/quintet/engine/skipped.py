"""Updates skipped over the whole run: one that skipped most of them has not been trained."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from quintet.engine import health
from quintet.engine.errors import RunError
from quintet.engine.meters import Entry, stacked

if TYPE_CHECKING:
    from quintet.engine.run import Run

REMEDY = "lower the learning rate, or inspect the samples that events.jsonl names"


class Count(NamedTuple):
    """Updates of one part since the start of the run."""

    updates: int = 0
    skipped: int = 0

    @property
    def too_many(self) -> bool:
        return 2 * self.skipped > self.updates


Counts = dict[str, Count]


def added(before: Mapping[str, Count], flags: Iterable[tuple[str, float]]) -> Counts:
    """The counts after further updates: the part of each, and 1 where it was skipped."""
    counts = dict(before)
    for part, flag in flags:
        count = counts[part]
        counts[part] = Count(count.updates + 1, count.skipped + (flag > 0.5))
    return counts


def in_table(parts: Iterable[str], table: Mapping[int, Mapping[str, float]]) -> list[Any]:
    """Flags of the steps of a report."""
    names = {f"{part}/skipped": part for part in parts}
    return [(names[n], v) for row in table.values() for n, v in row.items() if n in names]


def in_entries(parts: Iterable[str], entries: Iterable[Entry]) -> list[tuple[str, float]]:
    """Flags of the steps since the last report, equal on every process."""
    names = {f"{part}/skipped": part for part in parts}
    flags = [entry for entry in entries if entry.name in names]
    values = stacked(flags).tolist() if flags else []
    return [(names[entry.name], value) for entry, value in zip(flags, values)]


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
        if count.too_many
    ]


def require_trained(run: "Run") -> None:
    """At the end of a run; its last checkpoint stays."""
    nonfinite = health.parts_with_nonfinite_weights(run)
    causes = [*problems(run.updates)]
    causes += [f"the weights of '{part}' are not finite" for part in nonfinite]
    if not causes:
        return
    message = f"the run has failed: {'; '.join(causes)}"
    run.say(message)
    raise RunError(f"{message}. {run.folder.path} keeps its checkpoints; {REMEDY}")
