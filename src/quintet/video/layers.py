"""The words of `layers`, as layers of the encoder and as their mirrors in the decoder."""

from torch import Tensor, nn

from quintet.nn.blocks import (
    AttentionBlock,
    Down,
    Head,
    Stem,
    Up,
    group_norm,
    head_width,
    zeroed,
)
from quintet.nn.causal import (
    CausalResidual,
    CausalStack,
    GateLoop,
    PerFrame,
    TimeAttention,
    TimeDown,
    TimeUp,
)
from quintet.nn.quantise import full_precision
from quintet.video.config import Layer, VideoTokenizerConfig


class LinearAttentionBlock(nn.Module):
    """Attention whose cost grows with the places, not with their square (arXiv 1812.01243).

    Keys share the places out among the channels of a head, each channel gathers what lies at its
    share, and queries choose among channels.
    """

    def __init__(self, dim: int, head_dim: int = 64) -> None:
        super().__init__()
        self.head_dim = head_width(dim, head_dim)
        self.norm = group_norm(dim)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.to_out = zeroed(nn.Conv2d(dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.to_qkv(self.norm(x)).flatten(2).unflatten(1, (3, -1, self.head_dim))
        q, k, v = heads.unbind(1)  # (b, heads, e, places)
        gathered = full_precision(k).softmax(-1).to(v.dtype) @ v.transpose(-1, -2)
        chosen = full_precision(q).softmax(-2).to(v.dtype)
        made = gathered.transpose(-1, -2) @ chosen
        return x + self.to_out(made.flatten(1, 2).unflatten(2, x.shape[2:]))


def within(layer: Layer, config: VideoTokenizerConfig) -> nn.Module:
    """A layer that keeps size and width, and is its own mirror."""
    match layer.word:
        case "residual" | "consecutive_residual":
            return CausalResidual(layer.dim, excite=config.excite)
        case "attend_space":
            return PerFrame(AttentionBlock(layer.dim))
        case "linear_attend_space":
            return PerFrame(LinearAttentionBlock(layer.dim))
        case "attend_time":
            return TimeAttention(layer.dim, config.time_window)
        case "gateloop_time":
            return GateLoop(layer.dim)
        case "compress_space" | "compress_time":
            raise ValueError(f"{layer.word} changes the size")


def down(layer: Layer, config: VideoTokenizerConfig) -> nn.Module:
    match layer.word:
        case "compress_space":
            return PerFrame(Down(layer.dim, layer.dim_out))
        case "compress_time":
            return TimeDown(layer.dim, layer.dim_out)
        case _:
            return within(layer, config)


def up(layer: Layer, config: VideoTokenizerConfig) -> nn.Module:
    match layer.word:
        case "compress_space":
            return PerFrame(Up(layer.dim_out, layer.dim))
        case "compress_time":
            return TimeUp(layer.dim_out, layer.dim)
        case _:
            return within(layer, config)


def build_encoder(config: VideoTokenizerConfig) -> CausalStack:
    stem = PerFrame(Stem(config.channels, config.init_dim, config.patch))
    return CausalStack([stem, *(down(layer, config) for layer in config.plan)])


def build_decoder(config: VideoTokenizerConfig) -> CausalStack:
    head = PerFrame(Head(config.init_dim, config.channels, config.patch))
    return CausalStack([*(up(layer, config) for layer in reversed(config.plan)), head])
