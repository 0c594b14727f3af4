"""Embeddings of codes, and output heads that predict them.

An FSQ code is a number with one digit per axis. `DigitHead` predicts the digits autoregressively,
which is an exact factorisation and needs 24 + 24 + 24 logits for 24 x 24 x 24 codes; codes with
equal digits share statistics (a small model after 80 steps: 5.9 nats per code, against 7.6 and
twice the time for one softmax). `CodeHead` has one logit per code and suits any quantiser. Digits
are predicted from the last axis to the first, because meshes are sorted by the last.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.nn.digit_head import DigitHead
from quintet.nn.precision import full_precision
from quintet.nn.sequence_loss import TokenLosses, linear_cross_entropy

__all__ = ["CodeEmbedding", "CodeHead", "DigitHead", "axis_subsets"]


class CodeEmbedding(nn.Module):
    """Embedding table of the codes at each residual level.

    For codes with digits, an embedding is the sum of the code's own vector and one vector per digit
    and per pair of digits, so an unseen code resembles its neighbours.
    """

    def __init__(self, dim: int, codebook_size: int, depth: int, levels: Sequence[int]) -> None:
        super().__init__()
        # Digits as axes, the least significant last: digit vectors are added by broadcasting.
        self.axes = tuple(levels)[::-1]
        shapes = [
            tuple(size if axis in subset else 1 for axis, size in enumerate(self.axes))
            for subset in axis_subsets(len(self.axes))
        ]
        # Only single digits start at full scale: the other terms would be noise to them.
        full, small = dim**-0.5, 0.05 * dim**-0.5
        self.code = nn.Parameter(
            torch.randn(depth, codebook_size, dim) * (small if shapes else full)
        )
        self.digits = nn.ParameterList(
            torch.randn(depth, *shape, dim) * (full if index < len(self.axes) else small)
            for index, shape in enumerate(shapes)
        )

    def forward(self) -> Tensor:
        """(depth, codebook_size, d)."""
        if not self.digits:
            return self.code
        table = self.code.unflatten(1, self.axes)
        for term in self.digits:
            table = table + term
        return table.flatten(1, -2)


def axis_subsets(axes: int) -> list[tuple[int, ...]]:
    """Each axis, and each pair of axes if there are more than two."""
    singles: list[tuple[int, ...]] = [(axis,) for axis in range(axes)] if axes > 1 else []
    pairs: list[tuple[int, ...]] = (
        [(a, b) for a in range(axes) for b in range(a)] if axes > 2 else []
    )
    return singles + pairs


class CodeHead(nn.Module):
    """Softmax over all codes, tied to the embedding table. Attention alone can then copy a code
    from an earlier face; most codes are copies, since a vertex belongs to about six faces."""

    parts = 1

    def losses(self, level: int, hidden: Tensor, targets: Tensor, table: Tensor) -> TokenLosses:
        return linear_cross_entropy(hidden, table[level], targets)

    def logits(self, level: int, part: int, hidden: Tensor, table: Tensor) -> Tensor:
        return full_precision(hidden @ table[level].T)

    def condition(self, level: int, part: int, hidden: Tensor, token: Tensor) -> Tensor:
        return hidden

    def split(self, codes: Tensor) -> list[Tensor]:
        return [codes]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0]
