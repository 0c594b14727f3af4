"""Output head over codes that are numbers with several digits (FSQ, or bits of a binary quantiser).

A digit is predicted from the hidden state and the digits before it, which is an exact factorisation
of the softmax over all codes: 512 + 125 logits for 64,000 codes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.attention import linear
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import full_precision
from quintet.nn.sequence_loss import TokenLosses


class DigitHead(nn.Module):
    """Softmax over each digit, conditioned on the digits before it."""

    def __init__(
        self, dim: int, levels: Sequence[int], depth: int, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.levels = tuple(levels)[::-1]
        self.parts = len(self.levels)
        predicted = [level for _ in range(depth) for level in self.levels]
        # The last digit conditions nothing here: later hidden states embed the whole code.
        conditioning = [level for _ in range(depth) for level in self.levels[:-1]]
        self.digit_embed = nn.ParameterList(torch.randn(n, dim) * 0.5 for n in conditioning)
        self.norms = nn.ModuleList(RMSNorm(dim) for _ in predicted)
        self.hidden = nn.ModuleList(linear(dim, 2 * dim) for _ in predicted)
        self.out = nn.ModuleList(nn.Linear(2 * dim, level) for level in predicted)

    def losses(self, level: int, hidden: Tensor, targets: Tensor, table: Tensor) -> TokenLosses:
        """A code is correct if each digit, given the true ones before it, is the most likely."""
        smoothing = self.label_smoothing
        total = torch.zeros_like(targets, dtype=full_precision(hidden).dtype)
        correct = targets >= 0
        for part, digit in enumerate(self.split(targets.clamp_min(0))):
            logits = self.logits(level, part, hidden, table)
            loss = F.cross_entropy(logits, digit, reduction="none", label_smoothing=smoothing)
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
