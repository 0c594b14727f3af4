"""Binary spherical quantisation (BSQ, arXiv 2406.07548): the signs of a point on the unit sphere.

A code is the corner of the hypercube inside the sphere, each coordinate +-1/sqrt(bits). Latents
cannot move away from the codes, so the quantisation error is bounded for any number of bits.

The entropy loss is LFQ's, which takes groups of bits jointly. With single bits, the cheapest form
in the paper, copies of one bit count as much as different bits: fewer codes are used
(docs/dev/log.md). The commitment loss is the squared distance to the code; its weight is 0 by
default in the authors' code. Logits are in units of a coordinate of the code, so that any number of
bits is equally sharp, as with the paper's tau = 2 bits.
"""

import math

from torch import Tensor
from torch.nn import functional as F

from quintet.nn.quantisers.lfq import LFQ


class BSQ(LFQ):
    """Codes are the signs of a projection of the latents onto the unit sphere."""

    def magnitude_of(self, bits: int) -> float:
        if bits < 2:
            raise ValueError(f"bits must be 2 or more, not {bits}: one is constant on the sphere")
        return 1 / math.sqrt(bits)

    def soften(self, projected: Tensor) -> Tensor:
        return F.normalize(projected, dim=-1)
