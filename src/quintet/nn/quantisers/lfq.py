"""Lookup-free quantisation (MAGVIT-v2, arXiv 2310.05737): a code is the signs of `bits` scalars."""

from torch import Tensor

from quintet.nn.quantisers.binary import BinaryQuantiser


class LFQ(BinaryQuantiser):
    """Codes are the signs of a projection of the latents."""

    def __init__(
        self,
        dim: int,
        bits: int,
        *,
        entropy_weight: float = 0.2,
        commitment_weight: float = 0.25,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(
            dim,
            bits,
            magnitude=1.0,
            entropy_weight=entropy_weight,
            commitment_weight=commitment_weight,
            temperature=temperature,
        )

    def soften(self, projected: Tensor) -> Tensor:
        return projected
