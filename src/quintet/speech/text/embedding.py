"""Embeddings of the ids of characters and phonemes."""

import torch
from torch import Tensor, nn

from quintet.speech.text.characters import PAD, VOCABULARY
from quintet.speech.text.phonemes import MOST
from quintet.speech.voicebox.config import VoiceBoxConfig


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
