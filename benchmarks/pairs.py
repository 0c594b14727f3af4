"""Pairs of runs that should be equally fast: their cores, the ratios, and the verdict.

Work on other cores disturbs a run less than its partner on the same ones, so each pair has cores of
its own, a lane. Runs of one lane take turns, A B B A, where a drift of the machine cancels.
"""

import json
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

DRAWS = 2000
"""Of the bootstrap."""
FEWEST = 6
"""Values of which all lie on one side of the true median in less than 5 % of cases."""
ON_CORES = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(',')))\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


def cores_of(text: str) -> list[int]:
    """`4-7,9` as numbers."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def lanes_of(cores: Sequence[int], lanes: int) -> list[list[int]]:
    """The cores in as many equal parts; a remainder is left free."""
    size = len(cores) // lanes
    if size < 1:
        raise SystemExit(f"{lanes} lanes need as many cores; there are {len(cores)}")
    return [list(cores[n * size : (n + 1) * size]) for n in range(lanes)]


def on_cores(cores: Sequence[int], command: Sequence[str]) -> list[str]:
    """The command with all that it starts on these cores."""
    return [sys.executable, "-c", ON_CORES, ",".join(map(str, cores)), *command]


def spread(groups: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Median, quartiles, and a 95 % interval of the median. A bootstrap draws groups first and then
    their values, as those of one process may deviate together."""
    groups = [group for group in groups if group]
    if not groups:
        return {"count": 0}
    values = [value for group in groups for value in group]
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    chance = random.Random(0)
    medians = sorted(_drawn(chance, groups) for _ in range(DRAWS))
    interval = medians[DRAWS // 40], medians[-DRAWS // 40]
    return {
        "median": round(statistics.median(values), 4),
        "quartiles": [round(quarter, 4) for quarter in quarters],
        "interval": [round(end, 4) for end in interval],
        "standard_error": round(statistics.stdev(medians), 4),
        "count": len(values),
    }


def _drawn(chance: random.Random, groups: Sequence[Sequence[float]]) -> float:
    drawn = chance.choices(groups, k=len(groups))
    return statistics.median(v for group in drawn for v in chance.choices(group, k=len(group)))


def verdict(ratio: Sequence[Sequence[float]], bar: float) -> dict[str, Any]:
    """`missed`: the median is off 1 by more than the bar. `shown`: the whole interval is within,
    of so many values that it is one."""
    about = spread(ratio)
    if not about["count"]:
        raise SystemExit("there is nothing to compare")
    off = [abs(value - 1) for value in (about["median"], *about["interval"])]
    enough = about["count"] >= FEWEST
    return {"ratio": about, "bar": bar, "missed": off[0] > bar, "shown": enough and max(off) <= bar}


def conclude(row: dict[str, Any]) -> None:
    """Print the last line, and exit with 1 if the bar is missed or a run failed."""
    print(json.dumps(row), flush=True)
    sys.exit(1 if row["missed"] or row.get("failures") else 0)
