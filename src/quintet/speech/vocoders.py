"""Published vocoders for the frames of a model."""

from pathlib import Path

from quintet.engine.errors import RunError
from quintet.nn.vocoder import Vocos, load_vocos
from quintet.speech.config import VoiceBoxConfig


def matching_vocoder(folder: str | Path, config: VoiceBoxConfig) -> Vocos:
    """Vocos from a folder, checked against the features of the model."""
    try:
        vocoder = load_vocos(folder)
    except ValueError as error:
        raise RunError(str(error)) from None
    for name in ("sample_rate", "n_mels", "hop_length", "n_fft"):
        theirs, ours = getattr(vocoder.config, name), getattr(config, name)
        if theirs != ours:
            raise RunError(f"the vocoder at {folder} has {name} = {theirs}, the model {ours}")
    return vocoder
