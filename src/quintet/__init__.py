"""Quintet: train generative models of five kinds of media with one engine.

The public names are loaded on first use, so that `import quintet` and `quintet --help` are instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

from quintet.version import __version__

if TYPE_CHECKING:
    from quintet.compat.names import ConditionalFlowMatcherWrapper
    from quintet.encoding import encode
    from quintet.engine.trainer import Trainer
    from quintet.image.adopt.trainer import ImageDecoderTrainer
    from quintet.image.flow.model import ImageFlow
    from quintet.image.flow.trainer import ImageFlowFewTrainer, ImageFlowTrainer
    from quintet.image.maskgit.model import MaskGit
    from quintet.image.maskgit.trainer import MaskGitTrainer
    from quintet.image.vqgan.model import VQGanVAE
    from quintet.image.vqgan.trainer import VQGanVAETrainer
    from quintet.mesh.autoencoder.model import MeshAutoencoder
    from quintet.mesh.autoencoder.trainer import MeshAutoencoderTrainer
    from quintet.mesh.retopology.model import Retopology
    from quintet.mesh.retopology.trainer import RetopologyTrainer
    from quintet.mesh.transformer.model import MeshTransformer
    from quintet.mesh.transformer.trainer import MeshTransformerTrainer
    from quintet.music.codec.model import Codec
    from quintet.music.codec.trainer import CodecTrainer
    from quintet.music.flow.model import MusicFlow
    from quintet.music.flow.trainer import MusicFlowTrainer
    from quintet.music.mulan.model import MuLaN
    from quintet.music.mulan.trainer import MuLaNTrainer
    from quintet.rooms import load
    from quintet.shared.generation.module import LatentModule
    from quintet.shared.generation.pixels import PixelLatents
    from quintet.speech.vocoder.model import Vocoder
    from quintet.speech.vocoder.trainer import VocoderTrainer
    from quintet.speech.voicebox.model import VoiceBox
    from quintet.speech.voicebox.trainer import VoiceBoxTrainer
    from quintet.video.flow.model import VideoFlow
    from quintet.video.flow.trainer import VideoFlowFewTrainer, VideoFlowTrainer
    from quintet.video.maskgit.model import VideoMaskGit
    from quintet.video.maskgit.trainer import VideoMaskGitTrainer
    from quintet.video.tokenizer.model import VideoTokenizer
    from quintet.video.tokenizer.trainer import VideoTokenizerTrainer


_PLACES = {
    "Codec": "quintet.music.codec.model",
    "CodecTrainer": "quintet.music.codec.trainer",
    "ConditionalFlowMatcherWrapper": "quintet.compat.names",
    "ImageFlow": "quintet.image.flow.model",
    "ImageDecoderTrainer": "quintet.image.adopt.trainer",
    "ImageFlowFewTrainer": "quintet.image.flow.trainer",
    "ImageFlowTrainer": "quintet.image.flow.trainer",
    "LatentModule": "quintet.shared.generation.module",
    "MaskGit": "quintet.image.maskgit.model",
    "MaskGitTrainer": "quintet.image.maskgit.trainer",
    "MeshAutoencoder": "quintet.mesh.autoencoder.model",
    "MeshAutoencoderTrainer": "quintet.mesh.autoencoder.trainer",
    "MeshTransformer": "quintet.mesh.transformer.model",
    "MeshTransformerTrainer": "quintet.mesh.transformer.trainer",
    "MuLaN": "quintet.music.mulan.model",
    "MuLaNTrainer": "quintet.music.mulan.trainer",
    "MusicFlow": "quintet.music.flow.model",
    "MusicFlowTrainer": "quintet.music.flow.trainer",
    "PixelLatents": "quintet.shared.generation.pixels",
    "Retopology": "quintet.mesh.retopology.model",
    "RetopologyTrainer": "quintet.mesh.retopology.trainer",
    "Trainer": "quintet.engine.trainer",
    "VQGanVAE": "quintet.image.vqgan.model",
    "VQGanVAETrainer": "quintet.image.vqgan.trainer",
    "VideoFlow": "quintet.video.flow.model",
    "VideoFlowFewTrainer": "quintet.video.flow.trainer",
    "VideoFlowTrainer": "quintet.video.flow.trainer",
    "VideoMaskGit": "quintet.video.maskgit.model",
    "VideoMaskGitTrainer": "quintet.video.maskgit.trainer",
    "VideoTokenizer": "quintet.video.tokenizer.model",
    "VideoTokenizerTrainer": "quintet.video.tokenizer.trainer",
    "Vocoder": "quintet.speech.vocoder.model",
    "VocoderTrainer": "quintet.speech.vocoder.trainer",
    "VoiceBox": "quintet.speech.voicebox.model",
    "VoiceBoxTrainer": "quintet.speech.voicebox.trainer",
    "encode": "quintet.encoding",
    "load": "quintet.rooms",
}

__all__ = [
    "Codec",
    "CodecTrainer",
    "ConditionalFlowMatcherWrapper",
    "ImageDecoderTrainer",
    "ImageFlow",
    "ImageFlowFewTrainer",
    "ImageFlowTrainer",
    "LatentModule",
    "MaskGit",
    "MaskGitTrainer",
    "MeshAutoencoder",
    "MeshAutoencoderTrainer",
    "MeshTransformer",
    "MeshTransformerTrainer",
    "MuLaN",
    "MuLaNTrainer",
    "MusicFlow",
    "MusicFlowTrainer",
    "PixelLatents",
    "Retopology",
    "RetopologyTrainer",
    "Trainer",
    "VQGanVAE",
    "VQGanVAETrainer",
    "VideoFlow",
    "VideoFlowFewTrainer",
    "VideoFlowTrainer",
    "VideoMaskGit",
    "VideoMaskGitTrainer",
    "VideoTokenizer",
    "VideoTokenizerTrainer",
    "Vocoder",
    "VocoderTrainer",
    "VoiceBox",
    "VoiceBoxTrainer",
    "__version__",
    "encode",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        from quintet.compat import names

        if name in names.INSTEAD:
            raise names.missing(name)
        raise AttributeError(f"quintet has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)
