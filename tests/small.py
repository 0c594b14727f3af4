"""The smallest model of each trainer; only to be looked at, for the tests share them."""

from functools import cache
from typing import Any

import quintet

FLOW: dict[str, Any] = {"dim": 16, "layers": 1, "heads": 1, "head_dim": 16, "text_length": 8}


@cache
def autoencoder() -> Any:
    return quintet.MeshAutoencoder(dim=16, message_dim=8, encoder_layers=1, decoder_layers=1)


@cache
def transformer() -> Any:
    return quintet.MeshTransformer(
        autoencoder(), dim=16, layers=1, heads=1, head_dim=16, fine_heads=1, max_faces=16
    )


@cache
def retopology() -> Any:
    narrow = {"dim": 16, "layers": 1, "heads": 1, "head_dim": 16, "fine_heads": 1}
    return quintet.Retopology(
        points=32, latents=4, point_layers=1, max_faces=16, fine_layers=1, **narrow
    )


@cache
def tokenizer() -> Any:
    return quintet.VideoTokenizer(init_dim=8, max_dim=8, patch_size=4, layers=("residual",))


@cache
def vae() -> Any:
    return quintet.VQGanVAE(dim=8, patch_size=4, channel_multipliers=(1,), num_res_blocks=1)


@cache
def codec() -> Any:
    return quintet.Codec(dim=8, strides=(8, 8, 10), latent_channels=4)


@cache
def mulan() -> Any:
    small = {"dim": 16, "layers": 1, "heads": 1, "text_dim": 16, "text_layers": 1, "text_heads": 1}
    return quintet.MuLaN(None, sample_rate=8000, n_fft=256, hop_length=128, n_mels=32, **small)


@cache
def voicebox() -> Any:
    return quintet.VoiceBox(
        sample_rate=8000, n_fft=256, hop_length=128, n_mels=20, dim=16, depth=1, heads=1
    )


@cache
def vocoder() -> Any:
    return quintet.Vocoder(sample_rate=8000, n_fft=256, hop_length=128, n_mels=20, dim=16, depth=1)


@cache
def image_flow() -> Any:
    narrow = {"dim": 8, "patch_size": 4, "channel_multipliers": (1,), "num_res_blocks": 1}
    vae = quintet.VQGanVAE(quantiser="kl", latent_channels=4, **narrow)
    return quintet.ImageFlow(vae, image_size=16, **FLOW)


@cache
def video_flow() -> Any:
    narrow = {"init_dim": 8, "max_dim": 8, "patch_size": 4, "layers": ("residual",)}
    tokenizer = quintet.VideoTokenizer(quantiser="kl", latent_channels=4, **narrow)
    return quintet.VideoFlow(tokenizer, image_size=16, frames=5, **FLOW)


@cache
def music_flow() -> Any:
    return quintet.MusicFlow(codec(), seconds=0.2, **FLOW)


@cache
def maskgit() -> Any:
    return quintet.MaskGit(vae(), image_size=16, dim=16, layers=1, heads=1, text="words")


@cache
def video_maskgit() -> Any:
    return quintet.VideoMaskGit(
        tokenizer(), image_size=16, frames=5, dim=16, layers=1, heads=1, text="words"
    )
