"""Recipes of the music room: `quintet train music/NAME` calls the function NAME."""

from dataclasses import replace

from quintet.engine.config import OptimizerConfig
from quintet.music.adopt.config import CodecAdoptRecipe
from quintet.music.clap.config import ClapRecipe
from quintet.music.codec.config import WAVEFORM, CodecConfig, CodecRecipe
from quintet.music.config import CodecDataConfig, CodecLossConfig, MusicDataConfig
from quintet.music.flow.config import MusicFlowConfig, MusicFlowRecipe, SongDataConfig
from quintet.music.mulan.config import MuLaNConfig, MuLaNRecipe
from quintet.shared.config import SoundDiscriminatorConfig
from quintet.shared.flow.config import SolverConfig


def mulan() -> MuLaNRecipe:
    """MuLaN on 4-second clips and 128-byte captions, 128-dimensional embeddings; for one GPU."""
    return MuLaNRecipe(
        steps=1600,
        batch_size=512,
        workers=14,
        evaluate_every=1600,
        save_every=1200,
        model=MuLaNConfig(
            f_min=30.0,
            hop_length=256,
            patch_size=(16, 8),
            dim=384,
            heads=6,
            text_length=128,
            text_dim=384,
            text_layers=4,
            text_heads=6,
        ),
        sounds=MusicDataConfig(
            seconds=4.0,
            min_seconds=4.0,
            builtin_count=1_000_000,
            valid_limit=1536,
            partial_captions=0.3,
        ),
        optim=OptimizerConfig(
            learning_rate=1e-3, warmup_steps=200, weight_decay=0.05, ema_decay=0.998
        ),
    )


def mulan_tiny() -> MuLaNRecipe:
    """A small MuLaN on 4-second clips at 8 kHz; four minutes on two CPU cores."""
    return MuLaNRecipe(
        steps=260,
        batch_size=64,
        precision="fp32",  # at this width a CPU loses more time in casts than it gains
        workers=1,
        evaluate_every=260,
        save_every=130,
        model=MuLaNConfig(
            sample_rate=8000,
            n_fft=1024,
            hop_length=256,
            f_min=30.0,
            n_mels=96,
            patch_size=(16, 8),
            dim=128,
            layers=3,
            heads=2,
            text_length=112,
            text_dim=128,
            text_layers=2,
            text_heads=2,
            quantiser_depth=4,
            quantiser_bits=8,
        ),
        sounds=MusicDataConfig(
            sample_rate=8000, seconds=4.0, min_seconds=4.0, builtin_count=20_000, valid_limit=256
        ),
        optim=OptimizerConfig(learning_rate=2e-3, warmup_steps=50, ema_decay=0.99),
    )


def mulan_large() -> MuLaNRecipe:
    """MuLaN on 10-second clips and 256-byte captions; a day and a half on one H200 (199 M)."""
    return MuLaNRecipe(
        steps=100_000,
        batch_size=128,
        accumulate=8,
        workers=14,
        log_every=50,
        evaluate_every=5000,
        save_every=1000,
        model=MuLaNConfig(
            f_min=30.0,
            dim=768,
            layers=14,
            heads=12,
            text_length=256,
            text_dim=768,
            text_layers=14,
            text_heads=12,
        ),
        sounds=MusicDataConfig(
            seconds=10.0,
            min_seconds=10.0,
            builtin_count=1_000_000,
            valid_limit=2048,
            partial_captions=0.3,
        ),
        optim=OptimizerConfig(
            optimizer="muon",
            learning_rate=5e-4,
            warmup_steps=2000,
            weight_decay=0.1,
            final_lr_ratio=0.05,
            ema_decay=0.9995,
        ),
    )


def codec() -> CodecRecipe:
    """A codec of 32 kHz mono, 32 numbers for each of 50 frames a second; for one GPU."""
    return CodecRecipe(
        steps=5000,
        batch_size=32,
        workers=14,
        evaluate_every=2500,
        save_every=1000,
        model=CodecConfig(),
        sounds=CodecDataConfig(seconds=0.5, builtin_count=4000, valid_limit=64),
        losses=CodecLossConfig(waveform=WAVEFORM, adversarial_from=0.3),
        discriminators=SoundDiscriminatorConfig(period_dim=16),
        optim=OptimizerConfig(
            learning_rate=4e-4, betas=(0.8, 0.99), warmup_steps=200, ema_decay=0.998
        ),
        discriminator_optim=OptimizerConfig(
            learning_rate=2e-4, warmup_steps=100, betas=(0.8, 0.99), ema_decay=0.0
        ),
    )


def codec_tiny() -> CodecRecipe:
    """A small codec of 16 kHz mono; seven minutes on two CPU cores."""
    return CodecRecipe(
        steps=1800,
        batch_size=8,
        precision="fp32",  # at this width a CPU loses more time in casts than it gains
        workers=1,
        evaluate_every=900,
        save_every=450,
        model=CodecConfig(sample_rate=16_000, strides=(40, 8)),
        sounds=CodecDataConfig(seconds=0.4, builtin_count=500, valid_limit=16),
        losses=CodecLossConfig(waveform=WAVEFORM, adversarial="none"),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=3e-3, betas=(0.8, 0.99), warmup_steps=30, ema_decay=0.99
        ),
    )


def codec_large() -> CodecRecipe:
    """A codec of 44.1 kHz stereo, 64 numbers for 86 frames a second; days on one H200 (136 M)."""
    return CodecRecipe(
        steps=250_000,
        batch_size=16,
        accumulate=4,
        workers=14,
        log_every=50,
        evaluate_every=5000,
        save_every=1000,
        model=CodecConfig(
            sample_rate=44_100, channels=2, dim=128, strides=(2, 4, 8, 8), latent_channels=64
        ),
        sounds=CodecDataConfig(seconds=0.5, builtin_count=4000, valid_limit=256),
        optim=OptimizerConfig(
            learning_rate=1e-4,
            betas=(0.8, 0.99),
            warmup_steps=2000,
            final_lr_ratio=0.05,
            ema_decay=0.9995,
        ),
        discriminator_optim=OptimizerConfig(
            learning_rate=1e-4, warmup_steps=2000, betas=(0.8, 0.99), ema_decay=0.0
        ),
    )


def flow() -> MusicFlowRecipe:
    """Text to 30 seconds of music over the latents of a trained codec; for one GPU."""
    return MusicFlowRecipe(
        steps=20_000,
        batch_size=32,
        workers=12,
        evaluate_every=5000,
        save_every=2500,
        model=MusicFlowConfig(grid=(1500,), latent_channels=32, dim=768, layers=12, heads=12),
        sounds=SongDataConfig(seconds=30.0, builtin_count=20_000),
        generation=SolverConfig(count=64, reference_count=512),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=1e-3, warmup_steps=200, ema_decay=0.999
        ),
    )


def flow_tiny() -> MusicFlowRecipe:
    """The same with motifs of three seconds, for two CPU cores."""
    return MusicFlowRecipe(
        steps=1600,
        batch_size=16,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=1600,
        save_every=800,
        known_share=0.15,
        model=MusicFlowConfig(
            patch=2,
            dim=128,
            layers=4,
            heads=4,
            head_dim=32,
            text_length=12,
            text_words=1024,
            text_layers=1,
        ),
        sounds=SongDataConfig(seconds=3.2, builtin="motifs", builtin_count=2000, valid_limit=64),
        generation=SolverConfig(count=64, reference_count=128),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=1.5e-3, warmup_steps=50, ema_decay=0.99
        ),
    )


def flow_large() -> MusicFlowRecipe:
    """The same with a codec of 44.1 kHz stereo; days on one H200 (347 M)."""
    small = flow()
    return replace(
        small,
        steps=400_000,
        workers=14,
        log_every=50,
        evaluate_every=20_000,
        save_every=5000,
        variants=8,
        model=replace(
            small.model,
            grid=(2584,),
            latent_channels=64,
            dim=1024,
            layers=24,
            heads=16,
            text_length=64,
        ),
        sounds=replace(small.sounds, builtin_count=1_000_000),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=5e-4, warmup_steps=2000, ema_decay=0.9998
        ),
    )


def adopt() -> CodecAdoptRecipe:
    """Fine-tune the decoder of a diffusers or transformers audio codec; for one GPU."""
    return CodecAdoptRecipe(
        steps=5000,
        batch_size=8,
        workers=12,
        evaluate_every=1000,
        save_every=1000,
        warm_discriminator=500,
        sounds=CodecDataConfig(builtin_count=20_000),
        optim=OptimizerConfig(learning_rate=5e-5, betas=(0.8, 0.99), warmup_steps=100),
        discriminator_optim=OptimizerConfig(
            learning_rate=2e-4, warmup_steps=100, betas=(0.8, 0.99), ema_decay=0.0
        ),
    )


def adopt_tiny() -> CodecAdoptRecipe:
    """The same with short segments and small discriminators; to try on a CPU."""
    return replace(
        adopt(),
        steps=200,
        batch_size=4,
        workers=1,
        evaluate_every=100,
        save_every=100,
        warm_discriminator=20,
        sounds=CodecDataConfig(seconds=0.25, valid_seconds=1.0, builtin_count=1000, valid_limit=16),
        discriminators=SoundDiscriminatorConfig(
            periods=(2, 5), period_dim=4, windows=(1024,), window_dim=8
        ),
        optim=OptimizerConfig(
            learning_rate=3e-4, betas=(0.8, 0.99), warmup_steps=20, ema_decay=0.98
        ),
    )


def clap() -> ClapRecipe:
    """Fine-tune a transformers ClapModel on clips of 10 seconds with captions; for one GPU."""
    return ClapRecipe(
        steps=2000,
        batch_size=64,
        workers=12,
        evaluate_every=500,
        save_every=500,
        sounds=MusicDataConfig(
            sample_rate=48_000, buckets=1, builtin_count=20_000, valid_limit=512
        ),
        optim=OptimizerConfig(learning_rate=1e-5, warmup_steps=100, weight_decay=0.01),
    )


def clap_tiny() -> ClapRecipe:
    """The same with 16 clips a step; to try on a CPU."""
    tried = clap()
    return replace(
        tried,
        steps=50,
        batch_size=16,
        workers=1,
        evaluate_every=50,
        save_every=50,
        sounds=replace(tried.sounds, builtin_count=1000, valid_limit=32),
        optim=replace(tried.optim, warmup_steps=10, ema_decay=0.9),
    )
