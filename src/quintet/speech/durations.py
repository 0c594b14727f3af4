"""How long each character lasts: a small transformer over the text (as in arXiv 2306.15687).

It is told the durations that are known, those of characters whose sound is there to be heard, and
so speaks on as quickly as they do. Shapes: b samples, n characters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.alignment import inside
from quintet.nn.attention import Block
from quintet.nn.quantise import full_precision
from quintet.nn.rotary import line_rotation
from quintet.speech.config import VoiceBoxConfig

HEAD = 64
TYPICAL = 2.0
"""Logarithm of a common duration in frames; predictions start there."""


class DurationModel(nn.Module):
    """Ids (b, n), durations (b, n) in frames and which are `known` -> log-durations (b, n)."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        dim = config.duration_dim
        self.embedding = nn.Embedding(config.vocabulary, dim)
        self.told = nn.Linear(2, dim)
        blocks = (Block(dim, dim // HEAD, HEAD) for _ in range(config.duration_depth))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(dim)
        self.leave = nn.Linear(dim, 1)
        nn.init.normal_(self.embedding.weight, std=0.5)

    def forward(self, ids: Tensor, tokens: Tensor, durations: Tensor, known: Tensor) -> Tensor:
        logs = durations.clamp_min(1).to(self.told.weight.dtype).log() - TYPICAL
        heard = known.to(logs.dtype)
        rows = self.embedding(ids) + self.told(torch.stack((logs * heard, heard), -1))
        places = torch.arange(ids.shape[1], device=ids.device)
        turn, mask = line_rotation(places, HEAD), inside(tokens, ids.shape[1])
        for block in self.blocks:
            rows = block(rows, turn, mask=mask)
        return full_precision(self.leave(self.norm(rows)))[..., 0] + TYPICAL


def duration_errors(predicted: Tensor, durations: Tensor, wanted: Tensor) -> Tensor:
    """0-dim: absolute errors of log-durations, summed over the characters that are wanted."""
    logs = durations.clamp_min(1).to(predicted.dtype).log()
    return torch.where(wanted, (predicted - logs).abs(), 0.0).sum()


def whole_frames(lengths: Tensor, totals: Tensor | None = None) -> Tensor:
    """(b, n) lengths -> whole numbers that add up to their rounded sum, or to `totals` (b,).

    Ends are rounded, not durations, so that errors do not add up.
    """
    ends = lengths.double().cumsum(1)
    if totals is not None:
        ends = ends * (totals.double() / ends[:, -1].clamp_min(1e-9))[:, None]
    ends = (ends + 0.5).floor().long()  # not to the even one: a length of 1 or more stays so
    return torch.diff(ends, dim=1, prepend=ends.new_zeros(len(ends), 1))


def heard_whole(durations: Tensor, hole: Tensor) -> Tensor:
    """(b, n): characters of which no frame is in the hole (b, t)."""
    return frames_inside(durations, hole) == 0


def frames_inside(durations: Tensor, hole: Tensor) -> Tensor:
    """(b, n): how many frames of each character are in the hole (b, t)."""
    before = F.pad(hole.long().cumsum(1), (1, 0))
    ends = durations.cumsum(1).clamp_max(hole.shape[1])
    until = before.gather(1, ends)
    return torch.diff(until, dim=1, prepend=until.new_zeros(len(until), 1))
