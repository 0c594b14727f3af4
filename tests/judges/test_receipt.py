from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.engine.errors import RunError
from quintet.judges.base import Array, PairJudge, SetJudge
from quintet.judges.folders import files_in, judged
from quintet.judges.receipt import Receipt, Score, check_comparable, interval, of_sets, set_digest


class Difference(PairJudge):
    name, medium, about, better = "difference", "toy", "Absolute difference.", "lower"

    def facts(self) -> dict[str, str]:
        return {"convention": "absolute"}

    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        return np.abs(np.array(references) - np.array(outputs))


class Shift(SetJudge):
    name, medium, about, better = "shift", "toy", "Difference of the means.", "lower"

    def facts(self) -> dict[str, str]:
        return {}

    def features(self, samples: Sequence[Any]) -> Array:
        return np.array(samples, dtype=np.float64)

    def distance(self, references: Array, outputs: Array) -> float:
        return abs(float(references.mean() - outputs.mean()))


def folder_of(path: Path, values: dict[str, float]) -> Path:
    for name, value in values.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(value))
    return path


def read(path: Path) -> float:
    return float(path.read_text())


def scores_of(references: Path, outputs: Path, **preparation: str) -> dict[str, Score]:
    files = [files_in(folder, [".num", ".txt"]) for folder in (references, outputs)]
    return judged([Difference(), Shift()], *files, read, preparation)


def test_two_folders_are_judged_by_pairs_and_as_sets(tmp_path: Path) -> None:
    names = [f"sub/{n:03}.num" for n in range(100)]
    a = folder_of(tmp_path / "a", {name: i for i, name in enumerate(names)})
    b = folder_of(
        tmp_path / "b", {name.replace(".num", ".txt"): i + i % 2 for i, name in enumerate(names)}
    )
    scores = scores_of(a, b)
    assert scores["difference"].value == 0.5
    assert scores["shift"].value == 0.5
    low, high = scores["difference"].low, scores["difference"].high
    assert low is not None
    assert high is not None
    assert 0.35 < low < 0.5 < high < 0.65
    assert scores["difference"].receipt.count == 100


def test_a_receipt_depends_on_contents_and_not_on_names_or_order(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", {"x.num": 1, "y.num": 2})
    b = folder_of(tmp_path / "b", {"z.num": 2, "w.num": 1})
    c = folder_of(tmp_path / "c", {"x.num": 1, "y.num": 3})
    digests = [set_digest(path.iterdir()) for path in (a, b, c)]
    assert digests[0] == digests[1] != digests[2]


def test_a_missing_partner_is_named(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", {"x.num": 1, "y.num": 2})
    b = folder_of(tmp_path / "b", {"x.num": 1})
    with pytest.raises(RunError, match=r"1 of 2 files have no output, first .*y\.num"):
        scores_of(a, b)
    with pytest.raises(RunError, match=r"1 of 2 files have no reference, first .*y\.num"):
        scores_of(b, a)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", {"x.num": 1, "x.txt": 2})
    with pytest.raises(RunError, match="have the same name; rename one"):
        scores_of(a, a)


def test_an_empty_folder_says_what_it_looks_for(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no files that end in \.num, \.txt"):
        scores_of(tmp_path, tmp_path)
    with pytest.raises(RunError, match="there is no folder"):
        scores_of(tmp_path / "none", tmp_path)


def test_numbers_of_different_receipts_do_not_stand_side_by_side(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", {"x.num": 1, "y.num": 2})
    b = folder_of(tmp_path / "b", {"x.num": 1, "y.num": 3})
    one, same = scores_of(a, b, size="64")["difference"], scores_of(a, a, size="64")["difference"]
    check_comparable({"model A": one, "model B": same})  # other outputs, the same references
    with pytest.raises(RunError, match=r"of model A and of model B .* size is 64 and 128"):
        check_comparable({"model A": one, "model B": scores_of(a, b, size="128")["difference"]})
    with pytest.raises(RunError, match="the reference set is"):
        check_comparable({"model A": one, "model B": scores_of(b, b, size="64")["difference"]})


def test_the_interval_is_the_same_each_time_and_covers_the_mean() -> None:
    rows = np.random.default_rng(1).normal(3, 1, 400)
    bounds = interval(rows, lambda r: float(r.mean()), 1000)
    assert bounds == interval(rows, lambda r: float(r.mean()), 1000)
    assert bounds[0] is not None
    assert abs(bounds[0] - (rows.mean() - 1.96 / 20)) < 0.03
    assert interval(rows[:1], lambda r: float(r.mean()), 1000) == (None, None)


class Spread(Shift):
    """Repeated samples raise it, as they do Fréchet distances."""

    def distance(self, references: Array, outputs: Array) -> float:
        missing = len(references) - len(np.unique(outputs))
        return super().distance(references, outputs) + missing


def test_the_interval_of_a_distance_of_sets_holds_the_value() -> None:
    references = np.random.default_rng(1).normal(0, 1, 40)
    score = of_sets(Spread(), references, references + 0.5, Receipt("spread", {}, "", {}, 40))
    assert score.low is not None
    assert score.high is not None
    assert score.value == pytest.approx(0.5)
    assert 0 <= score.low < score.value < score.high < 10


def test_the_digest_of_a_receipt_follows_its_facts() -> None:
    one = Receipt("psnr", {"rounding": "8 bit"}, "abc", {"size": "64"}, 10)
    assert one.digest == Receipt("psnr", {"rounding": "8 bit"}, "abc", {"size": "64"}, 10).digest
    assert one.digest != Receipt("psnr", {"rounding": "float"}, "abc", {"size": "64"}, 10).digest
