"""The transformer that says where a noisy frame should go (Voicebox, arXiv 2306.15687).

Shapes: b samples, t frames of c numbers, d width.

Time comes in as in PixArt (arXiv 2310.00426): one projection gives shifts, scales and gates, which
every layer moves by a table of its own. Registers are arXiv 2309.16588; the convolution by which
frames know their neighbours is wav2vec 2.0's (arXiv 2006.11477), with a channel for each filter.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.alignment import masked
from quintet.nn.attention import FeedForward, SelfAttention
from quintet.nn.quantise import full_precision, without_autocast
from quintet.nn.rotary import Rotation, line_rotation
from quintet.speech.config import VoiceBoxConfig

WAVES = 128
"""Sines and cosines that a time is told by."""
FASTEST = 1000.0
"""Turns of the fastest of them between noise and data."""


def waves(time: Tensor) -> Tensor:
    """(b,) -> (b, 2 WAVES)."""
    steps = torch.arange(WAVES, device=time.device, dtype=time.dtype) / (WAVES - 1)
    angles = time[:, None] * torch.exp(steps * math.log(FASTEST))
    return torch.cat((angles.sin(), angles.cos()), -1)


def adapted(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalised over channels, then moved and stretched as the time says."""
    return F.rms_norm(x, (x.shape[-1],)) * (1 + scale) + shift


class AdaptiveBlock(nn.Module):
    """Self-attention and a feed-forward, each on a branch that the time adapts."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.head_dim)
        self.feed = FeedForward(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.moves = nn.Parameter(torch.zeros(6, config.dim))

    def forward(self, x: Tensor, moves: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        """`moves` (b, 6, d) are what all layers share."""
        steps = (self.moves + moves).to(x.dtype).unsqueeze(2).unbind(1)
        seen = self.attention(adapted(x, steps[0], steps[1]), turn, causal=False, mask=mask)
        x = x + (1 + steps[2]) * self.dropout(seen)
        return x + (1 + steps[5]) * self.dropout(self.feed(adapted(x, steps[3], steps[4])))


class Backbone(nn.Module):
    """(noisy frames, context, hole, characters, time) -> velocities (b, t, c)."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        dim = config.dim
        self.head_dim = config.head_dim
        self.enter = nn.Linear(2 * config.bins + 1 + config.text_dim, dim)
        self.near = nn.Conv1d(dim, dim, config.kernel, padding=config.kernel // 2, groups=dim)
        self.registers = nn.Parameter(torch.randn(config.registers, dim) * 0.02)
        self.to_time = nn.Sequential(nn.Linear(2 * WAVES, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.to_moves = nn.Linear(dim, 6 * dim)
        self.blocks = nn.ModuleList(AdaptiveBlock(config) for _ in range(config.depth))
        self.last_moves = nn.Linear(dim, 2 * dim)
        self.leave = nn.Linear(dim, config.bins)
        for layer in (self.to_moves, self.last_moves, self.leave):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        hole: Tensor,
        said: Tensor,
        time: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """`said` (b, t, text_dim) are embedded characters, `hole` and `mask` (b, t) booleans: what
        is to be filled in, and what is no padding; without a mask nothing is."""
        rows = self.enter(torch.cat((x, context, hole[..., None].to(x.dtype), said), -1))
        rows = full_precision(rows)  # what branches are added to, however those are computed
        rows = rows + F.silu(self.near(rows.mT if mask is None else masked(rows, mask))).mT
        count = len(self.registers)
        rows = torch.cat((self.registers.to(rows.dtype).expand(x.shape[0], -1, -1), rows), 1)
        places = torch.arange(-count, x.shape[1], device=x.device)
        turn = line_rotation(places, self.head_dim)
        seen = None if mask is None else F.pad(mask, (count, 0), value=True)
        hour = F.silu(self.to_time(waves(time)))
        moves = self.to_moves(hour).unflatten(-1, (6, -1))
        for block in self.blocks:
            rows = block(rows, moves, turn, seen)
        shift, scale = self.last_moves(hour)[:, None].chunk(2, -1)
        with without_autocast(rows):
            rows = adapted(full_precision(rows[:, count:]), shift, scale)
            return self.leave(rows)
