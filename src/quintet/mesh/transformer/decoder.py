"""Generation on CUDA with the kernels of `nn/kernels`: the default model's face is 183 launches.

`fold_weights` prepares the weights: in the dtype of generation, gains of norms folded into the
products that follow them, embeddings of codes normalised and projected. `FaceDecoder` holds a batch
of fixed size and the CUDA graph of a face. Both are kept between calls: weights are folded again
into the same memory, so that a call sees what was trained or loaded since.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import fold
from quintet.mesh.transformer.generator import (
    CHECK_EVERY,
    CONTEXT_ROWS,
    CapturedStep,
    Sampling,
    copy_prompt,
    pad_rows,
    with_null_text,
)
from quintet.nn.attention import Context, CrossKV, KVCache
from quintet.nn.kernels import compiled_together, decode
from quintet.nn.kernels.draw import Draw, Face, draw_digit, draw_end
from quintet.nn.rope import Rope, rope_1d

if TYPE_CHECKING:
    from quintet.mesh.transformer.model import MeshTransformer

ROWS = (1, 8, 32, 64, 128, 256, 512)
"""Batch sizes with a graph; other counts are padded, and larger ones generated in chunks."""
MIN_CAPACITY = 64
"""Faces that a cache holds at least; longer ones double."""
KEPT = 4
"""Decoders kept for a model, the latest used."""
KEPT_MEMORY = 1 / 8
"""Share of the device's memory that kept decoders may take."""


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


class DigitWeights(NamedTuple):
    hidden: Tensor
    out: Tensor
    bias: Tensor
    embed: Tensor
    """(v, d); of the last digit not used."""


class Weights(NamedTuple):
    coarse: tuple[BlockWeights, ...]
    fine: tuple[BlockWeights, ...]
    digits: tuple[tuple[DigitWeights, ...], ...]
    """For each level, each digit."""
    start: Tensor
    face_proj: Tensor
    coarse_gain: Tensor
    end: Tensor
    end_bias: Tensor
    slots: Tensor
    fine_gain: Tensor
    table: Tensor
    """(depth, codes, d) normalised embeddings."""
    projected: Tensor
    """(depth, codes, d): what a code adds to the input of the next slot."""


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

    def digit(level: int, part: int) -> DigitWeights:
        head: Any = model.head
        index, last = level * head.parts + part, part == head.parts - 1
        embed = head.out[index].bias if last else head.digit_embed[index - level]
        return DigitWeights(
            fold_gain(head.hidden[index], head.norms[index]),
            head.out[index].weight.to(dtype),
            head.out[index].bias.to(dtype),
            embed.to(dtype),
        )

    table = F.rms_norm(model.code_embed(), (model.config.dim,))
    return Weights(
        coarse=tuple(map(block, model.coarse)),
        fine=tuple(map(block, model.fine)),
        digits=tuple(
            tuple(digit(level, part) for part in range(model.head.parts))
            for level in range(model.config.depth)
        ),
        start=model.start.to(dtype),
        face_proj=model.face_proj.weight.to(dtype),
        coarse_gain=model.coarse_norm.weight.to(dtype),
        end=model.end_head.weight.to(dtype),
        end_bias=model.end_head.bias.to(dtype),
        slots=model.slot_embed.to(dtype),
        fine_gain=model.fine_norm.weight.to(dtype),
        table=table.to(dtype),
        projected=model.code_proj(table).to(dtype),
    )


def tensors(weights: Any) -> Iterator[Tensor]:
    if isinstance(weights, Tensor):
        yield weights
    elif weights is not None:
        for part in weights:
            yield from tensors(part)


class Scratch(NamedTuple):
    """What the blocks of a decoder compute on the way."""

    qkv: Tensor
    q: Tensor
    attended: Tensor


class FaceDecoder:
    """A batch of `rows` meshes of up to `capacity` faces."""

    def __init__(
        self,
        model: "MeshTransformer",
        weights: Weights,
        rows: int,
        capacity: int,
        context_length: int,
        sampling: Sampling,
    ) -> None:
        """`context_length` 0: no cross-attention."""
        self.config, self.weights, self.sampling = model.config, weights, sampling
        self.parts = model.head.parts
        config, dim, tokens = model.config, model.config.dim, model.config.tokens_per_face
        self.guided = context_length > 0 and sampling.cond_scale != 1.0
        batch = rows * (2 if self.guided else 1)
        device, kind = weights.start.device, weights.start.dtype

        def buffer(*shape: int, dtype: torch.dtype = kind) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def cache(heads: int, length: int, head_dim: int) -> KVCache:
            shape = (batch, heads, length, head_dim)
            return KVCache(buffer(*shape), buffer(*shape))

        def scratch(width: int) -> Scratch:
            return Scratch(buffer(batch, 3 * width), buffer(batch, width), buffer(batch, width))

        self.caches = [cache(config.heads, capacity, config.head_dim) for _ in weights.coarse]
        self.fine_caches = [
            cache(config.fine_heads, tokens, config.fine_head_dim) for _ in weights.fine
        ]
        mask = buffer(batch, context_length, dtype=torch.int8)
        self.context_lengths = buffer(batch, dtype=torch.int32)
        self.cross_kvs = [
            None
            if layer.cross is None or not context_length
            else CrossKV(*cache(config.heads, context_length, config.head_dim), mask)
            for layer in weights.coarse
        ]
        self.scratch = scratch(config.heads * config.head_dim)
        self.fine_scratch = scratch(config.fine_heads * config.fine_head_dim)
        self.hidden = buffer(batch, weights.coarse[0].feed_forward.shape[1])
        self.activations = buffer(batch, 2 * dim)
        self.x = buffer(batch, dim)
        self.slots = torch.arange(tokens, device=device)
        self.rope = rope_1d(torch.arange(capacity, device=device), config.head_dim)
        self.face = Face(
            keys=buffer(rows, dtype=torch.int64),
            position=buffer(1, dtype=torch.int64),
            codes=buffer(rows, capacity, tokens, dtype=torch.int64),
            face=buffer(rows, tokens, dtype=torch.int64),
            forced=buffer(rows, dtype=torch.int8),
            ended=buffer(rows, dtype=torch.int8),
            coarse=buffer(batch, dim),
            x=buffer(batch, dim),
            state=buffer(batch, dim),
            embeddings=buffer(batch, tokens * dim),
        )
        self.draw = Draw(
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.cond_scale,
            self.guided,
            sampling.greedy,
        )
        self.take_step = self.step
        if device.type == "cuda":
            with compiled_together():
                self.step(0)
            self.take_step = CapturedStep(self.step)

    @property
    def memory(self) -> int:
        return sum(t.numel() * t.element_size() for kv in self.caches for t in kv)

    def run(
        self,
        model: "MeshTransformer",
        context: Context | None,
        keys: list[int],
        max_faces: int,
        prompt: Tensor | None,
    ) -> Tensor:
        """Codes (len(keys), max_faces, t)."""
        self.begin(model, context, keys, prompt)
        for face in range(max_faces):
            self.take_step(0)
            if face % CHECK_EVERY == CHECK_EVERY - 1 and bool(self.face.ended.all()):
                break
        return self.face.codes[: len(keys), :max_faces].clone()

    def begin(
        self,
        model: "MeshTransformer",
        context: Context | None,
        keys: list[int],
        prompt: Tensor | None,
    ) -> None:
        face, count = self.face, len(keys)
        face.position.zero_()
        face.keys[:count] = torch.tensor(keys, device=face.keys.device)
        face.ended.zero_()
        face.ended[count:] = 1  # padding
        face.codes.fill_(-1)
        if prompt is not None:
            copy_prompt(prompt, face.codes[:count])
        self.x.copy_(self.weights.start.expand_as(self.x))
        if context is None:
            return
        context = Context(*(pad_rows(each, len(face.keys)) for each in context))
        context = with_null_text(context) if self.guided else context
        numbers = torch.arange(1, context.mask.shape[1] + 1, device=context.mask.device)
        self.context_lengths.copy_((context.mask * numbers).amax(1))
        batch = len(self.context_lengths)
        for block, kv in zip(model.coarse, self.cross_kvs):
            if kv is None:
                continue
            kv.mask.copy_(context.mask)
            for first in range(0, batch, CONTEXT_ROWS):
                rows = slice(first, first + CONTEXT_ROWS)
                part = Context(*(pad_rows(each[rows], CONTEXT_ROWS) for each in context))
                projected: CrossKV = block.cross_kv(part)  # type: ignore[operator]
                kv.keys[rows] = projected.keys[: batch - first]
                kv.values[rows] = projected.values[: batch - first]

    # -- one face -------------------------------------------------------------------------------

    def step(self, _: int) -> None:
        weights, face = self.weights, self.face
        for layer, cache, kv in zip(weights.coarse, self.caches, self.cross_kvs):
            self.block(layer, self.x, cache, face.position, self.scratch, self.rope, kv)
        draws = self.config.tokens_per_face * self.parts
        end = (weights.coarse_gain, weights.end, weights.end_bias, weights.slots)
        draw_end(self.x, *end, face, draws, self.draw)
        for slot in range(self.config.tokens_per_face):
            for layer, cache in zip(weights.fine, self.fine_caches):
                self.block(layer, face.x, cache, self.slots[slot:], self.fine_scratch)
            self.draw_code(slot)
        decode.linear(face.embeddings, weights.face_proj, self.x)
        face.position.add_(1)

    def block(
        self,
        layer: BlockWeights,
        x: Tensor,
        cache: KVCache,
        position: Tensor,
        scratch: Scratch,
        rope: Rope | None = None,
        kv: CrossKV | None = None,
    ) -> None:
        """Adds to x (b, d), as `Block.step`."""
        qkv, q, attended = scratch
        decode.linear(x, layer.qkv, qkv, norm=True)
        decode.self_attention(qkv, layer.gains, cache, position, rope, self.face.ended, attended)
        decode.linear(attended, layer.out, x, epilogue="residual")
        if layer.cross is not None and kv is not None:
            decode.linear(x, layer.cross.q, q, norm=True)
            decode.cross_attention(q, layer.cross.gain, kv, self.context_lengths, attended)
            decode.linear(attended, layer.cross.out, x, epilogue="residual")
        decode.linear(x, layer.hidden, self.hidden, norm=True, epilogue="swiglu")
        decode.linear(self.hidden, layer.feed_forward, x, epilogue="residual")

    def draw_code(self, slot: int) -> None:
        weights, depth = self.weights, self.config.depth
        level = slot % depth
        state = F.rms_norm(self.face.x, (self.config.dim,), weights.fine_gain, decode.EPS)
        face = self.face._replace(state=state)
        for part, digit in enumerate(weights.digits[level]):
            decode.linear(state, digit.hidden, self.activations, norm=True, epilogue="silu")
            draw_digit(
                self.activations,
                *digit[1:],
                weights.table[level],
                weights.projected[level],
                weights.slots,
                face,
                self.draw,
                slot=slot,
                part=part,
                parts=self.parts,
                depth=depth,
                distinct=self.sampling.distinct,
            )


# -- what is kept between calls -----------------------------------------------------------------


class Decoders:
    """The decoders of a model."""

    def __init__(self) -> None:
        self.weights: dict[tuple[torch.dtype, torch.device], Weights] = {}
        self.kept: OrderedDict[Any, FaceDecoder] = OrderedDict()

    def fold(self, model: "MeshTransformer", dtype: torch.dtype) -> Weights:
        """The weights as they are now, always in the same memory."""
        weights, key = fold_weights(model, dtype), (dtype, model.start.device)
        if key not in self.weights:
            # Weights that are in this dtype already must not be shared with the model.
            self.weights[key] = copied(weights)
        else:
            torch._foreach_copy_(list(tensors(self.weights[key])), list(tensors(weights)))
        return self.weights[key]

    def trim(self, count: int, memory: float) -> None:
        while self.kept and (
            len(self.kept) > count or sum(d.memory for d in self.kept.values()) > memory
        ):
            self.kept.popitem(last=False)

    def get(
        self,
        model: "MeshTransformer",
        weights: Weights,
        wanted: int,
        capacity: int,
        context_length: int,
        sampling: Sampling,
    ) -> FaceDecoder:
        """For `wanted` rows or, where memory does not suffice, fewer."""
        config, itemsize = model.config, weights.start.element_size()
        guided = context_length > 0 and sampling.cond_scale != 1.0
        faces = 2 * config.layers * config.heads * config.head_dim * itemsize
        bytes_per_row = faces * (capacity + context_length) * (2 if guided else 1)
        free: float | None = None
        for rows in reversed([size for size in ROWS if size < wanted] + [fit_rows(wanted)]):
            key = (
                weights.start.dtype,
                model.start.device,
                rows,
                capacity,
                context_length,
                sampling,
            )
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
            free = free_memory(model.start.device) if free is None else free
            if rows == ROWS[0] or rows * bytes_per_row < free / 2:
                self.trim(KEPT - 1, float("inf"))
                args = (model, weights, rows, capacity, context_length, sampling)
                self.kept[key] = FaceDecoder(*args)
                return self.kept[key]
        raise AssertionError("the smallest size always fits")


def copied(weights: Any) -> Any:
    if weights is None or isinstance(weights, Tensor):
        return None if weights is None else weights.detach().clone()
    parts = [copied(part) for part in weights]
    return type(weights)(*parts) if hasattr(weights, "_fields") else tuple(parts)


def fit_rows(wanted: int) -> int:
    return next((size for size in ROWS if size >= wanted), ROWS[-1])


def free_memory(device: torch.device) -> float:
    if device.type != "cuda":
        return float("inf")
    torch.cuda.empty_cache()  # what torch holds in reserve is free as well
    return torch.cuda.mem_get_info(device)[0]


DECODERS: WeakKeyDictionary["MeshTransformer", Decoders] = WeakKeyDictionary()


def generate(
    model: "MeshTransformer",
    context: Context | None,
    count: int,
    max_faces: int,
    sampling: Sampling,
    prompt: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Codes (count, max_faces, t)."""
    decoders = DECODERS.setdefault(model, Decoders())
    weights = decoders.fold(model, dtype)
    capacity = MIN_CAPACITY
    while capacity < max_faces:
        capacity *= 2
    capacity = min(capacity, -(-model.config.max_faces // MIN_CAPACITY) * MIN_CAPACITY)
    seed, sampling = sampling.seed, replace(sampling, seed=0)
    length = 0 if context is None else context.values.shape[1]
    codes: list[Tensor] = []
    first = 0
    while first < count:
        decoder = decoders.get(model, weights, count - first, capacity, length, sampling)
        last = min(count, first + len(decoder.face.keys))
        part = None if context is None else Context(*(each[first:last] for each in context))
        keys = [fold(seed, "mesh", row) for row in range(first, last)]
        given = None if prompt is None else prompt[first:last]
        codes.append(decoder.run(model, part, keys, max_faces, given))
        first = last
    if model.start.is_cuda:
        total = torch.cuda.get_device_properties(model.start.device).total_memory
        decoders.trim(KEPT, KEPT_MEMORY * total)
    return torch.cat(codes)
