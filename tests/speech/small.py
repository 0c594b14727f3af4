"""A model small enough to hold in the head, and recordings that it takes."""

from hashlib import blake2b
from random import Random
from typing import Any

import torch

from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets
from quintet.speech.voicebox.config import VoiceBoxConfig
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voices import SPEAKERS, Speaker, Utterance
from quintet.speech.voices import utter as utter_at_random

MODEL: dict[str, Any] = {
    "sample_rate": 8_000,
    "n_fft": 512,
    "hop_length": 128,
    "n_mels": 20,
    "dim": 32,
    "depth": 2,
    "heads": 2,
    "head_dim": 16,
    "registers": 2,
    "kernel": 5,
    "text_dim": 16,
    "align_dim": 16,
    "duration_dim": 64,
    "duration_depth": 1,
    "edges": False,
}
DATA: dict[str, Any] = {
    "sample_rate": 8_000,
    "max_seconds": 2.0,
    "text_length": 24,
    "buckets": 3,
    "builtin_count": 40,
    "valid_limit": 4,
    "valid_fraction": 0.2,
    "exclude_held_out": False,  # most recordings of the tests are alike
}


def voicebox(**changes: Any) -> VoiceBox:
    """With weights that all matter: as it is built, branches end in zeros."""
    torch.manual_seed(0)
    model = VoiceBox(**MODEL | changes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def small_buckets(**changes: Any) -> Buckets:
    return Buckets(SpeechDataConfig(**DATA | changes), VoiceBoxConfig(**MODEL))


def utter(text: str, speaker: Speaker = SPEAKERS[0], seed: int = 0) -> Utterance:
    digest = blake2b(f"voice/{seed}/{speaker}/{text}".encode(), digest_size=16).digest()
    return utter_at_random(text, speaker, Random(int.from_bytes(digest, "big")))
