import gc
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if os.environ.get("PYTEST_XDIST_WORKER_COUNT") != "1":
    # Before torch is imported, here and in every program that a test starts: two processes of two
    # threads each spin against each other on two cores, and take three to five times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    # Runs wait for the disk after every file of a checkpoint, some milliseconds each time, and
    # tests write tens of thousands. A killed process loses nothing that it has written there.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shell starts `nohup make test &` with both ignored, and programs that tests interrupt would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

sys.path.insert(0, str(Path(__file__).parent))

SELDOM = (50_000, 20, 20)
"""Allocations until garbage is looked for; with the 700 of Python that took 3 % of all the time."""

if TYPE_CHECKING:  # xdist's own process collects nothing, and the others would wait for its torch
    from harness import Said


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest first: at the end one core would wait for it."""
    first = ("test_campaign", "test_readme", "test_types", "tests/video/")
    first += ("test_docs.py", "test_fresh_process")
    items.sort(key=lambda item: not any(name in item.nodeid for name in first))
    leave_second_forms(items, all("::" not in argument for argument in config.args))
    drawn = [item for item in items if getattr(getattr(item, "obj", None), "hypothesis", None)]
    if config.option.markexpr == "slow":
        for item in drawn:
            item.add_marker("slow")
    else:
        draw_a_third({item.obj for item in drawn})  # type: ignore[attr-defined]


def leave_second_forms(items: list[pytest.Item], whole: bool) -> None:
    """Of a test with `by_default`, the parameters that it does not name are slow tests; a name
    that none of them has is an error, where whole files are collected."""
    named: set[tuple[str, str]] = set()
    matched: set[tuple[str, str]] = set()
    for item in items:
        mark = item.get_closest_marker("by_default")
        if mark is None:
            continue
        case, test = item.callspec.id, item.nodeid.partition("[")[0]  # type: ignore[attr-defined]
        matching = {(test, name) for name in mark.args if fnmatchcase(case, name)}
        named |= {(test, name) for name in mark.args}
        matched |= matching
        if not matching:
            item.add_marker("slow")
    if whole and named - matched:
        raise pytest.UsageError(f"by_default names no parameter: {sorted(named - matched)}")


def draw_a_third(tests: Iterable[Any]) -> None:
    """Of the examples of hypothesis; the slow tests draw all of them."""
    for test in tests:
        from hypothesis import settings

        own: settings = test._hypothesis_internal_use_settings
        third = settings(own, max_examples=-(-own.max_examples // 3))
        test._hypothesis_internal_use_settings = third


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all of torch stay to the end; no collection of garbage need visit
    them, while they come or afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(*SELDOM)
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Nor what a file leaves behind, above all the libraries that it imported: to visit them took
    a tenth of all the time of the tests."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept between runs is kept for this session alone."""
    before = os.environ.get("QUINTET_CACHE")
    os.environ["QUINTET_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("QUINTET_CACHE")
    if before is not None:
        os.environ["QUINTET_CACHE"] = before


@pytest.fixture(autouse=True, scope="session")
def _preloaded() -> None:
    """After the collection: some files name another preload when they are imported."""
    from harness import draw_small, hear_little

    multiprocessing.set_forkserver_preload(["preload"])
    draw_small()
    hear_little()


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """Runs of the test are not evaluated, for no claim of it is about that."""
    from harness import unmeasured

    with unmeasured():
        yield


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> "Callable[..., Said]":
    """Calls `quintet …`; an exception other than SystemExit is a failure of the test."""
    from harness import Said
    from quintet.cli import main

    def call(*words: object) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(int(ended.value.code or 0), said.out, said.err)

    return call
