"""Construction of a quantiser from its settings."""

from quintet.nn.quantisers.base import Bottleneck
from quintet.nn.quantisers.bsq import BSQ
from quintet.nn.quantisers.config import CodebookConfig, QuantiserConfig
from quintet.nn.quantisers.continuous import BoundedBottleneck, GaussianBottleneck
from quintet.nn.quantisers.digits import digits_of
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.lfq import LFQ
from quintet.nn.quantisers.vq import VectorQuantiser


def build_quantiser(config: QuantiserConfig, dim: int) -> Bottleneck:
    """A quantiser or a continuous bottleneck of latents with `dim` channels."""
    if config.quantiser == "fsq":
        fsq = FSQ(dim, config.levels, decorrelation_weight=config.decorrelation_weight)
        fsq.digits = digits_of(config)
        return fsq
    if config.quantiser == "kl":
        return GaussianBottleneck(dim, config.latent_channels, kl_weight=config.kl_weight)
    if config.quantiser == "bounded":
        return BoundedBottleneck(dim, config.latent_channels, noise=config.latent_noise)
    return build_codebook(config, dim)


def build_codebook(config: CodebookConfig, dim: int) -> LFQ | VectorQuantiser:
    """A binary (lookup-free, spherical) or the vector quantiser."""
    bits, commitment = config.codebook_bits, config.commitment_weight
    if config.quantiser == "vq":
        return VectorQuantiser(dim, 2**bits, commitment_weight=commitment)
    binary = BSQ if config.quantiser == "bsq" else LFQ
    entropy = config.entropy_weight
    quantiser = binary(dim, bits, entropy_weight=entropy, commitment_weight=commitment)
    quantiser.digits = digits_of(config)
    return quantiser
