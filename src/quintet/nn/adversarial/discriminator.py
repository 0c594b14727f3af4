"""Patch discriminator (PatchGAN; pix2pix, arXiv 1611.07004): one logit per image patch.

Group norm instead of batch norm: the logits of a sample are independent of the batch, so real and
reconstructed images share one call.
"""

from itertools import pairwise

from torch import Tensor, nn

from quintet.nn.adversarial.tangent import derivative
from quintet.nn.fused import FusedSequential
from quintet.nn.norms import group_norm


class PatchDiscriminator(nn.Module):
    """Images (b, c, h, w) in 0..1 -> logits (b, 1, h / 2^layers, w / 2^layers)."""

    def __init__(self, *, channels: int = 3, dim: int = 64, layers: int = 3) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"a discriminator needs at least one layer, not {layers}")
        widths = [dim * 2**i for i in range(layers)]
        body: list[nn.Module] = [
            nn.Conv2d(channels, dim, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
        ]
        for narrow, wide in pairwise(widths):
            conv = nn.Conv2d(narrow, wide, 4, stride=2, padding=1)
            body += [conv, group_norm(wide), nn.LeakyReLU(0.2)]
        last = widths[-1]
        body += [nn.Conv2d(last, last, 1), nn.LeakyReLU(0.2), nn.Conv2d(last, 1, 3, padding=1)]
        self.body = FusedSequential(*body)

    def forward(self, images: Tensor, along: Tensor | None = None) -> Tensor:
        """Logits, or their derivative along a direction."""
        x = images * 2 - 1
        return self.body(x) if along is None else derivative(self.body, x, 2 * along)
