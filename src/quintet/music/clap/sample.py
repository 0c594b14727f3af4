"""`quintet sample` for CLAP: retrieval, as with MuLaN."""

from quintet.music.mulan.sample import EXAMPLE, Flags, example, sample

__all__ = ["EXAMPLE", "Flags", "example", "sample"]
