"""The two models of the room, under the name that a room's models are looked up by."""

from quintet.mesh.autoencoder.model import MeshAutoencoder
from quintet.mesh.transformer.model import MeshTransformer

__all__ = ["MeshAutoencoder", "MeshTransformer"]
