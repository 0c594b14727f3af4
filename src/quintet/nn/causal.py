"""Layers that see no future, for clips of any length (MAGVIT-v2, arXiv 2310.05737).

Shapes: clips (b, t, c, h, w). In memory channels come last, so that folding time into the batch is
free and every convolution is a fast 2-D one: over the places of each frame, or over time at each
place, with (time, place) as its picture. The two share the work of one 3 x 3 x 3 convolution at
12/27 of its cost. No statistic is taken over time.

Every layer is called as `clip, state = layer(clip, state)`:

    state None   the whole clip; nothing is kept
    state ()     the first chunk of a clip; the state for the next one comes back
    state (...)  a later chunk: what the layer still has to know of the frames before

What lies before the first frame looks like the first frame, so a picture is a clip that stands
still, and the first frame alone gives what it gives in its clip. Halving time keeps that frame
apart: 1 + 2n frames become 1 + n.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.attention import UnitHeads
from quintet.nn.blocks import check_shortcut, group_norm, head_width, match_channels, zeroed
from quintet.nn.quantise import full_precision

State = tuple[Tensor, ...] | None


class CausalLayer(Protocol):
    def __call__(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]: ...


def last_frames(clip: Tensor, count: int) -> Tensor:
    """A copy: a view would keep the whole chunk in memory."""
    return clip[:, clip.shape[1] - count :].clone()


def each_frame(body: nn.Module, clip: Tensor) -> Tensor:
    return body(clip.flatten(0, 1)).unflatten(0, clip.shape[:2])


class PerFrame(nn.Module):
    """A layer for pictures, at each frame by itself."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        return each_frame(self.body, clip), state


class TimeConv(nn.Module):
    """A convolution along time, over the present frame and `kernel - 1` before it.

    Between chunks it carries the `kernel - stride` frames that the next output shares.
    """

    def __init__(
        self, dim: int, dim_out: int, kernel: int = 3, stride: int = 1, *, silent: bool = False
    ) -> None:
        super().__init__()
        if kernel <= stride:
            raise ValueError(f"kernel {kernel} must be larger than stride {stride}")
        self.kernel, self.stride = kernel, stride
        conv = nn.Conv2d(dim, dim_out, (kernel, 1), stride=(stride, 1))
        self.conv = zeroed(conv) if silent else conv

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        before = state[0] if state else clip[:, :1].expand(-1, self.kernel - 1, -1, -1, -1)
        seen = torch.cat((before, clip), dim=1)
        made = self.conv(seen.flatten(3).transpose(1, 2)).transpose(1, 2)
        made = made.unflatten(3, clip.shape[3:])
        return made, None if state is None else (last_frames(seen, self.kernel - self.stride),)


class Excite(nn.Module):
    """Weighs the channels of each frame by what its mean says (arXiv 1709.01507)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = max(dim // 4, 8)
        self.to_weights = nn.Sequential(
            nn.Conv2d(dim, hidden, 1), nn.SiLU(), zeroed(nn.Conv2d(hidden, dim, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * (2 * torch.sigmoid(self.to_weights(x.mean((2, 3), keepdim=True))))


class CausalResidual(nn.Module):
    """x + time(silu(norm(space(silu(norm(x)))))): 3 x 3 places, then 3 frames."""

    def __init__(self, dim: int, *, excite: bool = True) -> None:
        super().__init__()
        self.space = nn.Sequential(
            group_norm(dim),
            nn.SiLU(),
            nn.Conv2d(dim, dim, 3, padding=1),
            group_norm(dim),
            nn.SiLU(),
            *([Excite(dim)] if excite else []),
        )
        self.time = TimeConv(dim, dim, silent=True)

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        made, state = self.time(each_frame(self.space, clip), state)
        return clip + made, state


def match_clip(clip: Tensor, channels: int) -> Tensor:
    return match_channels(clip.flatten(0, 1), channels).unflatten(0, clip.shape[:2])


def frames_to_channels(clip: Tensor, channels: int) -> Tensor:
    """Pairs of frames side by side in the channels, repeated or averaged to `channels`."""
    pairs = clip.unflatten(1, (-1, 2)).transpose(2, 3).flatten(2, 3)
    return match_clip(pairs, channels)


def channels_to_frames(clip: Tensor) -> Tensor:
    return clip.unflatten(2, (-1, 2)).transpose(2, 3).flatten(1, 2)


class TimeDown(nn.Module):
    """1 + 2n frames to 1 + n: a convolution with stride 2 beside frames-to-channels."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(2 * dim, dim_out)
        self.dim_out = dim_out
        self.conv = TimeConv(dim, dim_out, stride=2)

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        paired = clip if state else torch.cat((clip[:, :1], clip), dim=1)
        made, state = self.conv(clip, state)
        return made + frames_to_channels(paired, self.dim_out), state


class TimeUp(nn.Module):
    """1 + n frames to 1 + 2n: two frames of channels to each, less the one before the first."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(dim, 2 * dim_out)
        self.dim_out = dim_out
        self.conv = TimeConv(dim, 2 * dim_out)

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        begins = not state
        made, state = self.conv(clip, state)
        frames = channels_to_frames(made + match_clip(clip, 2 * self.dim_out))
        return frames[:, 1:] if begins else frames, state


def look_back(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, window: int) -> Tensor:
    """Queries (..., heads, t, e) at the last t of the keys; each sees `window` keys, its own last.

    Plain products: along time a sequence is a few frames long, and kernels for long ones would
    spend themselves on padding.
    """
    there, here = k.shape[-2], q.shape[-2]
    ages = torch.arange(there - here, there, device=q.device)[:, None]
    ages = ages - torch.arange(there, device=q.device)
    scores = full_precision(q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = scores + F.embedding(ages.clamp(0, window - 1), bias.mT).permute(2, 0, 1)
    hidden = (ages < 0) | (ages >= window)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).to(v.dtype) @ v


class TimeAttention(nn.Module):
    """At each place the present frame attends to the last `window`, by a bias for their age.

    It carries keys and values of `window - 1` frames, so a clip may go on for ever.
    """

    def __init__(self, dim: int, window: int, head_dim: int = 64) -> None:
        super().__init__()
        self.window, self.head_dim = window, head_width(dim, head_dim)
        self.norm = group_norm(dim)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.unit_q = UnitHeads(self.head_dim)
        self.unit_k = UnitHeads(self.head_dim)
        self.bias = nn.Parameter(torch.zeros(dim // self.head_dim, window))
        self.to_out = zeroed(nn.Conv2d(dim, dim, 1))

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        q, k, v = self.project(clip)
        if state:
            k, v = torch.cat((state[0], k), dim=-2), torch.cat((state[1], v), dim=-2)
        attended = look_back(q, k, v, self.bias, self.window)  # (b, places, heads, t, e)
        frames = attended.permute(0, 3, 2, 4, 1).flatten(2, 3).unflatten(3, clip.shape[3:])
        made = clip + each_frame(self.to_out, frames)
        return made, None if state is None else (self.recent(k), self.recent(v))

    def project(self, clip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(b, places, heads, t, e) each; nothing says which frame of the clip it is."""
        qkv = self.to_qkv(self.norm(clip.flatten(0, 1))).unflatten(0, clip.shape[:2])
        heads = qkv.flatten(3).unflatten(2, (3, -1, self.head_dim))
        q, k, v = heads.permute(2, 0, 5, 3, 1, 4).unbind(0)
        return self.unit_q(q, None), self.unit_k(k, None), v

    def recent(self, heads: Tensor) -> Tensor:
        kept = min(self.window - 1, heads.shape[-2])
        return heads[..., heads.shape[-2] - kept :, :].clone()


class GateLoop(nn.Module):
    """A memory at each place and channel, gated by the present frame (arXiv 2311.01927).

    h_t = a_t h_(t-1) + (1 - a_t) v_t, here with real gates: the memory is a moving average whose
    pace the frame sets. It is all that is carried.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = group_norm(dim)
        self.to_parts = nn.Conv2d(dim, 3 * dim, 1)
        self.to_out = zeroed(nn.Conv2d(dim, dim, 1))

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        parts = self.to_parts(self.norm(clip.flatten(0, 1))).unflatten(0, clip.shape[:2])
        value, keep, out = parts.chunk(3, dim=2)
        value, keep = full_precision(value), torch.sigmoid(full_precision(keep))
        memory = state[0] if state else value[:, 0]
        memories: list[Tensor] = []
        for present, kept in zip(value.unbind(1), keep.unbind(1)):
            memory = torch.lerp(present, memory, kept)
            memories.append(memory)
        made = torch.stack(memories, dim=1).to(out.dtype) * F.silu(out)
        return clip + each_frame(self.to_out, made), None if state is None else (memory,)


class CausalStack(nn.Module):
    """Layers one after the other; their states are a list in the same order."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, clip: Tensor) -> Tensor:
        """A whole clip."""
        for layer in self.layers:
            clip, _ = layer(clip)
        return clip

    def step(self, clip: Tensor, states: list[State] | None) -> tuple[Tensor, list[State]]:
        """One chunk, and what the next one needs; the first begins with None."""
        carried: list[State] = []
        for layer, state in zip(self.layers, states or [()] * len(self.layers)):
            clip, kept = layer(clip, state)
            carried.append(kept)
        return clip, carried
