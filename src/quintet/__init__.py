"""Quintet: train generative models of five kinds of media with one engine.

The public names are loaded on first use, so that `import quintet` and `quintet --help` are instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

from quintet.version import __version__

if TYPE_CHECKING:
    from quintet.engine.trainer import Trainer
    from quintet.image.model import MaskGit, VQGanVAE
    from quintet.image.trainer import MaskGitTrainer, VQGanVAETrainer
    from quintet.mesh.model import MeshAutoencoder, MeshTransformer
    from quintet.mesh.trainer import MeshAutoencoderTrainer, MeshTransformerTrainer
    from quintet.music.model import MuLaN
    from quintet.music.trainer import MuLaNTrainer
    from quintet.rooms import load
    from quintet.speech.model import Vocoder, VoiceBox
    from quintet.speech.trainer import VoiceBoxTrainer
    from quintet.speech.vocoder.trainer import VocoderTrainer
    from quintet.video.model import VideoMaskGit, VideoTokenizer
    from quintet.video.trainer import VideoMaskGitTrainer, VideoTokenizerTrainer


_PLACES = {
    "Trainer": "quintet.engine.trainer",
    "load": "quintet.rooms",
    "MaskGit": "quintet.image.model",
    "MaskGitTrainer": "quintet.image.trainer",
    "VQGanVAE": "quintet.image.model",
    "VQGanVAETrainer": "quintet.image.trainer",
    "MeshAutoencoder": "quintet.mesh.model",
    "MeshAutoencoderTrainer": "quintet.mesh.trainer",
    "MeshTransformer": "quintet.mesh.model",
    "MeshTransformerTrainer": "quintet.mesh.trainer",
    "MuLaN": "quintet.music.model",
    "MuLaNTrainer": "quintet.music.trainer",
    "Vocoder": "quintet.speech.model",
    "VocoderTrainer": "quintet.speech.vocoder.trainer",
    "VoiceBox": "quintet.speech.model",
    "VoiceBoxTrainer": "quintet.speech.trainer",
    "VideoMaskGit": "quintet.video.model",
    "VideoMaskGitTrainer": "quintet.video.trainer",
    "VideoTokenizer": "quintet.video.model",
    "VideoTokenizerTrainer": "quintet.video.trainer",
}

__all__ = [
    "MaskGit",
    "MaskGitTrainer",
    "MeshAutoencoder",
    "MeshAutoencoderTrainer",
    "MeshTransformer",
    "MeshTransformerTrainer",
    "MuLaN",
    "MuLaNTrainer",
    "Trainer",
    "VQGanVAE",
    "VQGanVAETrainer",
    "VideoMaskGit",
    "VideoMaskGitTrainer",
    "VideoTokenizer",
    "VideoTokenizerTrainer",
    "Vocoder",
    "VocoderTrainer",
    "VoiceBox",
    "VoiceBoxTrainer",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"quintet has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)
