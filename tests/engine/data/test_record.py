"""data.json of a run: what has changed, and what follows from it."""

from pathlib import Path

import pytest

from quintet.engine.data.record import Record, read, record_of, settle, take_new
from quintet.engine.errors import RunError

BEFORE = {"train": Record(2, {"a": "1", "b": "1"}, ["z"]), "valid": Record(1, {"c": "1"}, [])}


def settled(run: Path, accepted: bool = False, **now: Record) -> list[str]:
    said: list[str] = []
    settle(run, {**BEFORE, **now}, accepted, said.append)
    return said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert settled(tmp_path) == []
    return tmp_path


def test_the_same_data_is_passed_without_a_word(run: Path) -> None:
    assert settled(run) == []
    assert read(run / "data.json") == BEFORE


def test_an_edited_file_is_named_once(run: Path) -> None:
    edited = Record(2, {"a": "1", "b": "2"}, ["z"])
    (line,) = settled(run, train=edited)
    assert "training data has changed since the last start: 1 edited (b)" in line
    assert settled(run, train=edited) == []


def test_a_sample_with_another_text_is_named_once(run: Path) -> None:
    texts = [Record(*BEFORE["train"][:3], {"a": text, "b": "1"}) for text in ("1", "2")]
    assert settled(run, train=texts[0]) == [], "the first start that records texts"
    (line,) = settled(run, train=texts[1])
    assert "training data has changed since the last start: 1 with another text (a)" in line
    assert settled(run, train=texts[1]) == []
    assert texts[0].digest != texts[1].digest


class Captioned(list[str]):
    """Samples with captions: in files, or in one shard."""

    def __init__(self, texts: list[str], sharded: bool = False):
        super().__init__(texts)
        self.sharded = sharded

    def name(self, index: int) -> str:
        return f"{index}.png"

    def files(self) -> dict[str, str]:
        names = map(self.name, range(len(self)))
        return {"shards": "1"} if self.sharded else dict.fromkeys(names, "1")

    def unused(self) -> list[str]:
        return []

    def texts(self, index: int) -> list[str]:
        if self[index] == "unreadable":
            raise ValueError
        return [self[index]]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("text", ["another", "", "unreadable"])
def test_texts_are_recorded_by_file_and_of_shards_together(text: str, sharded: bool) -> None:
    before, now = (record_of(Captioned(["a", b, "c"], sharded)) for b in ("b", text))  # type: ignore[arg-type]
    changed = [name for name, digest in now.texts.items() if digest != before.texts[name]]
    assert changed == ["shards" if sharded else "1.png"]
    assert len(now.texts) == (1 if sharded else 3)


def test_a_file_that_is_gone_is_refused_until_it_is_accepted(run: Path) -> None:
    less = Record(1, {"a": "1"}, ["z", "new"])
    with pytest.raises(RunError, match=r"1 gone or renamed \(b\).*--accept-changed-data"):
        settled(run, train=less)
    assert read(run / "data.json") == BEFORE, "nothing was taken over"
    (line,) = settled(run, accepted=True, train=less)
    assert "1 gone or renamed (b)" in line
    assert settled(run, train=less) == []


def test_files_that_were_left_out_stay_new(run: Path) -> None:
    assert settled(run, train=Record(2, {"a": "1", "b": "1"}, ["new", "z"])) == []
    assert read(run / "data.json")["train"].unused == ["z"]


def test_validation_data_may_change_and_has_another_digest(run: Path) -> None:
    other = Record(1, {"d": "1"}, [])
    (line,) = settled(run, valid=other)
    assert "1 gone or renamed (c), 1 new (d); the best checkpoint so far is not compared" in line
    assert other.digest != BEFORE["valid"].digest


def test_data_without_files_is_known_by_its_size(tmp_path: Path) -> None:
    settled(tmp_path, train=record_of([0] * 10), valid=record_of(None))  # type: ignore[arg-type]
    with pytest.raises(RunError, match="12 samples instead of 10"):
        settled(tmp_path, train=record_of([0] * 12), valid=record_of(None))  # type: ignore[arg-type]


def test_a_record_that_asks_for_new_files_keeps_its_lists(run: Path) -> None:
    take_new(run)
    assert read(run / "data.json") == BEFORE
    assert '"takes_new": true' in (run / "data.json").read_text()


def test_a_damaged_record_is_refused_with_the_remedy(run: Path) -> None:
    (run / "data.json").write_text("{}")
    with pytest.raises(RunError, match=r"data\.json cannot be read .* delete it"):
        settled(run)
