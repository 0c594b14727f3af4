"""`quintet sample` for an adopted autoencoder of clips: as for a VideoTokenizer."""

from quintet.video.tokenizer.sample import EXAMPLE, Flags, example, sample

__all__ = ["EXAMPLE", "Flags", "example", "sample"]
