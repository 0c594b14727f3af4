"""Settings of a quantiser. Imports no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class CodebookConfig:
    """Mixed into the settings of a tokenizer whose fsq has no projection (meshes)."""

    quantiser: Literal["fsq", "lfq", "bsq", "vq", "kl", "bounded"] = "fsq"
    """Ids: fsq (finite scalar), lfq (lookup-free), bsq (binary spherical) or vq (learned codebook).
    Continuous latents: kl (Gaussian) or bounded (of unit size, with noise in training)."""
    levels: tuple[int, ...] = (8, 8, 8, 5)
    """fsq: levels per latent dimension; the codebook size is their product."""
    codebook_bits: int = 12
    """lfq, bsq and vq: the codebook size is 2 ** codebook_bits."""
    entropy_weight: float = 0.2
    """lfq and bsq: weight of the entropy loss (raises codebook usage)."""
    commitment_weight: float = 0.25
    """lfq, bsq and vq: weight of the commitment loss."""


@dataclass(frozen=True, kw_only=True)
class QuantiserConfig(CodebookConfig):
    """Mixed into the settings of a tokenizer; `build_quantiser` builds from it."""

    decorrelation_weight: float = 0.05
    """fsq: weight of the loss that decorrelates the latent dimensions (raises codebook usage)."""
    latent_channels: int = 8
    """kl and bounded: channels of the latents, for each position."""
    kl_weight: float = 1e-6
    """kl: weight of the divergence from a standard normal, in nats per element of the latents."""
    latent_noise: float = 0.1
    """bounded: deviation of the noise in training, where latents have a size of 1."""
    latent_scale: float = 1.0
    """kl and bounded: factor that scales latents to unit deviation. `quintet export` sets it
    from the last evaluation; training ignores it."""


COLLAPSED: Mapping[str, str] = {
    "fsq": "the codes have collapsed; lower the learning rate, or use smaller levels",
    "lfq": "the codes have collapsed; raise entropy_weight, or lower the learning rate",
    "bsq": "the codes have collapsed; raise entropy_weight, or lower the learning rate",
    "vq": "the codes have collapsed; lower the learning rate, or use quantiser fsq",
}
"""Message about a collapsed codebook, by quantiser."""


def codebook_of_size(size: int) -> dict[str, Any]:
    """Fields of a QuantiserConfig for a codebook of this size, whichever the quantiser."""
    bits = size.bit_length() - 1
    if bits < 1 or size != 2**bits:
        raise ValueError(f"codebook_size must be a power of two, not {size}: or set `levels`")
    return {"codebook_bits": bits, "levels": fsq_levels(bits)}


def fsq_levels(bits: int) -> tuple[int, ...]:
    """Powers of two, at most 8 each, with a product of exactly 2 ** bits."""
    count = -(-bits // 3)
    return tuple(2 ** (bits // count + (index < bits % count)) for index in range(count))
