"""Outputs of a masked generator of images."""

from quintet.image.outputs import GeneratedImages as outputs

__all__ = ["outputs"]
