"""Transformer that predicts the velocity of noisy frames (Voicebox, arXiv 2306.15687).

Shapes: b samples, t frames of c features, d width.

Time conditioning is adaLN-single of PixArt (arXiv 2310.00426): one projection gives shifts, scales
and gates for all layers, and each layer adds its own table. Registers are arXiv 2309.16588;
the convolutional position embedding is wav2vec 2.0's (arXiv 2006.11477), depthwise.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.alignment import masked
from quintet.nn.attention import FeedForward, SelfAttention
from quintet.nn.norms import rms_norm
from quintet.nn.precision import full_precision, residual_stream, without_autocast
from quintet.nn.rope import Rope, rope_1d
from quintet.speech.voicebox.config import VoiceBoxConfig

FREQUENCIES = 128
"""Frequencies of the sinusoidal time embedding."""
MAX_FREQUENCY = 1000.0
"""The highest, in radians between noise and data."""


def sinusoidal_embedding(time: Tensor) -> Tensor:
    """(b,) -> (b, 2 FREQUENCIES)."""
    exponents = torch.arange(FREQUENCIES, device=time.device, dtype=time.dtype) / (FREQUENCIES - 1)
    angles = time[:, None] * torch.exp(exponents * math.log(MAX_FREQUENCY))
    return torch.cat((angles.sin(), angles.cos()), -1)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """RMS norm over channels, then shift and scale."""
    return rms_norm(x) * (1 + scale) + shift


class DiTBlock(nn.Module):
    """Self-attention and feed-forward, each modulated by the time embedding."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.head_dim)
        self.feed = FeedForward(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.scale_shift_table = nn.Parameter(torch.zeros(6, config.dim))

    def forward(self, x: Tensor, modulation: Tensor, rope: Rope, mask: Tensor | None) -> Tensor:
        """`modulation` (b, 6, d) is shared by all layers."""
        modulation = (self.scale_shift_table + modulation).to(x.dtype).unsqueeze(2)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulation.unbind(1)
        hidden = self.attention(modulate(x, shift_msa, scale_msa), rope, causal=False, mask=mask)
        x = x + (1 + gate_msa) * self.dropout(hidden)
        hidden = self.feed(modulate(x, shift_mlp, scale_mlp))
        return x + (1 + gate_mlp) * self.dropout(hidden)


class Backbone(nn.Module):
    """(noisy frames, context, infill mask, text embedding, time) -> velocities (b, t, c)."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        dim = config.dim
        self.head_dim = config.head_dim
        self.proj_in = nn.Linear(2 * config.n_mels + 1 + config.text_dim, dim)
        self.conv_pos = nn.Conv1d(dim, dim, config.kernel, padding=config.kernel // 2, groups=dim)
        self.registers = nn.Parameter(torch.randn(config.registers, dim) * 0.02)
        self.time_mlp = nn.Sequential(
            nn.Linear(2 * FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim)
        )
        self.modulation = nn.Linear(dim, 6 * dim)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.depth))
        self.final_modulation = nn.Linear(dim, 2 * dim)
        self.proj_out = nn.Linear(dim, config.n_mels)
        for layer in (self.modulation, self.final_modulation, self.proj_out):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        infill_mask: Tensor,
        text_embed: Tensor,
        time: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """`text_embed` (b, t, text_dim); `infill_mask` and `mask` (b, t) booleans. The mask is
        false for padding, and None without any."""
        hidden = torch.cat((x, context, infill_mask[..., None].to(x.dtype), text_embed), -1)
        hidden = residual_stream(self.proj_in(hidden))
        unpadded = hidden.mT if mask is None else masked(hidden, mask)
        hidden = hidden + F.silu(self.conv_pos(unpadded)).mT
        count = len(self.registers)
        registers = self.registers.to(hidden.dtype).expand(x.shape[0], -1, -1)
        hidden = torch.cat((registers, hidden), 1)
        positions = torch.arange(-count, x.shape[1], device=x.device)
        rope = rope_1d(positions, self.head_dim)
        attention_mask = None if mask is None else F.pad(mask, (count, 0), value=True)
        time_embed = F.silu(self.time_mlp(sinusoidal_embedding(time)))
        modulation = self.modulation(time_embed).unflatten(-1, (6, -1))
        for block in self.blocks:
            hidden = block(hidden, modulation, rope, attention_mask)
        shift, scale = self.final_modulation(time_embed)[:, None].chunk(2, -1)
        with without_autocast(hidden):
            return self.proj_out(modulate(full_precision(hidden[:, count:]), shift, scale))
