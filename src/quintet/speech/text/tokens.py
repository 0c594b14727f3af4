"""Ids of tokens of several symbols, and their embedding.

A phoneme such as `ˈaɪ` is one token. Its id holds those of its symbols as digits, and its embedding
is the sum of theirs: a stressed vowel shares with the unstressed one, and no language needs a list
of its phonemes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.speech.text.characters import PAD, VOCABULARY
from quintet.speech.voicebox.config import VoiceBoxConfig

MOST = 7
"""Symbols of a token: so many digits fit into an id of 64 bits."""


def pack(symbols: Sequence[int]) -> int:
    """The id of a token; that of a single symbol is its own."""
    return sum(symbol * VOCABULARY**place for place, symbol in enumerate(symbols[:MOST]))


def unpack(ids: Tensor) -> Tensor:
    """(…) -> (…, MOST): the ids of the symbols, and PAD after them."""
    return torch.stack([ids // VOCABULARY**place % VOCABULARY for place in range(MOST)], -1)


class TokenEmbedding(nn.Embedding):
    """Ids -> vectors (…, dim); those of phonemes are packed."""

    def __init__(self, config: VoiceBoxConfig, dim: int) -> None:
        super().__init__(config.vocabulary, dim, padding_idx=PAD)
        self.packed = config.phonemes is not None

    def forward(self, ids: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(unpack(ids)).sum(-2) if self.packed else super().forward(ids)
