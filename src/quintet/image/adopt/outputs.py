"""Outputs of an adopted autoencoder of images: as of a VQGanVAE."""

from quintet.image.vqgan.outputs import outputs

__all__ = ["outputs"]
