"""Vocoders for the frames of a model: trained ones, and published Vocos weights."""

from pathlib import Path
from typing import Any

from torch import nn

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import read_json, split_step
from quintet.nn.vocos import load_vocos
from quintet.speech.vocoder.model import Vocoder
from quintet.speech.voicebox.config import VoiceBoxConfig


def matching_vocoder(folder: str | Path, config: VoiceBoxConfig) -> nn.Module:
    """From a run or an export of a vocoder, or from a folder of Vocos weights; checked against the
    features of the model."""
    about = split_step(folder)[0] / "config.json"
    values = read_json(about) if about.is_file() else {}
    vocoder: Any
    if Vocoder.label() in (values.get("model"), (values.get("main") or {}).get("model")):
        vocoder = Vocoder.from_pretrained(folder).requires_grad_(False)
    else:
        try:
            vocoder = load_vocos(folder)
        except ValueError as error:
            raise RunError(str(error)) from None
    for name in ("sample_rate", "n_mels", "hop_length", "n_fft"):
        theirs, ours = getattr(vocoder.config, name), getattr(config, name)
        if theirs != ours:
            raise RunError(f"the vocoder at {folder} has {name} = {theirs}, the model {ours}")
    return vocoder
