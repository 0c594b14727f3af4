"""Recipes of the mesh room. `quintet train mesh/NAME` calls the function NAME."""

from quintet.engine.config import OptimiserConfig
from quintet.mesh.config import (
    MeshAutoencoderConfig,
    MeshAutoencoderRecipe,
    MeshDataConfig,
    MeshTransformerConfig,
    MeshTransformerRecipe,
    WritingConfig,
)


def autoencoder() -> MeshAutoencoderRecipe:
    """Meshes of up to 192 faces to two codes of 13,824 at each vertex and back; wants a GPU."""
    return MeshAutoencoderRecipe(
        steps=1000,
        batch_size=64,
        workers=12,
        evaluate_every=1000,
        save_every=1000,
        meshes=MeshDataConfig(max_faces=192, builtin_count=1_000_000, valid_limit=2048),
        autoencoder=OptimiserConfig(rate=5e-4, warmup=100),
    )


def autoencoder_tiny() -> MeshAutoencoderRecipe:
    """The same to 64 faces and 1,728 codes, for two CPU cores and two minutes."""
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
        autoencoder=OptimiserConfig(rate=2e-3, warmup=50, average=0.99),
    )


def transformer() -> MeshTransformerRecipe:
    """Writes meshes from a sentence, in the codes of a trained autoencoder; wants a GPU."""
    return MeshTransformerRecipe(
        steps=7000,
        batch_size=64,
        workers=8,
        evaluate_every=7000,
        save_every=3500,
        model=MeshTransformerConfig(layers=8, heads=8, text_length=64),
        meshes=MeshDataConfig(max_faces=192, builtin_count=60_000, valid_limit=512),
        writing=WritingConfig(count=256, temperature=0.8),
        transformer=OptimiserConfig(rate=8e-4, warmup=300, decay=0.05, average=0.998),
    )


def transformer_tiny() -> MeshTransformerRecipe:
    """The same for solids of up to 32 faces, for two CPU cores and five minutes."""
    return MeshTransformerRecipe(
        steps=1300,
        batch_size=16,
        precision="fp32",  # at this width a CPU converts longer than it gains
        workers=1,
        evaluate_every=1300,
        save_every=650,
        model=MeshTransformerConfig(
            dim=128, layers=4, heads=4, head_dim=32, fine_layers=1, fine_heads=4, text_length=64
        ),
        meshes=MeshDataConfig(max_faces=32, builtin_count=8000, valid_limit=128),
        writing=WritingConfig(count=64, temperature=0.4, compared=512),
        transformer=OptimiserConfig(rate=2e-3, warmup=100, average=0.99),
    )
