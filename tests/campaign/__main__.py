"""Fault-injection campaign against the real program, and a table of the results.

    python -m campaign                    short campaign
    python -m campaign --full             full campaign; repeat the command to continue it
    python -m campaign --table            write the table of the journal into the docs page

A journal records every finished case; the same command runs the remaining ones.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign import subjects
from campaign.table import Case, Journal, Result, insert_table, pending, table

MODULES = ("kills", "mishaps", "disk", "state", "clock", "numbers", "data", "stores")
HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "dev" / "reliability.md"


def main() -> None:
    options = _parse_options()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    subjects.FOLDER = out
    journal = Journal(options.journal or out / ("full.jsonl" if options.full else "short.jsonl"))
    if options.table:
        insert_table(options.page, table(journal.records().values()))
        return
    ended = time.monotonic() + 60 * options.minutes
    cases = pending(
        _cases(options.only or MODULES, options.full, options.seed), journal, options.again
    )
    for case in (case for case in cases if options.match in case.name):
        if time.monotonic() > ended:
            break
        result = attempt(case)
        journal.add(case, result)
        outcome = "survived" if result.survived else "FAILED"
        print(f"{outcome}  {result.seconds:6.1f} s  {case.name}: {result.note}", flush=True)
    records = list(journal.records().values())
    print(table(records))
    sys.exit(any(not record["survived"] for record in records))


def attempt(case: Case) -> Result:
    started = time.monotonic()
    try:
        return case.run()
    except Exception as error:
        return Result(False, None, time.monotonic() - started, f"{type(error).__name__}: {error}")


def _cases(modules: tuple[str, ...], full: bool, seed: int) -> Iterator[Case]:
    for name in modules:
        if (HERE / f"{name}.py").exists():
            module: Any = importlib.import_module(f"campaign.{name}")
            yield from module.cases(full, seed)


def _parse_options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--full", action="store_true", help="run all cases")
    parser.add_argument("--only", nargs="+", choices=MODULES, help="run these modules only")
    parser.add_argument("--match", default="", help="run only cases whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"), help="output folder")
    parser.add_argument("--journal", type=Path, help="journal of finished cases")
    parser.add_argument("--again", action="store_true", help="retry failed cases")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="start no case after this many minutes"
    )
    parser.add_argument("--table", action="store_true", help="write the table into the docs page")
    parser.add_argument("--page", type=Path, default=PAGE, help="docs page with the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
