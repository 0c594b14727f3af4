import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the campaign is no part of the package

import benchmarks.torture.children  # noqa: F401, now: it names a preload, and ours comes after it
from benchmarks.torture import subjects


@pytest.fixture(scope="module", autouse=True)
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What cases leave behind goes where pytest clears up."""
    before, subjects.PLACE = subjects.PLACE, tmp_path_factory.mktemp("torture")
    yield
    subjects.PLACE = before
