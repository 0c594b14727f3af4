"""Causal layers for clips of any length (MAGVIT-v2, arXiv 2310.05737).

Shapes: clips (b, t, c, h, w), channels last in memory, so that folding time into the batch is free.
A 3 x 3 x 3 convolution is factorised into two fast 2-D ones, spatial (per frame) and temporal (per
position, over a (time, position) plane), at 12/27 of its cost. Norms take no statistics over time.

Every layer is called as `clip, state = layer(clip, state)`:

    state None   the whole clip; returns no state
    state ()     the first chunk of a clip; returns the state for the next chunk
    state (...)  a later chunk, with the state of the one before

Time is padded with copies of the first frame, so an image equals a static clip, and the first frame
alone gives the same result as in its clip. Temporal downsampling keeps it separate: 1 + 2n frames
become 1 + n.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.attention import zero_init
from quintet.nn.blocks import check_shortcut, choose_head_dim, match_channels
from quintet.nn.fused import FusedSequential, conv_add, run
from quintet.nn.heads import QKNorm
from quintet.nn.norms import Padding, group_norm, group_norm_act, pad_frames
from quintet.nn.precision import full_precision

State = tuple[Tensor, ...] | None


def last_frames(clip: Tensor, count: int) -> Tensor:
    """A copy: a view would keep the whole chunk in memory."""
    return clip[:, clip.shape[1] - count :].clone()


def per_frame(body: nn.Module, clip: Tensor) -> Tensor:
    return body(as_frames(clip)).unflatten(0, clip.shape[:2])


# Reshapes work on (b, t, h, w, c) views, whose copies stay in channels-last memory.


def as_frames(clip: Tensor) -> Tensor:
    """(b t, c, h, w)."""
    return clip.movedim(2, -1).flatten(0, 1).movedim(-1, 1)


def as_planes(clip: Tensor) -> Tensor:
    """(b, c, t, h w)."""
    return clip.movedim(2, -1).flatten(2, 3).movedim(-1, 1)


def pad_time(clip: Tensor, count: int) -> Tensor:
    """Copies of the first frame before a clip."""
    if torch.compiler.is_compiling():
        return _padded(clip, count)
    return _PadTime.apply(clip, count)  # type: ignore[return-value]


def _padded(clip: Tensor, count: int) -> Tensor:
    frames = pad_frames(as_frames(clip), Padding(clip.shape[1], count))
    return frames.unflatten(0, (clip.shape[0], -1))  # len() would fix the size of an export


class _PadTime(torch.autograd.Function):
    """The compiler fuses the four passes that autograd takes over the gradient; this is one."""

    @staticmethod
    def forward(ctx: Any, clip: Tensor, count: int) -> Tensor:
        ctx.count = count
        return _padded(clip, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        last = gradients[0].movedim(2, -1)
        gradient = last[:, ctx.count :].clone(memory_format=torch.contiguous_format)
        gradient[:, 0] += last[:, : ctx.count].sum(1)
        return gradient.movedim(-1, 2), None


class PerFrame(nn.Module):
    """An image layer, applied to each frame."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        return per_frame(self.body, clip), state


class CausalConv(nn.Module):
    """A temporal convolution over the current frame and the `kernel - 1` before it.

    Its state is the `kernel - stride` frames that overlap with the next output.
    """

    def __init__(
        self, dim: int, dim_out: int, kernel: int = 3, stride: int = 1, *, zeroed: bool = False
    ) -> None:
        super().__init__()
        if kernel <= stride:
            raise ValueError(f"kernel {kernel} must be larger than stride {stride}")
        self.kernel, self.stride = kernel, stride
        conv = nn.Conv2d(dim, dim_out, (kernel, 1), stride=(stride, 1))
        self.conv = zero_init(conv) if zeroed else conv

    def forward(
        self, clip: Tensor, state: State = None, skip: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """A `skip` is added to the output."""
        padded = torch.cat((state[0], clip), dim=1) if state else pad_time(clip, self.kernel - 1)
        out = self.convolve(padded, skip)
        return out, None if state is None else (last_frames(padded, self.kernel - self.stride),)

    def convolve(self, padded: Tensor, skip: Tensor | None) -> Tensor:
        planes = as_planes(padded)
        out = self.conv(planes) if skip is None else conv_add(self.conv, planes, as_planes(skip))
        return out.transpose(1, 2).unflatten(3, padded.shape[3:])


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation of each frame (arXiv 1709.01507)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = max(dim // 4, 8)
        self.to_gates = nn.Sequential(
            nn.Conv2d(dim, hidden, 1), nn.SiLU(), zero_init(nn.Conv2d(hidden, dim, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * (2 * torch.sigmoid(self.to_gates(mean_position(x))))


def mean_position(x: Tensor) -> Tensor:
    """(b, c, h, w) -> (b, c, 1, 1)."""
    if torch.compiler.is_compiling():
        return x.mean((2, 3), keepdim=True)
    return _MeanPosition.apply(x)  # type: ignore[return-value]


class _MeanPosition(torch.autograd.Function):
    """Its gradient is a view; that of autograd is written out, channels-first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.mean((2, 3), keepdim=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return (gradients[0] / ctx.shape[2:].numel()).expand(ctx.shape)


class CausalResidualBlock(nn.Module):
    """x + temporal(silu(norm(spatial(silu(norm(x)))))): 3 x 3 positions, then 3 frames."""

    def __init__(self, dim: int, *, squeeze_excite: bool = True) -> None:
        super().__init__()
        self.spatial = FusedSequential(
            group_norm(dim),
            nn.SiLU(),
            nn.Conv2d(dim, dim, 3, padding=1),
            group_norm(dim),
            nn.SiLU(),
            *([SqueezeExcite(dim)] if squeeze_excite else []),
        )
        self.temporal = CausalConv(dim, dim, zeroed=True)

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        if state is None:
            # The second norm writes the padding: excitation gives a copy what it gives the frame.
            padding = Padding(clip.shape[1], self.temporal.kernel - 1)
            layers = list(self.spatial)
            frames = run(layers[5:], run(layers[:5], as_frames(clip), padding))
            return self.temporal.convolve(frames.unflatten(0, (clip.shape[0], -1)), skip=clip), None
        return self.temporal(per_frame(self.spatial, clip), state, skip=clip)


def match_clip(clip: Tensor, channels: int) -> Tensor:
    return match_channels(as_frames(clip), channels).unflatten(0, clip.shape[:2])


def frames_to_channels(clip: Tensor, channels: int) -> Tensor:
    """Pairs of frames stacked in the channels, repeated or averaged to `channels`."""
    pairs = clip.movedim(2, -1).unflatten(1, (-1, 2)).movedim(2, -1).flatten(-2)
    return match_clip(pairs.movedim(-1, 2), channels)


def channels_to_frames(clip: Tensor) -> Tensor:
    pairs = clip.movedim(2, -1).unflatten(-1, (-1, 2)).movedim(-1, 2)
    return pairs.flatten(1, 2).movedim(-1, 2)


class TemporalDownsample(nn.Module):
    """1 + 2n frames to 1 + n: a stride-2 convolution plus a frames-to-channels shortcut."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(2 * dim, dim_out)
        self.dim_out = dim_out
        self.conv = CausalConv(dim, dim_out, stride=2)

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        paired = clip if state else pad_time(clip, 1)
        return self.conv(clip, state, skip=frames_to_channels(paired, self.dim_out))


class TemporalUpsample(nn.Module):
    """1 + n frames to 1 + 2n: each becomes two, and the copy before the first is dropped."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        check_shortcut(dim, 2 * dim_out)
        self.dim_out = dim_out
        self.conv = CausalConv(dim, 2 * dim_out)

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        first_chunk = not state
        pairs, state = self.conv(clip, state, skip=match_clip(clip, 2 * self.dim_out))
        frames = channels_to_frames(pairs)
        return frames[:, 1:] if first_chunk else frames, state


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, window: int) -> Tensor:
    """Causal attention of queries (..., heads, t, e) at the last t keys, over `window` keys each.

    Plain matrix products: sequences are a few frames long, and fused kernels would mostly compute
    padding.
    """
    keys, queries = k.shape[-2], q.shape[-2]
    offsets = torch.arange(keys - queries, keys, device=q.device)[:, None]
    offsets = offsets - torch.arange(keys, device=q.device)
    scores = full_precision(q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = scores + F.embedding(offsets.clamp(0, window - 1), bias.mT).permute(2, 0, 1)
    masked = (offsets < 0) | (offsets >= window)
    return scores.masked_fill(masked, float("-inf")).softmax(-1).to(v.dtype) @ v


class TemporalAttention(nn.Module):
    """Causal attention at each position over the last `window` frames, with relative position bias.

    Its state is the keys and values of `window - 1` frames, so clips may be of any length.
    """

    def __init__(self, dim: int, window: int, head_dim: int = 64) -> None:
        super().__init__()
        self.window, self.head_dim = window, choose_head_dim(dim, head_dim)
        self.norm = group_norm(dim)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.unit_q = QKNorm(self.head_dim)
        self.unit_k = QKNorm(self.head_dim)
        self.bias = nn.Parameter(torch.zeros(dim // self.head_dim, window))
        self.to_out = zero_init(nn.Conv2d(dim, dim, 1))

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        q, k, v = self.project(clip)
        if state:
            k, v = torch.cat((state[0], k), dim=-2), torch.cat((state[1], v), dim=-2)
        attended = windowed_attention(
            q, k, v, self.bias, self.window
        )  # (b, positions, heads, t, e)
        frames = attended.permute(0, 3, 2, 4, 1).flatten(2, 3).unflatten(3, clip.shape[3:])
        out = clip + per_frame(self.to_out, frames)
        return out, None if state is None else (self.recent(k), self.recent(v))

    def project(self, clip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(b, positions, heads, t, e) each; without absolute positions."""
        qkv = self.to_qkv(group_norm_act(as_frames(clip), self.norm)).unflatten(0, clip.shape[:2])
        heads = qkv.flatten(3).unflatten(2, (3, -1, self.head_dim))
        q, k, v = heads.permute(2, 0, 5, 3, 1, 4).unbind(0)
        return self.unit_q(q, None), self.unit_k(k, None), v

    def recent(self, heads: Tensor) -> Tensor:
        count = min(self.window - 1, heads.shape[-2])
        return heads[..., heads.shape[-2] - count :, :].clone()


class GateLoop(nn.Module):
    """A gated linear recurrence at each position and channel (GateLoop, arXiv 2311.01927).

    h_t = a_t h_(t-1) + (1 - a_t) v_t with real gates: a moving average with a data-dependent decay.
    Its state is h.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = group_norm(dim)
        self.to_gates = nn.Conv2d(dim, 3 * dim, 1)
        self.to_out = zero_init(nn.Conv2d(dim, dim, 1))

    def forward(self, clip: Tensor, state: State = None) -> tuple[Tensor, State]:
        projected = self.to_gates(group_norm_act(as_frames(clip), self.norm)).unflatten(
            0, clip.shape[:2]
        )
        values, decays, gates = projected.chunk(3, dim=2)
        values, decays = full_precision(values), torch.sigmoid(full_precision(decays))
        hidden = state[0] if state else values[:, 0]
        outputs: list[Tensor] = []
        for value, decay in zip(values.unbind(1), decays.unbind(1)):
            hidden = torch.lerp(value, hidden, decay)
            outputs.append(hidden)
        gated = torch.stack(outputs, dim=1).to(gates.dtype) * F.silu(gates)
        return clip + per_frame(self.to_out, gated), None if state is None else (hidden,)


class CausalSequential(nn.Module):
    """A sequence of causal layers; their states are a list in the same order."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, clip: Tensor) -> Tensor:
        """The whole clip."""
        for layer in self.layers:
            clip, _ = layer(clip)
        return clip

    def forward_chunk(self, clip: Tensor, states: list[State] | None) -> tuple[Tensor, list[State]]:
        """One chunk and the states for the next one; None for the first chunk."""
        new_states: list[State] = []
        for layer, state in zip(self.layers, states or [()] * len(self.layers)):
            clip, new_state = layer(clip, state)
            new_states.append(new_state)
        return clip, new_states
