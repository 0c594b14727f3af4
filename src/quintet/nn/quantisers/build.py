"""Construction of a quantiser from its settings."""

from quintet.nn.quantisers.config import CodebookConfig, QuantiserConfig
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.lfq import LFQ
from quintet.nn.quantisers.vq import VectorQuantiser


def build_quantiser(config: QuantiserConfig, dim: int) -> FSQ | LFQ | VectorQuantiser:
    """A quantiser of latents with `dim` channels."""
    if config.quantiser == "fsq":
        return FSQ(dim, config.levels, decorrelation_weight=config.decorrelation_weight)
    return build_codebook(config, dim)


def build_codebook(config: CodebookConfig, dim: int) -> LFQ | VectorQuantiser:
    """The lookup-free or the vector quantiser."""
    bits, commitment = config.codebook_bits, config.commitment_weight
    if config.quantiser == "lfq":
        entropy = config.entropy_weight
        return LFQ(dim, bits, entropy_weight=entropy, commitment_weight=commitment)
    return VectorQuantiser(dim, 2**bits, commitment_weight=commitment)
