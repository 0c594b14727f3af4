"""Recipes of the image room. `quintet train image/NAME` calls the function NAME."""

from dataclasses import replace

from quintet.engine.config import OptimizerConfig
from quintet.image.adopt.config import ImageAdoptRecipe
from quintet.image.clip.config import CaptionedDataConfig, ClipRecipe
from quintet.image.config import ImageDataConfig
from quintet.image.flow.config import ImageFlowConfig, ImageFlowFewRecipe, ImageFlowRecipe
from quintet.image.maskgit.config import MaskGitConfig, MaskGitRecipe
from quintet.image.vqgan.config import VQGanRecipe, VQGanVAEConfig
from quintet.shared.flow.config import SolverConfig
from quintet.shared.maskgit.config import DecodingConfig
from quintet.shared.tokenizer.config import (
    DiscriminatorConfig,
    TokenizerLossConfig,
    discriminator_optimizer,
)


def vqgan() -> VQGanRecipe:
    """A tokenizer of 128 x 128 images, an id of 24 bits per 8 x 8 pixels; for one GPU."""
    return VQGanRecipe(
        steps=4000,
        batch_size=64,
        workers=12,
        evaluate_every=4000,
        save_every=2000,
        model=VQGanVAEConfig(
            dim=256,
            patch_size=4,
            channel_multipliers=(1, 2),
            num_res_blocks=(3, 4),
            attention_layers=1,
            levels=(8,) * 8,  # three digits for a generator
        ),
        discriminator=DiscriminatorConfig(dim=64, layers=3),
        images=ImageDataConfig(size=(128, 128), builtin_count=1_000_000, valid_limit=5120),
        losses=TokenizerLossConfig(
            perceptual=0.2,
            adversarial_from=0.7,
            adversarial_share=0.1,
            adversarial_warmup_steps=500,
        ),
        optim=OptimizerConfig(optimizer="muon", learning_rate=5e-4, warmup_steps=200),
        discriminator_optim=discriminator_optimizer(2e-4, 100),
    )


def vqgan_tiny() -> VQGanRecipe:
    """The same with 64 x 64 images and 1,600 codes; three minutes on two CPU cores."""
    return VQGanRecipe(
        steps=850,
        batch_size=16,
        workers=1,
        evaluate_every=425,
        save_every=425,
        model=VQGanVAEConfig(
            dim=64,
            patch_size=4,
            channel_multipliers=(1, 2),
            num_res_blocks=(1,),
            levels=(8, 8, 5, 5),
        ),
        discriminator=DiscriminatorConfig(dim=32, layers=2),
        images=ImageDataConfig(size=(64, 64), builtin_count=20_000),
        losses=TokenizerLossConfig(
            l2=4.0, adversarial_from=0.7, adversarial_share=0.2, adversarial_warmup_steps=50
        ),
        optim=OptimizerConfig(learning_rate=1e-3, warmup_steps=50, ema_decay=0.99),
        discriminator_optim=discriminator_optimizer(3e-4, 50),
    )


def autoencoder() -> VQGanRecipe:
    """An autoencoder of 128 x 128 images, 32 numbers per 8 x 8 pixels; for one GPU."""
    return replace(
        vqgan(),
        steps=3000,
        evaluate_every=3000,
        save_every=1500,
        model=replace(vqgan().model, quantiser="kl", latent_channels=32, attention_layers=0),
        losses=TokenizerLossConfig(l2=8.0, perceptual=0.2, adversarial="none"),
    )


def autoencoder_tiny() -> VQGanRecipe:
    """The same with 64 x 64 images and 4 numbers per 8 x 8 pixels; two minutes on two CPU cores."""
    return replace(
        vqgan_tiny(),
        steps=600,
        evaluate_every=300,
        save_every=300,
        model=replace(vqgan_tiny().model, quantiser="kl", latent_channels=4, kl_weight=1e-3),
        losses=TokenizerLossConfig(l2=8.0, perceptual=0.2, adversarial="none"),
    )


def flow() -> ImageFlowRecipe:
    """Text to 128 x 128 images over the latents of a trained autoencoder; for one GPU."""
    return ImageFlowRecipe(
        steps=4400,
        batch_size=128,
        workers=12,
        compile="off",  # the kernels are as fast
        evaluate_every=4400,
        save_every=2200,
        model=ImageFlowConfig(dim=768, layers=6, heads=12, text_layers=1),
        images=ImageDataConfig(
            size=(128, 128), builtin="figures", builtin_count=40_000, valid_limit=512
        ),
        generation=SolverConfig(count=256),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=1e-3, warmup_steps=100, ema_decay=0.998
        ),
    )


def flow_tiny() -> ImageFlowRecipe:
    """The same with 64 x 64 images of one figure, for two CPU cores."""
    return ImageFlowRecipe(
        steps=2000,
        batch_size=32,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=2000,
        save_every=1000,
        model=ImageFlowConfig(
            patch=2,
            dim=128,
            layers=4,
            heads=4,
            head_dim=32,
            text_length=12,
            text_layers=1,
        ),
        images=ImageDataConfig(
            size=(64, 64), builtin="figure", builtin_count=4000, valid_limit=128
        ),
        generation=SolverConfig(count=64, reference_count=512),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=1.5e-3, warmup_steps=50, ema_decay=0.99
        ),
    )


def flow_large() -> ImageFlowRecipe:
    """The same with 256 x 256 images; a day on one H200 (334 M)."""
    small = flow()
    return replace(
        small,
        steps=400_000,
        batch_size=256,
        workers=14,
        log_every=50,
        evaluate_every=20_000,
        save_every=5000,
        model=replace(
            small.model, grid=(32, 32), patch=2, dim=1024, layers=24, heads=16, text_length=64
        ),
        images=replace(small.images, size=(256, 256), builtin_count=1_000_000),
        optim=OptimizerConfig(
            optimizer="muon", learning_rate=5e-4, warmup_steps=2000, ema_decay=0.9998
        ),
    )


def flow_few() -> ImageFlowFewRecipe:
    """Distil a flow generator of images to 1 to 8 steps; for one GPU."""
    taught = flow()
    return ImageFlowFewRecipe(
        steps=400,
        batch_size=192,
        workers=12,
        evaluate_every=400,
        save_every=200,
        text_drop=0.0,
        images=taught.images,
        generation=replace(taught.generation, sampling_steps=4),
        optim=replace(taught.optim, learning_rate=5e-4, warmup_steps=50, ema_decay=0.99),
    )


def flow_few_tiny() -> ImageFlowFewRecipe:
    """The same with 64 x 64 images of one figure, for two CPU cores."""
    taught = flow_tiny()
    return ImageFlowFewRecipe(
        steps=400,
        batch_size=16,
        precision="fp32",
        workers=1,
        evaluate_every=400,
        save_every=200,
        text_drop=0.0,
        images=taught.images,
        generation=replace(taught.generation, sampling_steps=4),
        optim=replace(taught.optim, learning_rate=7e-4),
    )


def maskgit() -> MaskGitRecipe:
    """Text to 128 x 128 images over the ids of a trained tokenizer; for one GPU."""
    return MaskGitRecipe(
        steps=2500,
        batch_size=128,
        workers=12,
        evaluate_every=2500,
        save_every=1250,
        model=MaskGitConfig(dim=768, layers=8, heads=12, text_length=96),
        images=ImageDataConfig(
            size=(128, 128), builtin="figures", builtin_count=60_000, valid_limit=512
        ),
        # Fewer steps, more guidance or less noise: samples are more typical than data.
        generation=DecodingConfig(
            count=256, sampling_steps=64, temperature=1.0, choice_temperature=9.0, cond_scale=2.0
        ),
        optim=OptimizerConfig(
            learning_rate=6e-4, warmup_steps=300, weight_decay=0.03, ema_decay=0.998
        ),
    )


def maskgit_tiny() -> MaskGitRecipe:
    """The same with 64 x 64 images of one figure, for two CPU cores."""
    return MaskGitRecipe(
        steps=1150,
        batch_size=16,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=1150,
        save_every=575,
        model=MaskGitConfig(
            dim=128, layers=4, heads=4, head_dim=32, text="words", text_length=16, text_layers=1
        ),
        images=ImageDataConfig(
            size=(64, 64), builtin="figure", builtin_count=4000, valid_limit=128
        ),
        generation=DecodingConfig(
            count=64,
            temperature=0.4,
            choice_temperature=1.0,
            cond_scale=2.0,
            reference_count=512,
        ),
        # Muon would add a third to the time of so small a step.
        optim=OptimizerConfig(learning_rate=1.5e-3, warmup_steps=50, ema_decay=0.99),
    )


def vqgan_large() -> VQGanRecipe:
    """A tokenizer of 256 x 256 images, one id per 8 x 8 pixels; a day on one H200 (114 M)."""
    small = vqgan()
    return replace(
        small,
        steps=400_000,
        batch_size=128,
        workers=14,
        log_every=50,
        evaluate_every=10_000,
        evaluate_batch=64,
        save_every=2000,
        model=replace(small.model, num_res_blocks=(4, 8), attention_layers=2),
        discriminator=DiscriminatorConfig(dim=64, layers=4),
        images=replace(small.images, size=(256, 256)),
        losses=replace(small.losses, adversarial_from=0.4),
        optim=OptimizerConfig(
            optimizer="muon",
            learning_rate=3e-4,
            warmup_steps=2000,
            final_lr_ratio=0.05,
            ema_decay=0.9995,
        ),
        discriminator_optim=discriminator_optimizer(1e-4, 1000),
    )


def vqgan_large_f16() -> VQGanRecipe:
    """The same, one id per 16 x 16 pixels, 256 for an image; a day on one H200 (219 M)."""
    model = replace(
        vqgan().model, channel_multipliers=(1, 2, 4), num_res_blocks=(3, 4, 3), attention_layers=1
    )
    return replace(vqgan_large(), model=model)


def adopt() -> ImageAdoptRecipe:
    """Fine-tune the decoder of a diffusers autoencoder on 256 x 256 images; for one GPU."""
    return ImageAdoptRecipe(
        steps=5000,
        batch_size=8,
        workers=12,
        evaluate_every=1000,
        save_every=1000,
        warm_discriminator=500,
        images=ImageDataConfig(size=(256, 256), builtin_count=1_000_000),
        losses=TokenizerLossConfig(perceptual=0.2, adversarial_share=0.1),
        optim=OptimizerConfig(learning_rate=5e-5, warmup_steps=100),
        discriminator_optim=discriminator_optimizer(2e-4, 100),
    )


def adopt_tiny() -> ImageAdoptRecipe:
    """The same with 64 x 64 images and a small discriminator; to try on a CPU."""
    return replace(
        adopt(),
        steps=200,
        batch_size=4,
        workers=1,
        evaluate_every=100,
        save_every=100,
        warm_discriminator=20,
        discriminator=DiscriminatorConfig(dim=32, layers=2),
        images=ImageDataConfig(size=(64, 64), builtin_count=20_000, valid_limit=64),
        optim=OptimizerConfig(learning_rate=3e-4, warmup_steps=20, ema_decay=0.98),
    )


def clip() -> ClipRecipe:
    """Fine-tune a transformers CLIP on images with captions; for one GPU."""
    return ClipRecipe(
        steps=2000,
        batch_size=256,
        workers=12,
        evaluate_every=500,
        save_every=500,
        images=CaptionedDataConfig(builtin_count=1_000_000, valid_limit=1024),
        optim=OptimizerConfig(learning_rate=1e-5, warmup_steps=100, weight_decay=0.05),
    )


def clip_tiny() -> ClipRecipe:
    """The same with 16 images a step; to try on a CPU."""
    tried = clip()
    return replace(
        tried,
        steps=50,
        batch_size=16,
        workers=1,
        evaluate_every=50,
        save_every=50,
        images=replace(tried.images, builtin_count=1000, valid_limit=32),
        optim=replace(tried.optim, warmup_steps=10, ema_decay=0.9),
    )
