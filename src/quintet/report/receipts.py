"""Scores of judges in several runs: those with different receipts are shown separately."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quintet.judges.receipt import Receipt, differing
from quintet.report.source import Source, mapping

PREFIX = "val/judge/"
Receipts = dict[str, dict[str, tuple[str, Receipt | None]]]
"""For each judge and digest, the place where the receipt first occurs, and the receipt."""


def apart(group: Sequence[Source]) -> tuple[list[Source], list[str]]:
    """The runs, and sentences about differing receipts. Metrics of a judge with several receipts
    are renamed (`judge/psnr, receipt DIGEST`), so that they share neither a plot nor a row."""
    notes: list[str] = []
    mixed: set[str] = set()
    for judge, receipts in _receipts(group).items():
        (where, first), *others = receipts.values()
        for other_where, other in others:
            mixed.add(judge)
            difference = differing(first, other) if first and other else "a receipt is missing"
            names = f"{judge} of {where} and of {other_where}"
            notes.append(f"{names} cannot stand side by side: {difference}")
    if not mixed:
        return list(group), notes
    return [replace(s, reports=[_renamed(r, s, mixed) for r in s.reports]) for s in group], notes


def _receipts(group: Sequence[Source]) -> Receipts:
    receipts: Receipts = {}
    for source in group:
        for record in source.reports:
            for judge in {_judge(name): None for name in record if name.startswith(PREFIX)}:
                name, receipt = _receipt(record, source, judge)
                where = f"{source.label} (step {record.get('step')})"
                receipts.setdefault(judge, {}).setdefault(name, (where, receipt))
    return receipts


def _judge(name: str) -> str:
    """The judge of a metric: `psnr` for `val/judge/psnr/bicubic`."""
    return name.removeprefix(PREFIX).partition("/")[0]


def _receipt(record: Mapping[str, Any], source: Source, judge: str) -> tuple[str, Receipt | None]:
    """The digest and the receipt; a missing or damaged one differs from those of other runs."""
    try:
        receipt = Receipt.from_json(mapping(record.get("receipts"))[judge])
        return receipt.digest, receipt
    except (KeyError, TypeError, ValueError):
        return f"of {source.label} missing", None


def _renamed(record: Mapping[str, Any], source: Source, mixed: set[str]) -> dict[str, Any]:
    def renamed(name: str) -> str:
        judge = _judge(name)
        if not name.startswith(PREFIX) or judge not in mixed:
            return name
        return f"{name}, receipt {_receipt(record, source, judge)[0]}"

    return {renamed(name): value for name, value in record.items()}
