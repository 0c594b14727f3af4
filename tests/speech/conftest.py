from collections.abc import Iterator

import pytest

from harness import HEARD
from quintet.speech import recognition
from quintet.speech.voicebox.model import VoiceBox
from speech.small import voicebox


@pytest.fixture
def model() -> VoiceBox:
    return voicebox()


@pytest.fixture
def well_heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The classifier of syllables as users have it."""
    monkeypatch.setattr(recognition, "UTTERANCES", HEARD)
    recognition.fitted.cache_clear()
    yield
    recognition.fitted.cache_clear()


@pytest.fixture(scope="module")
def well_heard_by_all() -> Iterator[None]:
    """The same for a file, fitted once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recognition, "UTTERANCES", HEARD)
        recognition.fitted.cache_clear()
        yield
        recognition.fitted.cache_clear()
