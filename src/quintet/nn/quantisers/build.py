"""Construction of a quantiser from its settings."""

from quintet.nn.quantisers.config import QuantiserConfig
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.lfq import LFQ
from quintet.nn.quantisers.vq import VectorQuantiser


def build_quantiser(config: QuantiserConfig, dim: int) -> FSQ | LFQ | VectorQuantiser:
    """A quantiser of latents with `dim` channels."""
    bits, commitment = config.codebook_bits, config.commitment_weight
    match config.quantiser:
        case "fsq":
            return FSQ(dim, config.levels, decorrelation_weight=config.decorrelation_weight)
        case "lfq":
            entropy = config.entropy_weight
            return LFQ(dim, bits, entropy_weight=entropy, commitment_weight=commitment)
        case "vq":
            return VectorQuantiser(dim, 2**bits, commitment_weight=commitment)
