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
from torch.nn import functional as F

from quintet.nn.attention import linear
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import full_precision
from quintet.nn.sequence_loss import TokenLosses, linear_cross_entropy


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
    singles = [(axis,) for axis in range(axes)] if axes > 1 else []
    pairs = [(a, b) for a in range(axes) for b in range(a)] if axes > 2 else []
    return singles + pairs


class CodeHead(nn.Module):
    """Softmax over all codes, tied to the embedding table. Attention alone can then copy a code
    from an earlier face; most codes are copies, since a vertex belongs to about six faces."""

    parts = 1

    def losses(
        self, level: int, hidden: Tensor, targets: Tensor, table: Tensor, label_smoothing: float
    ) -> TokenLosses:
        return linear_cross_entropy(hidden, table[level], targets, label_smoothing=label_smoothing)

    def logits(self, level: int, part: int, hidden: Tensor, table: Tensor) -> Tensor:
        return full_precision(hidden @ table[level].T)

    def condition(self, level: int, part: int, hidden: Tensor, token: Tensor) -> Tensor:
        return hidden

    def split(self, codes: Tensor) -> list[Tensor]:
        return [codes]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0]


class DigitHead(nn.Module):
    """Softmax over each digit, conditioned on the digits before it."""

    def __init__(self, dim: int, levels: Sequence[int], depth: int) -> None:
        super().__init__()
        self.levels = tuple(levels)[::-1]
        self.parts = len(self.levels)
        predicted = [level for _ in range(depth) for level in self.levels]
        # The last digit conditions nothing here: later hidden states embed the whole code.
        conditioning = [level for _ in range(depth) for level in self.levels[:-1]]
        self.digit_embed = nn.ParameterList(torch.randn(n, dim) * 0.5 for n in conditioning)
        self.norms = nn.ModuleList(RMSNorm(dim) for _ in predicted)
        self.hidden = nn.ModuleList(linear(dim, 2 * dim) for _ in predicted)
        self.out = nn.ModuleList(nn.Linear(2 * dim, level) for level in predicted)

    def losses(
        self, level: int, hidden: Tensor, targets: Tensor, table: Tensor, label_smoothing: float
    ) -> TokenLosses:
        """A code is correct if each digit, given the true ones before it, is the most likely."""
        total = torch.zeros_like(targets, dtype=full_precision(hidden).dtype)
        correct = targets >= 0
        for part, digit in enumerate(self.split(targets.clamp_min(0))):
            logits = self.logits(level, part, hidden, table)
            loss = F.cross_entropy(logits, digit, reduction="none", label_smoothing=label_smoothing)
            total = total + torch.where(targets >= 0, loss, torch.zeros_like(loss))
            correct = correct & (logits.argmax(-1) == digit)
            hidden = self.condition(level, part, hidden, digit)
        return TokenLosses(total, correct)

    def logits(self, level: int, part: int, hidden: Tensor, table: Tensor) -> Tensor:
        index = level * self.parts + part
        return full_precision(
            self.out[index](F.silu(self.hidden[index](self.norms[index](hidden))))
        )

    def condition(self, level: int, part: int, hidden: Tensor, token: Tensor) -> Tensor:
        if part == self.parts - 1:
            return hidden
        return hidden + F.embedding(token, self.digit_embed[level * (self.parts - 1) + part])

    def split(self, codes: Tensor) -> list[Tensor]:
        """Digits in the order of prediction."""
        digits: list[Tensor] = []
        for size in self.levels[::-1]:
            digits.append(codes % size)
            codes = codes // size
        return digits[::-1]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        code = torch.zeros_like(parts[0])
        for size, digit in zip(self.levels, parts):
            code = code * size + digit
        return code
