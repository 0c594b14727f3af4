"""Duration model: frames of each character, by a small transformer (as in arXiv 2306.15687).

It is conditioned on the known durations, those of characters in the audio context, and so follows
their speaking rate, and on the sound of the context: a voice has its habits. Shapes: b samples,
n characters, t frames of c features.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import uniform
from quintet.nn.alignment import inside
from quintet.nn.attention import Block
from quintet.nn.precision import full_precision
from quintet.nn.rope import rope_1d
from quintet.speech.text.characters import PAD
from quintet.speech.text.embedding import TokenEmbedding
from quintet.speech.voicebox.config import VoiceBoxConfig

HEAD_DIM = 64
LOG_TYPICAL = 2.0
"""Logarithm of a common duration in frames: the initial prediction."""


class DurationModel(nn.Module):
    """Ids (b, n), durations (b, n) in frames, which are `known`, and the voice (b, 2 c) -> log-
    durations (b, n)."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        dim = config.duration_dim
        self.embedding = TokenEmbedding(config, dim)
        self.proj_in = nn.Linear(2, dim)
        blocks = (Block(dim, dim // HEAD_DIM, HEAD_DIM) for _ in range(config.duration_depth))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(dim)
        self.proj_out = nn.Linear(dim, 1)
        self.dropout = config.duration_dropout
        self.proj_voice = nn.Linear(2 * config.n_mels, dim, bias=False)
        nn.init.normal_(self.embedding.weight[PAD + 1 :], std=0.5)
        nn.init.zeros_(self.proj_voice.weight)

    def forward(
        self,
        ids: Tensor,
        num_tokens: Tensor,
        durations: Tensor,
        known: Tensor,
        voice: Tensor,
        keys: Tensor | None = None,
    ) -> Tensor:
        """`keys` (b,) draw the dropout of training."""
        logs = durations.clamp_min(1).to(self.proj_in.weight.dtype).log() - LOG_TYPICAL
        weight = known.to(logs.dtype)
        hidden = self.embedding(ids)
        hidden = self._drop(hidden, torch.zeros_like(hidden), keys, "ids")
        hidden = hidden + self.proj_in(torch.stack((logs * weight, weight), -1))
        hidden = hidden + self.proj_voice(voice.to(logs.dtype))[:, None]
        positions = torch.arange(ids.shape[1], device=ids.device)
        rope, mask = rope_1d(positions, HEAD_DIM), inside(num_tokens, ids.shape[1])
        for place, block in enumerate(self.blocks):
            hidden = self._drop(block(hidden, rope, mask=mask), hidden, keys, f"block {place}")
        return full_precision(self.proj_out(self.norm(hidden)))[..., 0] + LOG_TYPICAL

    def _drop(self, new: Tensor, old: Tensor, keys: Tensor | None, name: str) -> Tensor:
        """Dropout of a change, by key: a captured step may not draw from generators of PyTorch."""
        if keys is None or not self.dropout or not self.training:
            return new
        changes = uniform(keys, f"durations/{name}", tuple(new.shape[1:])) >= self.dropout
        return torch.where(changes, old + (new - old) / (1 - self.dropout), old)


def voice_of(frames: Tensor, visible: Tensor) -> Tensor:
    """(b, 2 c): mean and deviation of the visible frames (b, t, c); zeros if there are none."""
    weights = visible.to(torch.float32)[..., None]
    weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
    mean = (full_precision(frames) * weights).sum(1)
    square = (full_precision(frames).square() * weights).sum(1)
    return torch.cat((mean, (square - mean.square()).clamp_min(0).sqrt()), 1)


def duration_loss(predicted: Tensor, durations: Tensor, mask: Tensor) -> Tensor:
    """0-dim: absolute errors of log-durations, summed over the mask (b, n)."""
    logs = durations.clamp_min(1).to(predicted.dtype).log()
    return torch.where(mask, (predicted - logs).abs(), 0.0).sum()


def round_durations(durations: Tensor, totals: Tensor | None = None) -> Tensor:
    """(b, n) -> integers that add up to their rounded sum, or to `totals` (b,).

    Ends are rounded, not durations, so that errors do not accumulate.
    """
    ends = durations.double().cumsum(1)
    if totals is not None:
        ends = ends * (totals.double() / ends[:, -1].clamp_min(1e-9))[:, None]
    ends = (ends + 0.5).floor().long()  # half up, not to even: a duration of 1 or more stays so
    return torch.diff(ends, dim=1, prepend=ends.new_zeros(len(ends), 1))


def fully_visible(durations: Tensor, infill_mask: Tensor) -> Tensor:
    """(b, n): characters without a frame in the mask (b, t)."""
    return masked_frames(durations, infill_mask) == 0


def masked_frames(durations: Tensor, infill_mask: Tensor) -> Tensor:
    """(b, n): number of frames of each character in the mask (b, t)."""
    cumulative = F.pad(infill_mask.long().cumsum(1), (1, 0))
    ends = durations.cumsum(1).clamp_max(infill_mask.shape[1])
    until = cumulative.gather(1, ends)
    return torch.diff(until, dim=1, prepend=until.new_zeros(len(until), 1))
