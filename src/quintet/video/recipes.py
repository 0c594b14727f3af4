"""Recipes of the video room. `quintet train video/NAME` calls the function NAME."""

from dataclasses import replace

from quintet.engine.config import OptimizerConfig
from quintet.shared.flow.config import SolverConfig
from quintet.shared.maskgit.config import DecodingConfig
from quintet.shared.tokenizer.config import DiscriminatorConfig, discriminator_optimizer
from quintet.video.adopt.config import VideoAdoptRecipe
from quintet.video.config import VideoDataConfig
from quintet.video.flow.config import VideoFlowConfig, VideoFlowFewRecipe, VideoFlowRecipe
from quintet.video.maskgit.config import VideoMaskGitConfig, VideoMaskGitRecipe
from quintet.video.tokenizer.config import (
    MotionDiscriminatorConfig,
    VideoLossConfig,
    VideoRecipe,
    VideoTokenizerConfig,
)


def tokenizer() -> VideoRecipe:
    """A tokenizer of 17 x 128 x 128 clips, an id of 54 bits per 4 x 8 x 8; for one GPU."""
    return VideoRecipe(
        steps=7000,
        batch_size=8,  # 136 frames per step; larger batches leave too few steps in four minutes
        workers=12,
        evaluate_every=7000,
        evaluate_batch=32,
        save_every=3500,
        model=VideoTokenizerConfig(
            init_dim=256,
            max_dim=512,
            patch_size=4,
            squeeze_excite=False,
            layers=(
                "residual",
                "compress_space",
                ("consecutive_residual", 2),
                "compress_time",
                "residual",
                "compress_time",
                ("consecutive_residual", 2),
            ),
            levels=(8,) * 18,  # fewer keep less of a clip than its mean frame; six digits
        ),
        videos=VideoDataConfig(builtin_count=1_000_000, valid_limit=1024),
        losses=VideoLossConfig(perceptual=0.1, adversarial_from=0.85, adversarial_share=0.1),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=6e-4, warmup_steps=200, ema_decay=0.998
        ),
        discriminator_optim=discriminator_optimizer(1e-4, 100),
    )


def tokenizer_tiny() -> VideoRecipe:
    """The same with 9 x 32 x 32 clips and 1,600 codes; four minutes on two CPU cores."""
    return VideoRecipe(
        steps=600,
        batch_size=8,
        workers=1,
        evaluate_every=300,
        save_every=300,
        model=VideoTokenizerConfig(
            init_dim=64,
            max_dim=128,
            patch_size=4,
            squeeze_excite=False,
            levels=(8, 8, 5, 5),
            layers=("residual", "compress_time", ("consecutive_residual", 2)),
        ),
        frame_discriminator=DiscriminatorConfig(dim=32, layers=2),
        motion_discriminator=MotionDiscriminatorConfig(dim=16, layers=2),
        videos=VideoDataConfig(frames=9, size=(32, 32), builtin_count=20_000, valid_limit=128),
        losses=VideoLossConfig(
            perceptual=0.2,
            adversarial_from=0.7,
            adversarial_share=0.2,
            adversarial_warmup_steps=50,
        ),
        optim=OptimizerConfig(learning_rate=2e-3, warmup_steps=50, ema_decay=0.99),
        discriminator_optim=discriminator_optimizer(3e-4, 50),
    )


def autoencoder() -> VideoRecipe:
    """An autoencoder of 17 x 128 x 128 clips, 32 numbers per 4 x 8 x 8; for one GPU."""
    small = tokenizer()
    return replace(
        small,
        model=replace(small.model, quantiser="kl", latent_channels=32),
        losses=VideoLossConfig(perceptual=0.1, adversarial="none"),
    )


def autoencoder_tiny() -> VideoRecipe:
    """The same with 9 x 32 x 32 clips and 8 numbers per 2 x 4 x 4; three minutes on two CPU
    cores."""
    small = tokenizer_tiny()
    return replace(
        small,
        model=replace(small.model, quantiser="kl", latent_channels=8),
        losses=VideoLossConfig(perceptual=0.2, adversarial="none"),
    )


def flow() -> VideoFlowRecipe:
    """Text to 17 x 128 x 128 clips over the latents of a trained autoencoder; for one GPU."""
    return VideoFlowRecipe(
        steps=4500,
        batch_size=128,
        workers=12,
        evaluate_every=4500,
        save_every=2250,
        model=VideoFlowConfig(dim=768, layers=6, heads=12, text_layers=1, patch=2),
        videos=VideoDataConfig(
            size=(128, 128), builtin="figures", builtin_count=40_000, valid_limit=256
        ),
        generation=SolverConfig(count=128, reference_count=512),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=1e-3, warmup_steps=100, ema_decay=0.998
        ),
    )


def flow_tiny() -> VideoFlowRecipe:
    """The same with 5 x 48 x 48 clips of one large figure, for two CPU cores."""
    return VideoFlowRecipe(
        steps=1500,
        batch_size=16,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=1500,
        save_every=750,
        model=VideoFlowConfig(
            patch=2,
            dim=128,
            layers=4,
            heads=4,
            head_dim=32,
            text_length=16,
            text_layers=1,
            shift=1.5,
        ),
        videos=VideoDataConfig(
            frames=5, size=(48, 48), builtin="figure", builtin_count=4000, valid_limit=64
        ),
        generation=SolverConfig(count=64, reference_count=512),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=1.5e-3, warmup_steps=50, ema_decay=0.99
        ),
    )


def flow_large() -> VideoFlowRecipe:
    """The same with 17 x 256 x 256 clips; a day on one H200 (335 M)."""
    small = flow()
    return replace(
        small,
        steps=200_000,
        batch_size=32,
        workers=14,
        log_every=50,
        evaluate_every=20_000,
        save_every=5000,
        model=replace(small.model, grid=(5, 32, 32), dim=1024, layers=24, heads=16, text_length=64),
        videos=replace(small.videos, size=(256, 256), builtin_count=1_000_000),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=5e-4, warmup_steps=2000, ema_decay=0.9998
        ),
    )


def continuation() -> VideoFlowRecipe:
    """Continue 17 x 128 x 128 clips from their first frames, without captions; for one GPU."""
    small = flow()
    return replace(
        small,
        steps=1200,  # a folder of some hundred clips is learned by heart in more
        evaluate_every=1200,
        save_every=600,
        variants=16,
        known_share=0.9,
        model=replace(small.model, changes=True, text="none", dropout=0.1),
        videos=replace(small.videos, builtin="scenes", builtin_count=5000),
    )


def continuation_tiny() -> VideoFlowRecipe:
    """The same with 9 x 32 x 32 clips, for two CPU cores."""
    small = flow_tiny()
    return replace(
        small,
        steps=600,
        evaluate_every=600,
        save_every=300,
        known_share=0.9,
        model=replace(small.model, changes=True, text="none"),
        videos=replace(small.videos, frames=9, size=(32, 32), builtin="scenes"),
    )


def flow_few() -> VideoFlowFewRecipe:
    """Distil a flow generator of clips to 1 to 8 steps; for one GPU."""
    taught = flow()
    return VideoFlowFewRecipe(
        steps=600,
        batch_size=64,
        workers=12,
        evaluate_every=600,
        save_every=300,
        text_drop=0.0,
        videos=taught.videos,
        generation=replace(taught.generation, sampling_steps=4),
        optim=replace(taught.optim, learning_rate=5e-4, warmup_steps=50, ema_decay=0.99),
    )


def flow_few_tiny() -> VideoFlowFewRecipe:
    """The same with 5 x 48 x 48 clips of one large figure, for two CPU cores."""
    taught = flow_tiny()
    return VideoFlowFewRecipe(
        steps=400,
        batch_size=16,
        precision="fp32",
        workers=1,
        evaluate_every=400,
        save_every=200,
        text_drop=0.0,
        videos=taught.videos,
        generation=replace(taught.generation, sampling_steps=4),
        optim=replace(taught.optim, learning_rate=7e-4),
    )


def maskgit() -> VideoMaskGitRecipe:
    """Text to 17 x 128 x 128 clips over the ids of a trained tokenizer; for one GPU."""
    return VideoMaskGitRecipe(
        steps=4000,
        batch_size=32,
        workers=12,
        evaluate_every=4000,
        save_every=2000,
        model=VideoMaskGitConfig(dim=768, layers=8, heads=12, text_length=96),
        videos=VideoDataConfig(
            size=(128, 128), builtin="figures", builtin_count=20_000, valid_limit=256
        ),
        generation=DecodingConfig(count=128, sampling_steps=16, reference_count=512),
        optim=OptimizerConfig(
            learning_rate=5e-4, warmup_steps=300, weight_decay=0.03, ema_decay=0.998
        ),
    )


def maskgit_tiny() -> VideoMaskGitRecipe:
    """The same with 5 x 48 x 48 clips of one large figure, for two CPU cores."""
    return VideoMaskGitRecipe(
        steps=700,
        batch_size=16,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=700,
        save_every=350,
        model=VideoMaskGitConfig(
            dim=128, layers=4, heads=4, head_dim=32, text="words", text_length=16, text_layers=1
        ),
        videos=VideoDataConfig(
            frames=5, size=(48, 48), builtin="figure", builtin_count=4000, valid_limit=64
        ),
        # Settings of image/maskgit_tiny.
        generation=DecodingConfig(
            count=64, temperature=0.4, choice_temperature=1.0, cond_scale=2.0, reference_count=512
        ),
        optim=OptimizerConfig(learning_rate=1.5e-3, warmup_steps=50, ema_decay=0.99),
    )


def tokenizer_large() -> VideoRecipe:
    """A tokenizer of 17 x 256 x 256 clips, one id per 4 x 8 x 8; a day on one H200 (64 M)."""
    small = tokenizer()
    layers = (
        ("consecutive_residual", 2),
        "compress_space",
        ("consecutive_residual", 3),
        "compress_time",
        ("consecutive_residual", 2),
        "compress_time",
        ("consecutive_residual", 3),
    )
    return replace(
        small,
        steps=250_000,
        batch_size=16,
        workers=14,
        log_every=50,
        evaluate_every=10_000,
        evaluate_batch=None,
        save_every=2000,
        model=replace(small.model, layers=layers),
        frame_discriminator=DiscriminatorConfig(dim=64, layers=4),
        videos=replace(small.videos, size=(256, 256), valid_limit=512),
        losses=replace(small.losses, adversarial_from=0.5),
        optim=OptimizerConfig(
            optimizer="muon",
            learning_rate=3e-4,
            warmup_steps=2000,
            final_lr_ratio=0.05,
            ema_decay=0.9995,
        ),
        discriminator_optim=discriminator_optimizer(1e-4, 1000),
    )


def adopt() -> VideoAdoptRecipe:
    """Fine-tune the decoder of a diffusers autoencoder on 17 x 256 x 256 clips; for one GPU."""
    return VideoAdoptRecipe(
        steps=5000,
        batch_size=2,
        workers=12,
        evaluate_every=1000,
        save_every=1000,
        warm_discriminator=500,
        videos=VideoDataConfig(size=(256, 256), builtin_count=1_000_000),
        losses=VideoLossConfig(perceptual=0.1, adversarial_share=0.1),
        optim=OptimizerConfig(learning_rate=5e-5, warmup_steps=100),
        discriminator_optim=discriminator_optimizer(1e-4, 100),
    )


def adopt_tiny() -> VideoAdoptRecipe:
    """The same with 9 x 32 x 32 clips and small discriminators; to try on a CPU."""
    return replace(
        adopt(),
        steps=200,
        workers=1,
        evaluate_every=100,
        save_every=100,
        warm_discriminator=20,
        frame_discriminator=DiscriminatorConfig(dim=32, layers=2),
        motion_discriminator=MotionDiscriminatorConfig(dim=16, layers=2),
        videos=VideoDataConfig(frames=9, size=(32, 32), builtin_count=20_000, valid_limit=32),
        optim=OptimizerConfig(learning_rate=3e-4, warmup_steps=20, ema_decay=0.98),
    )
