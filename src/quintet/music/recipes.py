"""Recipes of the music room. `quintet train music/NAME` calls the function NAME."""

from quintet.engine.config import OptimiserConfig
from quintet.music.config import MuLaNConfig, MuLaNRecipe, MusicDataConfig


def mulan() -> MuLaNRecipe:
    """Sounds of 4 seconds and captions of 128 bytes in one space of 128 numbers; wants a GPU."""
    return MuLaNRecipe(
        steps=2400,
        batch_size=512,
        workers=14,
        evaluate_every=2400,
        save_every=1200,
        model=MuLaNConfig(
            low=30.0,
            hop=256,
            patch=(16, 8),
            dim=384,
            heads=6,
            text_length=128,
            text_dim=384,
            text_layers=4,
            text_heads=6,
        ),
        sounds=MusicDataConfig(
            seconds=4.0, min_seconds=4.0, builtin_count=1_000_000, valid_limit=1536, partial=0.3
        ),
        mulan=OptimiserConfig(rate=1e-3, warmup=200, decay=0.05, average=0.998),
    )


def mulan_tiny() -> MuLaNRecipe:
    """The same for sounds of 4 seconds at 8 kHz, for two CPU cores and four minutes."""
    return MuLaNRecipe(
        steps=260,
        batch_size=64,
        precision="fp32",  # at this width a CPU converts longer than it gains
        workers=1,
        evaluate_every=260,
        save_every=130,
        model=MuLaNConfig(
            rate=8000,
            n_fft=1024,
            hop=256,
            low=30.0,
            bins=96,
            patch=(16, 8),
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
            rate=8000, seconds=4.0, min_seconds=4.0, builtin_count=20_000, valid_limit=256
        ),
        mulan=OptimiserConfig(rate=2e-3, warmup=50, average=0.99),
    )
