"""Outputs of an adopted autoencoder of clips: as of a VideoTokenizer."""

from quintet.video.tokenizer.outputs import outputs

__all__ = ["outputs"]
