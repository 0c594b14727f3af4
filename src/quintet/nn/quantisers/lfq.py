"""Lookup-free quantisation (MAGVIT-v2, arXiv 2310.05737): a code is the signs of `bits` scalars."""

from torch import Tensor

from quintet.nn.quantisers.binary import BinaryQuantiser


class LFQ(BinaryQuantiser):
    """Codes are the signs of a projection of the latents."""

    def soften(self, projected: Tensor) -> Tensor:
        return projected
