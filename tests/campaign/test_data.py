"""The short campaign of damaged data, and what becomes of workers that die or hang."""

import dataclasses
import faulthandler
import importlib
import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from campaign import data
from campaign.table import Case
from quintet import rooms
from quintet.engine.config import ConfigError, Recipe
from quintet.engine.data.plans import CountPlan
from quintet.engine.data.stream import Fixed, Stream
from quintet.engine.data.workers import MAX_DEATHS
from quintet.engine.errors import RunError

# Left to the slow tests: below, and in test_stops.py, workers die and hang.
ELSEWHERE = ("a data worker is killed", "a data worker hangs")
SHORT = [
    pytest.param(
        case, id=case.name, marks=pytest.mark.slow if case.name.startswith(ELSEWHERE) else ()
    )
    for case in data.cases(False, 0)
]


@pytest.mark.parametrize("case", SHORT)
def test_it_survives(case: Case) -> None:
    result = case.run()
    assert result.survived, result.note


# -- the campaign itself ------------------------------------------------------------------------


def test_the_full_campaign_is_large_enough_and_its_cases_are_distinct() -> None:
    cases = list(data.cases(True, 0))
    assert sum(data.FILES.values()) >= 10_000
    assert len({case.name for case in cases}) == len(cases)


@pytest.mark.parametrize("kind", ["images", "meshes", "metadata", "shards"])
def test_mutations_follow_from_the_seed_and_change_the_files(kind: str, tmp_path: Path) -> None:
    """Those of the kinds whose encoders put no random numbers or times into a file."""

    def made(name: str, seed: int) -> list[bytes]:
        folders = data.prepare(kind, tmp_path / name, 6, random.Random(seed))
        files = sorted(file for folder in folders for file in folder.iterdir())
        return [file.read_bytes() for file in files if file.suffix != ".txt"]

    assert made("one", 0) == made("two", 0) != made("other", 1)


def misread(how: str, wire: Any) -> None:
    """What a bad reader would do, for the watch to notice."""
    wire.send("a.png")
    if how == "hang":
        time.sleep(60)
    if how == "crash":
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)
    wire.send(("a.png", "TypeError: a mistake"))


@pytest.mark.parametrize(
    ("how", "said"), [("hang", "took more than"), ("crash", "ended with -11"), ("raise", "TypeEr")]
)
def test_a_hang_a_crash_and_a_bug_are_reported(
    how: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import multiprocessing

    monkeypatch.setattr(data, "SECONDS", 0.5)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=misread, args=(how, there))
    child.start()
    there.close()
    found = data._watch(here, child)
    assert isinstance(found, str)
    assert "a.png" in found
    assert said in found


# -- workers ------------------------------------------------------------------------------------


class Numbered:
    """Sample i is the number i; some of them kill the worker that reads them, or hold it up."""

    def __init__(self, size: int = 64, deadly: int = -1, once: Path | None = None, slow: int = -1):
        self.size, self.deadly, self.once, self.slow = size, deadly, once, slow
        self.main = os.getpid()

    def __len__(self) -> int:
        return self.size

    def name(self, index: int) -> str:
        return f"number-{index}"

    def keyed(self, index: int, key: Any) -> torch.Tensor:
        spared = self.once is not None and self.once.exists()
        if index == self.deadly and os.getpid() != self.main and not spared:
            if self.once is not None:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.slow:
            time.sleep(60)
        return torch.tensor(index)


def seat() -> Any:
    return SimpleNamespace(
        rank=0, size=1, device=torch.device("cpu"), dtype=torch.float32, place=lambda data: data
    )


def stream(source: Numbered, workers: int, timeout: float = 60) -> Stream:
    plan = CountPlan(len(source), 0, 4)
    how = {"seed": 0, "accumulate": 2, "workers": workers, "timeout": timeout}
    return Stream(source, torch.stack, plan, seat(), **how)  # type: ignore[arg-type]


def order(here: Stream, steps: int) -> list[list[int]]:
    return [batch.data.tolist() for _ in range(steps) for batch in here.take(2)]


def test_a_worker_that_dies_is_replaced_and_the_order_stays(tmp_path: Path) -> None:
    with closing(stream(Numbered(), 0)) as whole:
        wanted = order(whole, 12)
    with closing(stream(Numbered(deadly=9, once=tmp_path / "once"), 2)) as here:
        assert order(here, 12) == wanted
        assert here.replaced == 1
        assert here.position == 12 * 8


def test_a_sample_that_kills_every_worker_is_named_with_its_micro_batch() -> None:
    with closing(stream(Numbered(), 0)) as whole:
        wanted = order(whole, 3)[3]
    names = ", ".join(f"number-{number}" for number in wanted)
    with closing(stream(Numbered(deadly=wanted[1]), 2)) as here:
        with pytest.raises(RunError) as refused:
            order(here, 3)
        assert f"{MAX_DEATHS + 1} times in a row on one of {names};" in str(refused.value)


def test_a_worker_that_is_stuck_is_named_within_the_timeout() -> None:
    begun = time.monotonic()
    with (
        closing(stream(Numbered(slow=9), 2, timeout=0.5)) as here,
        pytest.raises(RunError, match=r"no batch came for 0\.5 seconds.*number-9\b"),
    ):
        order(here, 12)
    assert time.monotonic() - begun < 20


@pytest.mark.by_default("1")
@pytest.mark.parametrize("deadly", [1, 30])
def test_validation_survives_the_death_of_a_worker(deadly: int, tmp_path: Path) -> None:
    source = Numbered(40, deadly=deadly, once=tmp_path / "once")
    with closing(Fixed(source, torch.stack, 4, seat(), 2)) as fixed:
        for _ in range(2):
            assert [n for batch in fixed for n in batch.data.tolist()] == list(range(40))
        assert fixed.replaced == 1


def test_validation_samples_that_hang_are_named() -> None:
    source = Numbered(40, slow=6)
    with (
        closing(Fixed(source, torch.stack, 4, seat(), 2, timeout=0.5)) as fixed,
        pytest.raises(RunError, match=r"stuck on one of number-4, number-5, number-6, number-7"),
    ):
        list(fixed)


def test_a_death_between_two_evaluations_does_not_affect_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch looks after five seconds without a batch whether its workers are alive.
    waits = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__"
    monkeypatch.setattr(waits, (0.5,))
    with closing(Fixed(Numbered(40), torch.stack, 4, seat(), 2)) as fixed:
        list(fixed)
        os.kill(fixed._loader._iterator._workers[0].pid, signal.SIGKILL)
        assert [n for batch in fixed for n in batch.data.tolist()] == list(range(40))


def test_the_death_of_a_worker_does_not_interrupt_the_main_process() -> None:
    """torch's own handler would raise out of any line of a step."""
    with closing(stream(Numbered(), 2)) as here:
        order(here, 1)
        assert here._batches is not None
        victim = here._batches._workers[0]
        os.kill(victim.pid, signal.SIGKILL)
        for _ in range(20):
            time.sleep(0.02)
        assert not victim.is_alive()
        order(here, 8)
        assert here.replaced == 1


def test_the_timeout_is_a_setting() -> None:
    assert Recipe().data_timeout == 300.0
    with pytest.raises(ConfigError, match="data_timeout"):
        Recipe(data_timeout=0)


# -- the page -----------------------------------------------------------------------------------

SAFETY = Path(__file__).parents[2] / "docs/safety.md"
OF_ROOM = {
    "images": "image/vqgan",
    "videos": "video/tokenizer",
    "sounds": "music/mulan",
    "recordings": "speech/voicebox",
    "meshes": "mesh/autoencoder",
}
NO_CAPS = {"sounds.max_missing", "recordings.max_missing"}  # shares, not sizes
NO_CAPS |= {"recordings.max_seconds", "meshes.max_faces"}  # what the model takes, not what is read


def table_of_limits() -> dict[str, float]:
    text = SAFETY.read_text(encoding="utf-8").split("## Limits")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines()[2:]]
    return {where.strip("`"): float(value.replace(",", "")) for _, where, value in rows}


def in_source(where: str) -> float:
    """The default of a setting, or a constant named with its file."""
    file, _, constant = where.partition(".py ")
    if constant:
        return getattr(importlib.import_module(f"quintet.{file.replace('/', '.')}"), constant)
    field, _, setting = where.rpartition(".")
    recipe = rooms.recipe_function(OF_ROOM[field])() if field else Recipe()
    return getattr(getattr(recipe, field) if field else recipe, setting)


def test_the_table_of_limits_matches_the_source() -> None:
    table = table_of_limits()
    assert {where: float(in_source(where)) for where in table} == table


def test_no_limit_is_missing_from_the_table() -> None:
    listed = set(table_of_limits()) | NO_CAPS
    for field, name in OF_ROOM.items():
        config = getattr(rooms.recipe_function(name)(), field)
        settings = [f.name for f in dataclasses.fields(config) if f.name.startswith("max_")]
        assert {f"{field}.{setting}" for setting in settings} <= listed
    for limit in ("MAX_BYTES", "MEMORY", "SECONDS", "HANDLES", "DEPTH", "ITEMS", "SWELL"):
        assert f"engine/models/sandbox.py {limit}" in listed
