"""Published vocoders that read the frames of a model."""

from pathlib import Path

from quintet.engine.errors import RunError
from quintet.nn.vocoder import Vocos, load_vocos
from quintet.speech.config import VoiceBoxConfig


def matching_vocoder(folder: str | Path, config: VoiceBoxConfig) -> Vocos:
    """Vocos from a folder, if it reads the frames that the model makes."""
    try:
        vocoder = load_vocos(folder)
    except ValueError as error:
        raise RunError(str(error)) from None
    its = vocoder.config
    pairs = {
        "samples a second": (its.rate, config.rate),
        "bins": (its.bins, config.bins),
        "samples of a hop": (its.hop, config.hop),
        "samples of a transform": (its.n_fft, config.n_fft),
    }
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            raise RunError(f"the vocoder at {folder} has {theirs} {name}, the model {ours}")
    return vocoder
