"""Recipes for meshes. `quintet train mesh/NAME` calls the function NAME."""

from dataclasses import replace

from quintet.engine.config import OptimizerConfig
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig, MeshAutoencoderRecipe
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.retopology.config import (
    RetopologyConfig,
    RetopologyGeneration,
    RetopologyRecipe,
)
from quintet.mesh.transformer.config import (
    GenerationConfig,
    MeshTransformerConfig,
    MeshTransformerRecipe,
)


def autoencoder() -> MeshAutoencoderRecipe:
    """Tokenizer for meshes of up to 192 faces, two codes of 13,824 per vertex; needs a GPU."""
    return MeshAutoencoderRecipe(
        steps=1000,
        batch_size=64,
        workers=12,
        evaluate_every=1000,
        save_every=1000,
        meshes=MeshDataConfig(max_faces=192, builtin_count=1_000_000, valid_limit=2048),
        optim=OptimizerConfig(learning_rate=5e-4, warmup_steps=100),
    )


def autoencoder_tiny() -> MeshAutoencoderRecipe:
    """Tokenizer for up to 64 faces with 1,728 codes: two minutes on two CPU cores."""
    return MeshAutoencoderRecipe(
        steps=200,
        batch_size=16,
        workers=1,
        evaluate_every=100,
        save_every=100,
        model=MeshAutoencoderConfig(
            dim=96, message_dim=32, encoder_layers=2, decoder_layers=2, levels=(12, 12, 12)
        ),
        meshes=MeshDataConfig(max_faces=64, builtin_count=20_000, valid_limit=512),
        optim=OptimizerConfig(learning_rate=2e-3, warmup_steps=50, ema_decay=0.99),
    )


def autoencoder_compact() -> MeshAutoencoderRecipe:
    """Tokenizer with one code of 3,776 per corner, 2.3 times fewer bits per face; needs a GPU."""
    model = MeshAutoencoderConfig(
        quantiser="pointer", depth=1, cell_bits=3, pointers=(4, 16, 64, 128)
    )
    return replace(autoencoder(), model=model)


def autoencoder_compact_tiny() -> MeshAutoencoderRecipe:
    """Tokenizer for up to 64 faces, one code of 352 per corner: two minutes on two CPU cores."""
    model = MeshAutoencoderConfig(
        quantiser="pointer",
        depth=1,
        cell_bits=2,
        pointers=(2, 16, 64),
        dim=96,
        message_dim=32,
        decoder_layers=2,
    )
    return replace(autoencoder_tiny(), model=model)


def transformer() -> MeshTransformerRecipe:
    """Caption-to-mesh transformer over the codes of a trained autoencoder; needs a GPU."""
    return MeshTransformerRecipe(
        steps=7000,
        batch_size=64,
        workers=8,
        evaluate_every=7000,
        save_every=3500,
        model=MeshTransformerConfig(layers=8, heads=8, text_length=64),
        meshes=MeshDataConfig(max_faces=192, builtin_count=60_000, valid_limit=512),
        generation=GenerationConfig(count=256, temperature=0.8),
        optim=OptimizerConfig(
            learning_rate=8e-4, warmup_steps=300, weight_decay=0.05, ema_decay=0.998
        ),
    )


def transformer_tiny() -> MeshTransformerRecipe:
    """Caption-to-mesh transformer for solids of up to 32 faces: five minutes on two CPU cores."""
    return MeshTransformerRecipe(
        steps=1300,
        batch_size=16,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=1300,
        save_every=650,
        model=MeshTransformerConfig(
            dim=128, layers=4, heads=4, head_dim=32, fine_layers=1, fine_heads=4, text_length=64
        ),
        meshes=MeshDataConfig(max_faces=32, builtin_count=8000, valid_limit=128),
        generation=GenerationConfig(count=64, temperature=0.4, reference_count=512),
        optim=OptimizerConfig(learning_rate=2e-3, warmup_steps=100, ema_decay=0.99),
    )


def autoencoder_large() -> MeshAutoencoderRecipe:
    """Tokenizer for meshes of up to 800 faces; four hours on one H200 (62 M)."""
    return MeshAutoencoderRecipe(
        steps=100_000,
        batch_size=128,
        workers=14,
        log_every=50,
        evaluate_every=10_000,
        save_every=2000,
        model=MeshAutoencoderConfig(dim=1024, message_dim=256, encoder_layers=6, decoder_layers=8),
        meshes=MeshDataConfig(max_faces=800, builtin_count=1_000_000, valid_limit=2048),
        optim=OptimizerConfig(
            learning_rate=3e-4, warmup_steps=1000, final_lr_ratio=0.05, ema_decay=0.9995
        ),
    )


def transformer_large() -> MeshTransformerRecipe:
    """Caption-to-mesh transformer for up to 800 faces; a day on one H200 (322 M)."""
    return MeshTransformerRecipe(
        steps=200_000,
        batch_size=32,
        accumulate=2,
        workers=8,
        log_every=50,
        evaluate_every=10_000,
        save_every=2000,
        model=MeshTransformerConfig(dim=1024, layers=15, heads=16, fine_heads=16),
        meshes=MeshDataConfig(max_faces=800, builtin_count=60_000, valid_limit=512),
        generation=GenerationConfig(count=64, temperature=0.8),
        optim=OptimizerConfig(
            learning_rate=3e-4,
            warmup_steps=2000,
            weight_decay=0.05,
            final_lr_ratio=0.1,
            ema_decay=0.9995,
        ),
    )


def retopology() -> RetopologyRecipe:
    """Clean meshes of up to 800 faces for scans and dense meshes; needs a GPU."""
    return RetopologyRecipe(
        steps=12_000,
        batch_size=32,
        workers=14,
        evaluate_every=6000,
        save_every=3000,
        meshes=MeshDataConfig(rotation=180, builtin_count=1_000_000, valid_limit=256),
        optim=OptimizerConfig(
            learning_rate=5e-4, warmup_steps=300, weight_decay=0.05, ema_decay=0.998
        ),
    )


def retopology_tiny() -> RetopologyRecipe:
    """Clean solids of up to 32 faces for their scans: five minutes on two CPU cores."""
    return RetopologyRecipe(
        steps=1500,
        batch_size=16,
        precision="fp32",  # at this width, casts to bf16 cost a CPU more than they save
        workers=1,
        evaluate_every=1500,
        save_every=750,
        model=RetopologyConfig(
            bins=32,
            points=512,
            latents=64,
            point_layers=2,
            max_faces=48,
            dim=128,
            layers=4,
            heads=4,
            head_dim=32,
            fine_layers=1,
            fine_heads=4,
        ),
        meshes=MeshDataConfig(max_faces=32, builtin_count=20_000, valid_limit=64),
        generation=RetopologyGeneration(count=32, temperature=0.3),
        optim=OptimizerConfig(learning_rate=2e-3, warmup_steps=100, ema_decay=0.99),
    )


def retopology_large() -> RetopologyRecipe:
    """Clean meshes of up to 4,000 faces, in windows of 1,024; a day on one H200 (319 M)."""
    return RetopologyRecipe(
        steps=200_000,
        batch_size=32,
        accumulate=2,
        workers=14,
        log_every=50,
        evaluate_every=10_000,
        save_every=2000,
        model=RetopologyConfig(
            points=8192, latents=1024, max_faces=1024, dim=1024, layers=15, heads=16, fine_heads=16
        ),
        meshes=MeshDataConfig(
            max_faces=4000, rotation=180, builtin_count=1_000_000, valid_limit=256
        ),
        optim=OptimizerConfig(
            learning_rate=3e-4,
            warmup_steps=2000,
            weight_decay=0.05,
            final_lr_ratio=0.1,
            ema_decay=0.9995,
        ),
    )
