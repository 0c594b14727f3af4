"""Receipts: how a number was measured. Numbers with different receipts cannot be compared.

A receipt holds the judge and its facts (convention, digest of weights, versions), the digest of the
reference set, how files became samples (crop, size, rounding), and the count. Digests are of
contents, in any order of files.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from quintet.engine.errors import RunError
from quintet.files import digest_of
from quintet.judges.base import Array, PairJudge, SetJudge

RESAMPLES = 1000
LEVEL = 0.95
BOOTSTRAP = "the mean over samples, by a bootstrap"
Bounds = tuple[float, float] | tuple[None, None]


@dataclass(frozen=True)
class Receipt:
    judge: str
    facts: dict[str, str]
    """Facts of the judge."""
    reference: str
    """Digest of the reference set."""
    preparation: dict[str, str]
    """How files became samples: size, crop, filter, rounding, rate, …"""
    count: int

    @property
    def digest(self) -> str:
        text = repr(sorted(asdict(self).items(), key=lambda item: item[0]))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "digest": self.digest}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Receipt":
        """KeyError or TypeError if it is no receipt; ValueError if it was changed."""
        if not all(isinstance(content[name], dict) for name in ("facts", "preparation")):
            raise TypeError("facts and preparation must be objects")
        receipt = cls(**{field.name: content[field.name] for field in fields(cls)})
        if receipt.digest != content["digest"]:
            raise ValueError(f"the receipt of {receipt.judge} has another digest: it was changed")
        return receipt


@dataclass(frozen=True)
class Score:
    value: float
    low: float | None
    """Bounds of an interval of 95 %; None of a single sample, and of what is counted."""
    high: float | None
    receipt: Receipt
    interval: str = ""
    """What the interval is of, and how it was found."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "digest": self.receipt.digest}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Score":
        """KeyError or TypeError if it is no score; ValueError if its receipt was changed."""
        receipt = Receipt.from_json({**content["receipt"], "digest": content["digest"]})
        bounds = content["low"], content["high"]
        return cls(content["value"], *bounds, receipt, content.get("interval", ""))


def set_digest(files: Iterable[Path]) -> str:
    """Digest of the contents of files, whatever their names and order."""
    return joined_digest(digest_of(path) for path in files)


def joined_digest(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]


def content_digest(sample: Any) -> str:
    """Digest of a sample in memory: an array, or a tuple of arrays and plain values."""
    content = hashlib.sha256()
    for value in sample if isinstance(sample, tuple) else (sample,):
        if isinstance(value, (str, int)):
            content.update(f"{value!r}\n".encode())
            continue
        array = np.ascontiguousarray(value)
        content.update(f"{array.dtype} {array.shape}\n".encode())
        content.update(array.data)
    return content.hexdigest()


def of_rows(judge: PairJudge, rows: Array, receipt: Receipt) -> Score:
    return Score(judge.mean(rows), *interval(rows, judge.mean, RESAMPLES), receipt, BOOTSTRAP)


def of_sets(judge: SetJudge, references: Array, outputs: Array, receipt: Receipt) -> Score:
    """References are fixed; the interval is about other outputs of the same source."""
    if (shares := judge.shares(references, outputs)) is not None:
        value = judge.distance(references, outputs)
        return Score(value, *interval(shares, np.mean, RESAMPLES), receipt, BOOTSTRAP)
    value, left_out = judge.jackknife(references, outputs)
    at = "any number of" if judge.unbiased else f"{receipt.count}"
    of = f"the expected value of {at} outputs, by a jackknife"
    low, high = around(value, left_out)
    return Score(value, low if low is None or judge.unbiased else max(0.0, low), high, receipt, of)


def interval(rows: Array, statistic: Callable[[Array], Any], resamples: int) -> Bounds:
    """Percentile bootstrap over samples, with a fixed seed: the same rows give the same bounds."""
    if len(rows) < 2:
        return None, None
    values = [statistic(drawn) for drawn in _resampled(rows, resamples)]
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def around(value: float, left_out: Array) -> Bounds:
    """An interval by the jackknife: values without each of g groups of samples deviate by
    1 / sqrt(g - 1) of what values of other samples would."""
    groups = len(left_out)
    if groups < 2:
        return None, None
    reach = student(groups - 1) * (groups - 1) ** 0.5 * float(np.std(left_out))
    return value - reach, value + reach


def student(freedom: int) -> float:
    """The quantile of 97.5 % of Student's t, to a thousandth from 8 degrees of freedom on
    (expansion of Cornish and Fisher)."""
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _resampled(rows: Array, count: int) -> Iterator[Array]:
    draw = np.random.default_rng(0)
    for _ in range(count):
        yield rows[draw.integers(len(rows), size=len(rows))]


def check_comparable(scores: dict[str, Score]) -> None:
    """Refuse numbers of one judge that are not of the same thing; the outputs may differ."""
    (first_name, first), *others = scores.items()
    for name, other in others:
        difference = differing(first.receipt, other.receipt)
        if difference:
            raise RunError(
                f"{first.receipt.judge} of {first_name} and of {name} cannot be compared: "
                f"{difference}"
            )


def differing(a: Receipt, b: Receipt) -> str:
    """What differs, in words; empty if nothing does."""
    if a.judge != b.judge:
        return f"the judge is {a.judge} and {b.judge}"
    parts = [
        ("the reference set", a.reference, b.reference),
        ("the count", a.count, b.count),
        *_items(a.facts, b.facts),
        *_items(a.preparation, b.preparation),
    ]
    return "; ".join(f"{name} is {one} and {other}" for name, one, other in parts if one != other)


def _items(a: dict[str, str], b: dict[str, str]) -> list[tuple[str, str, str]]:
    return [(name, a.get(name, "unset"), b.get(name, "unset")) for name in sorted({*a, *b})]
