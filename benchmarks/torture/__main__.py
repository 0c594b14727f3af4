"""Faults against the real program, and a table of what became of them.

    python -m benchmarks.torture                    the short campaign
    python -m benchmarks.torture --full             the full one; interrupted, it goes on
    python -m benchmarks.torture --table            the table, from the journal, into the page

A journal holds every case that is done; the same command takes up those that are not.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.torture import subjects
from benchmarks.torture.table import Case, Journal, Result, put_into, table, waiting

MODULES = ("kills", "disk", "state", "clock", "numbers", "data")
HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "reliability.md"


def main() -> None:
    asked = _asked()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    subjects.PLACE = out
    journal = Journal(asked.journal or out / ("full.jsonl" if asked.full else "short.jsonl"))
    if asked.table:
        put_into(asked.page, table(journal.records().values()))
        return
    ended = time.monotonic() + 60 * asked.minutes
    todo = waiting(_cases(asked.only or MODULES, asked.full, asked.seed), journal, asked.again)
    for case in (case for case in todo if asked.match in case.name):
        if time.monotonic() > ended:
            break
        result = attempt(case)
        journal.add(case, result)
        said = "survived" if result.survived else "FAILED"
        print(f"{said}  {result.seconds:6.1f} s  {case.name}: {result.note}", flush=True)
    found = list(journal.records().values())
    print(table(found))
    sys.exit(any(not record["survived"] for record in found))


def attempt(case: Case) -> Result:
    begun = time.monotonic()
    try:
        return case.run()
    except Exception as error:
        return Result(False, None, time.monotonic() - begun, f"{type(error).__name__}: {error}")


def _cases(modules: tuple[str, ...], full: bool, seed: int) -> Iterator[Case]:
    for name in modules:
        if (HERE / f"{name}.py").exists():
            module: Any = importlib.import_module(f"benchmarks.torture.{name}")
            yield from module.cases(full, seed)


def _asked() -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--full", action="store_true", help="all cases, over several sittings")
    parser.add_argument("--only", nargs="+", choices=MODULES, help="these modules")
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--seed", type=int, default=0, help="of all that is chosen at random")
    parser.add_argument("--out", type=Path, default=Path("runs/torture"), help="its own folder")
    parser.add_argument("--journal", type=Path, help="the file of finished cases")
    parser.add_argument("--again", action="store_true", help="also those that did not survive")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no case after so many")
    parser.add_argument("--table", action="store_true", help="write the table into the page")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that holds the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
