"""`quintet sample` for CLAP: retrieval, as with MuLaN."""

from quintet.music.mulan.sample import EXAMPLE, Flags, embed_texts, example, sample

__all__ = ["EXAMPLE", "Flags", "embed_texts", "example", "sample"]
