"""Generation on CUDA with the kernels of `nn/kernels`: the default model's face is 183 launches.

`FaceDecoder` holds a batch of fixed size and the CUDA graph of a face. It is kept between calls, as
are the folded weights: a call folds them again, into the same memory, and so sees what was trained
or loaded since.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from quintet.mesh.transformer.draw import Draw, Face, draw_digit, draw_end
from quintet.mesh.transformer.folded import BlockWeights, Weights, fold_weights
from quintet.mesh.transformer.generator import CHECK_EVERY, Sampling, copy_prompt
from quintet.nn.attention import Context, CrossKV, KVCache
from quintet.nn.kernels import compiled_together, decode
from quintet.nn.rope import Rope, rope_1d
from quintet.shared.conditioning import CONTEXT_ROWS, pad_rows, with_null_text
from quintet.shared.sampling import go_on
from quintet.shared.stepping import CapturedStep

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
        config, dim, tokens = model.config, model.config.dim, model.config.tokens_per_face
        self.weights = weights
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
            embeddings=buffer(batch, tokens * dim),
        )
        self.draw = Draw(sampling, self.guided, config.depth, model.head.parts)
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
        keys: Tensor,
        max_faces: int,
        prompt: Tensor | None,
    ) -> Tensor:
        """Codes (len(keys), max_faces, t)."""
        self.begin(model, context, keys, prompt)
        for face in range(max_faces):
            go_on()
            self.take_step(0)
            if face % CHECK_EVERY == CHECK_EVERY - 1 and bool(self.face.ended.all()):
                break
        return self.face.codes[: len(keys), :max_faces].clone()

    def begin(
        self,
        model: "MeshTransformer",
        context: Context | None,
        keys: Tensor,
        prompt: Tensor | None,
    ) -> None:
        face, count = self.face, len(keys)
        face.position.zero_()
        face.keys[:count] = keys.to(face.keys.device)
        face.ended.zero_()
        face.ended[count:] = 1  # padding
        face.codes.fill_(-1)
        if prompt is not None:
            copy_prompt(prompt, face.codes[:count])
        self.x.copy_(self.weights.start.expand_as(self.x))
        if context is None:
            return
        values = context.values.to(model.start.dtype)
        context = Context(*(pad_rows(each, len(face.keys)) for each in (values, context.mask)))
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
        draw_end(self.x, weights.end, face, self.draw)
        for slot in range(len(self.slots)):
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
        weights, level = self.weights, slot % self.draw.depth
        gain = weights.fine_gain
        state = F.rms_norm(self.face.x, gain.shape, gain, decode.EPS)
        for part, digit in enumerate(weights.digits[level]):
            hidden = weights.hidden[level][part]
            decode.linear(state, hidden, self.activations, norm=True, epilogue="silu")
            args = (self.activations, state, digit, weights.tables[level], self.face, self.draw)
            draw_digit(*args, slot=slot, part=part)


# -- what is kept between calls -----------------------------------------------------------------


class Decoders:
    """The decoders of a model."""

    def __init__(self) -> None:
        self.weights: dict[tuple[torch.dtype, torch.device], Weights] = {}
        self.decoders: OrderedDict[Any, FaceDecoder] = OrderedDict()

    def fold(self, model: "MeshTransformer", dtype: torch.dtype) -> Weights:
        """The weights as they are now, always in the same memory."""
        weights, key = fold_weights(model, dtype), (dtype, model.start.device)
        if key not in self.weights:
            # Weights that are in this dtype already must not be shared with the model.
            self.weights[key] = tree_map_only(Tensor, lambda t: t.detach().clone(), weights)
        else:
            torch._foreach_copy_(tensors(self.weights[key]), tensors(weights))
        return self.weights[key]

    def trim(self, count: int, memory: float) -> None:
        while self.decoders and (
            len(self.decoders) > count or sum(d.memory for d in self.decoders.values()) > memory
        ):
            self.decoders.popitem(last=False)

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
            shape = (rows, capacity, context_length, sampling)
            key = (weights.start.dtype, model.start.device, *shape)
            if key in self.decoders:
                self.decoders.move_to_end(key)
                return self.decoders[key]
            free = free_memory(model.start.device) if free is None else free
            if rows == ROWS[0] or rows * bytes_per_row < free / 2:
                self.trim(KEPT - 1, float("inf"))
                self.decoders[key] = FaceDecoder(model, weights, *shape)
                return self.decoders[key]
        raise AssertionError("the smallest size always fits")


def tensors(weights: Weights) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(weights) if isinstance(leaf, Tensor)]


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
    keys: Tensor,
    max_faces: int,
    sampling: Sampling,
    prompt: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Codes (b, max_faces, t), for the keys (b,) of the draws."""
    decoders = DECODERS.setdefault(model, Decoders())
    weights = decoders.fold(model, dtype)
    capacity = MIN_CAPACITY
    while capacity < max_faces:
        capacity *= 2
    capacity = min(capacity, -(-model.config.max_faces // MIN_CAPACITY) * MIN_CAPACITY)
    count, sampling = len(keys), replace(sampling, seed=0)
    length = 0 if context is None else context.values.shape[1]
    codes: list[Tensor] = []
    first = 0
    while first < count:
        decoder = decoders.get(model, weights, count - first, capacity, length, sampling)
        last = min(count, first + len(decoder.face.keys))
        part = None if context is None else Context(*(each[first:last] for each in context))
        start = None if prompt is None else prompt[first:last]
        codes.append(decoder.run(model, part, keys[first:last], max_faces, start))
        first = last
    if model.start.is_cuda:
        total = torch.cuda.get_device_properties(model.start.device).total_memory
        decoders.trim(KEPT, KEPT_MEMORY * total)
    return torch.cat(codes)
