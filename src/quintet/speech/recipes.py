"""Recipes of the speech room: `quintet train speech/NAME` calls the function NAME."""

from dataclasses import replace

from quintet.engine.config import OptimizerConfig
from quintet.speech.config import SpeechDataConfig
from quintet.speech.vocoder.config import VocoderConfig, VocoderDataConfig, VocoderRecipe
from quintet.speech.voicebox.config import SamplingConfig, VoiceBoxConfig, VoiceBoxRecipe


def voicebox() -> VoiceBoxRecipe:
    """Text to speech at 24 kHz, up to 5 seconds; for one GPU and three minutes."""
    return VoiceBoxRecipe(
        steps=4400,
        batch_size=24,
        workers=14,
        evaluate_every=4400,
        judges=("all",),
        save_every=1800,
        model=VoiceBoxConfig(depth=10, edges=False),
        recordings=SpeechDataConfig(
            max_seconds=5.0, text_length=48, buckets=3, builtin_count=40_000, valid_limit=256
        ),
        sampling=SamplingConfig(steps=4, method="euler", sway=0.0, cond_scale=1.0, count=64),
        optim=OptimizerConfig(learning_rate=5e-4, warmup_steps=300, ema_decay=0.998),
    )


def voicebox_tiny() -> VoiceBoxRecipe:
    """The same for up to 3 seconds; for two CPU cores and four minutes."""
    return VoiceBoxRecipe(
        steps=600,
        batch_size=6,
        precision="fp32",  # at this width, casts cost a CPU more than bf16 gains
        workers=1,
        evaluate_every=600,
        save_every=300,
        model=VoiceBoxConfig(
            dim=160,
            depth=5,
            heads=5,
            head_dim=32,
            registers=4,
            kernel=15,
            edges=False,
            text_dim=64,
            align_dim=64,
            duration_dim=64,
            duration_depth=2,
        ),
        recordings=SpeechDataConfig(
            max_seconds=3.0, text_length=36, buckets=3, builtin_count=10_000, valid_limit=96
        ),
        sampling=SamplingConfig(steps=4, method="euler", sway=0.0, cond_scale=1.0, count=16),
        optim=OptimizerConfig(learning_rate=3e-3, warmup_steps=50, ema_decay=0.98),
    )


def voicebox_medium() -> VoiceBoxRecipe:
    """Sentences of up to 10 seconds, from an hour or two of recordings; for one GPU."""
    short = voicebox()
    return replace(
        short,
        steps=4000,
        evaluate_every=2000,
        save_every=1000,
        model=VoiceBoxConfig(depth=10, duration_dropout=0.2),
        recordings=replace(short.recordings, max_seconds=10.0, text_length=224),
        sampling=SamplingConfig(count=64),
        optim=replace(short.optim, optimizer="muon"),
    )


def voicebox_large() -> VoiceBoxRecipe:
    """Text to speech at 24 kHz, up to 16 seconds; a day on one H200 (216 M)."""
    return VoiceBoxRecipe(
        steps=400_000,
        batch_size=32,
        workers=14,
        log_every=50,
        evaluate_every=10_000,
        judges=("all",),
        save_every=2000,
        model=VoiceBoxConfig(dim=1024, depth=16, heads=16),
        recordings=SpeechDataConfig(
            max_seconds=16.0, text_length=512, builtin_count=20_000, valid_limit=256
        ),
        sampling=SamplingConfig(count=64),
        optim=OptimizerConfig(
            learning_rate=2e-4, warmup_steps=4000, final_lr_ratio=0.05, ema_decay=0.9995
        ),
    )


def vocoder() -> VocoderRecipe:
    """Vocoder of log-mels at 24 kHz, for speech and music; for one GPU and ten minutes."""
    return VocoderRecipe(
        steps=12_000,
        batch_size=32,
        workers=14,
        evaluate_every=6000,
        save_every=3000,
        recordings=VocoderDataConfig(builtin_count=20_000, speed=0.25),
        optim=OptimizerConfig(learning_rate=5e-4, betas=(0.8, 0.99), ema_decay=0.998),
    )


def vocoder_tiny() -> VocoderRecipe:
    """The same, smaller; for two CPU cores and three minutes."""
    return VocoderRecipe(
        steps=1000,
        batch_size=8,
        precision="fp32",  # at this width, casts cost a CPU more than bf16 gains
        workers=1,
        evaluate_every=1000,
        save_every=500,
        model=VocoderConfig(dim=160, depth=4),
        recordings=VocoderDataConfig(
            seconds=0.34, valid_seconds=2.0, builtin_count=4000, valid_limit=16
        ),
        optim=OptimizerConfig(
            learning_rate=2e-3, betas=(0.8, 0.99), warmup_steps=50, ema_decay=0.98
        ),
    )
