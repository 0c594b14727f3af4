"""Encoder and decoder layers of the video tokenizer, built from `layers`."""

from torch import Tensor, nn

from quintet.nn.attention import zero_init
from quintet.nn.blocks import AttentionBlock, Downsample, Head, Stem, Upsample, choose_head_dim
from quintet.nn.causal import (
    CausalResidualBlock,
    CausalSequential,
    GateLoop,
    PerFrame,
    TemporalAttention,
    TemporalDownsample,
    TemporalUpsample,
)
from quintet.nn.fused import conv_add
from quintet.nn.heads import merge_heads, split_heads
from quintet.nn.norms import group_norm, group_norm_act
from quintet.nn.precision import full_precision
from quintet.video.tokenizer.config import Layer, VideoTokenizerConfig


class LinearAttentionBlock(nn.Module):
    """Efficient attention, linear in the number of positions (arXiv 1812.01243).

    Keys are normalised over positions and queries over channels: each key channel aggregates the
    values into one context vector, and queries mix the context vectors.
    """

    def __init__(self, dim: int, head_dim: int = 64) -> None:
        super().__init__()
        self.head_dim = choose_head_dim(dim, head_dim)
        self.norm = group_norm(dim)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.to_out = zero_init(nn.Conv2d(dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(group_norm_act(x, self.norm)).flatten(2).transpose(1, 2)
        q, k, v = (split_heads(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
        context = full_precision(k).softmax(-2).to(v.dtype).mT @ v  # (b, heads, e, e)
        attended = full_precision(q).softmax(-1).to(v.dtype) @ context
        out = merge_heads(attended).transpose(1, 2).unflatten(2, x.shape[2:])
        return conv_add(self.to_out, out, x)


def build_layer(layer: Layer, config: VideoTokenizerConfig, *, decoder: bool) -> nn.Module:
    """A layer of the encoder, or its mirror image in the decoder."""
    dim, dim_out = layer.dim, layer.dim_out
    match layer.type:
        case "compress_space":
            return PerFrame(Upsample(dim_out, dim) if decoder else Downsample(dim, dim_out))
        case "compress_time":
            return TemporalUpsample(dim_out, dim) if decoder else TemporalDownsample(dim, dim_out)
        case "residual" | "consecutive_residual":
            return CausalResidualBlock(dim, squeeze_excite=config.squeeze_excite)
        case "attend_space":
            return PerFrame(AttentionBlock(dim))
        case "linear_attend_space":
            return PerFrame(LinearAttentionBlock(dim))
        case "attend_time":
            return TemporalAttention(dim, config.time_window)
        case "gateloop_time":
            return GateLoop(dim)


def build_encoder(config: VideoTokenizerConfig) -> CausalSequential:
    stem = PerFrame(Stem(config.channels, config.init_dim, config.patch_size))
    layers = (build_layer(layer, config, decoder=False) for layer in config.plan)
    return CausalSequential([stem, *layers])


def build_decoder(config: VideoTokenizerConfig) -> CausalSequential:
    head = PerFrame(Head(config.init_dim, config.channels, config.patch_size))
    layers = (build_layer(layer, config, decoder=True) for layer in reversed(config.plan))
    return CausalSequential([*layers, head])
