import pytest

from quintet.speech.voicebox.model import VoiceBox
from speech.small import voicebox


@pytest.fixture
def model() -> VoiceBox:
    return voicebox()
