"""Weights of the mesh transformer as its decoder on CUDA reads them.

In the dtype of generation, with the gains of norms folded into the products that follow them, and
with the embeddings of codes normalised and projected.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.mesh.transformer.draw import CodeTables, DigitWeights, EndWeights

if TYPE_CHECKING:
    from quintet.mesh.transformer.model import MeshTransformer


class CrossWeights(NamedTuple):
    q: Tensor
    gain: Tensor
    out: Tensor


class BlockWeights(NamedTuple):
    qkv: Tensor
    gains: Tensor
    """(2, e) of queries and keys."""
    out: Tensor
    cross: CrossWeights | None
    hidden: Tensor
    feed_forward: Tensor


class Weights(NamedTuple):
    coarse: tuple[BlockWeights, ...]
    fine: tuple[BlockWeights, ...]
    hidden: tuple[tuple[Tensor, ...], ...]
    """Weights of the head, for each level and each digit."""
    digits: tuple[tuple[DigitWeights, ...], ...]
    tables: tuple[CodeTables, ...]
    """For each level."""
    start: Tensor
    face_proj: Tensor
    end: EndWeights
    fine_gain: Tensor


def fold_weights(model: "MeshTransformer", dtype: torch.dtype) -> Weights:
    def fold_gain(linear: nn.Linear, norm: Any) -> Tensor:
        return (linear.weight * norm.weight).to(dtype)

    def block(module: Any) -> BlockWeights:
        attention, cross = module.attention, None
        if module.cross is not None:
            q = fold_gain(module.cross.to_q, module.cross_norm)
            cross = CrossWeights(
                q, module.cross.q_norm.gain.to(dtype), module.cross.to_out.weight.to(dtype)
            )
        return BlockWeights(
            fold_gain(attention.to_qkv, module.attention_norm),
            torch.stack((attention.q_norm.gain, attention.k_norm.gain)).to(dtype),
            attention.to_out.weight.to(dtype),
            cross,
            fold_gain(module.feed_forward.to_hidden, module.feed_forward_norm),
            module.feed_forward.to_out.weight.to(dtype),
        )

    head: Any = model.head
    levels, parts = range(model.config.depth), range(head.parts)

    def digit(level: int, part: int) -> DigitWeights:
        out = head.out[level * head.parts + part]
        # The last digit is not embedded; any tensor will do.
        last = part == head.parts - 1
        embed = out.bias if last else head.digit_embed[level * (head.parts - 1) + part]
        return DigitWeights(out.weight.to(dtype), out.bias.to(dtype), embed.to(dtype))

    def hidden(level: int, part: int) -> Tensor:
        index = level * head.parts + part
        return fold_gain(head.hidden[index], head.norms[index])

    embeddings = F.rms_norm(model.code_embed(), (model.config.dim,))
    table, projected = embeddings.to(dtype), model.code_proj(embeddings).to(dtype)
    slots = model.slot_embed.to(dtype)
    return Weights(
        coarse=tuple(map(block, model.coarse)),
        fine=tuple(map(block, model.fine)),
        hidden=tuple(tuple(hidden(level, part) for part in parts) for level in levels),
        digits=tuple(tuple(digit(level, part) for part in parts) for level in levels),
        tables=tuple(CodeTables(table[level], projected[level], slots) for level in levels),
        start=model.start.to(dtype),
        face_proj=model.face_proj.weight.to(dtype),
        end=EndWeights(
            model.coarse_norm.weight.to(dtype),
            model.end_head.weight.to(dtype),
            model.end_head.bias.to(dtype),
            slots,
        ),
        fine_gain=model.fine_norm.weight.to(dtype),
    )
