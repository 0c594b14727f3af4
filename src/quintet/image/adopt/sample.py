"""`quintet sample` for an adopted autoencoder of images: as for a VQGanVAE."""

from quintet.image.vqgan.sample import EXAMPLE, Flags, example, sample

__all__ = ["EXAMPLE", "Flags", "example", "sample"]
