from collections.abc import Iterator

import pytest

import campaign.children  # noqa: F401, now: it names a preload, and ours comes after it
from campaign import subjects


@pytest.fixture(scope="module", autouse=True)
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What cases leave behind goes where pytest clears up."""
    before, subjects.FOLDER = subjects.FOLDER, tmp_path_factory.mktemp("campaign")
    yield
    subjects.FOLDER = before
