"""Autoregressive generation of meshes, one face per step, without host synchronisation.

In each step the coarse decoder reads the previous face, the end of the mesh is sampled, and the
fine decoder generates the codes of the face. The position is a tensor, KV caches have a fixed
length and finished meshes emit padding. On CUDA a step is therefore one captured graph, and the
host checks only every few faces whether all meshes have ended. Attention reads the first 64, 128,
256, ... positions of the cache, with one graph per length.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.keys import uniform
from quintet.mesh.transformer.heads import DigitHead
from quintet.nn.attention import CachePosition, Context, cache_position
from quintet.shared.conditioning import pad_rows, with_null_text
from quintet.shared.generation.generator import Seed, sample_keys
from quintet.shared.sampling import go_on
from quintet.shared.stepping import CapturedStep
from quintet.triton import HAS_TRITON

if TYPE_CHECKING:
    from quintet.mesh.transformer.model import MeshTransformer

CHECK_EVERY = 16
"""Faces between two host checks for the end of all meshes."""
MIN_CACHE = 64
"""Shortest cache length that attention reads; it doubles from there."""
MAX_ROWS = 512
"""Meshes generated together."""
BLOCK = 8
"""Meshes generated together where each is to be the same bit for bit in any batch: always as many,
because products of another size may round otherwise. A face of eight takes a CPU hardly longer than
a face of one."""
MAX_VALUES = 128
"""Most values of a digit that the kernels take: they compare each with each."""
KEY_STRIDE = 0x632BE59BD9B4E019
"""Odd, so that no two draws of a row share a key."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling of codes."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most likely codes (or values of a digit) only."""
    top_p: float | None = None
    """Nucleus sampling: the most likely codes with this total probability."""
    cond_scale: float = 1.0
    """Classifier-free guidance scale (arXiv 2207.12598); 1 disables guidance."""
    seed: Seed = 0
    """Every draw is a function of the seed, the row, the face and the code; or pairs of a seed and
    a row for each mesh."""
    distinct: bool = True
    """Never repeat the codes of a corner within a face, so that every face has an area."""
    ordered: bool = False
    """Codes are coordinates, highest axis first: each face is greater than the one before it, and
    starts at its lowest corner (Meshtron, arXiv 2412.09548)."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.cond_scale):
            raise ValueError(f"cond_scale must be finite, not {self.cond_scale}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Logits (b, v) with -inf outside of top_k and top_p; ties at the threshold stay."""
    if top_k is not None and top_k < logits.shape[-1]:
        threshold = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    if top_p is not None and top_p < 1:
        ordered = logits.sort(dim=-1, descending=True).values
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        last = (before < top_p).sum(-1, keepdim=True) - 1
        logits = logits.masked_fill(logits < ordered.gather(-1, last), float("-inf"))
    return logits


def sample_tokens(logits: Tensor, sampling: Sampling, keys: Tensor) -> Tensor:
    """(b,) tokens by the Gumbel-max trick, which samples from the softmax."""
    if sampling.greedy:
        return logits.argmax(-1)
    logits = filter_logits(logits / sampling.temperature, sampling.top_k, sampling.top_p)
    noise = uniform(keys, "code", (logits.shape[-1],))
    return (logits - torch.log(-torch.log(noise))).argmax(-1)


def forbid_repeated_corner(logits: Tensor, face: list[Tensor], tokens_per_corner: int) -> Tensor:
    """Before the last token of a corner: -inf for the one that would repeat an earlier corner.

    `face` holds the tokens of this face so far.
    """
    begin = len(face) // tokens_per_corner * tokens_per_corner
    if len(face) - begin != tokens_per_corner - 1:
        return logits
    for other in range(0, begin, tokens_per_corner):
        last = face[other + tokens_per_corner - 1]
        same = torch.ones_like(last, dtype=torch.bool)
        for a, b in zip(face[begin:], face[other:]):
            same = same & (a == b)
        masked = logits.scatter(1, last[:, None], float("-inf"))
        logits = torch.where(same[:, None], masked, logits)
    return logits


def keep_order(
    logits: Tensor, face: list[Tensor], previous: Tensor, tokens: int, depth: int
) -> Tensor:
    """-inf for the tokens that would break the order of faces, or of the corners of a face.

    `face` holds the tokens of this face so far, `previous` (b, tokens) the face before it, -1
    before the first. Where no token is in order, all remain.
    """
    slot = len(face)
    values = torch.arange(logits.shape[1], device=logits.device)
    least = previous[:, slot] + (slot == tokens - 1)  # the same face again is out of order
    below = equal(face, list(previous.unbind(1)[:slot]), least)[:, None] & (values < least[:, None])
    begin = slot - slot % depth
    if begin:
        least = face[slot - begin]
        same = equal(face[begin:], face[: slot - begin], least)
        below = below | (same[:, None] & (values < least[:, None]))
    return torch.where(below & ~below.all(1, keepdim=True), float("-inf"), logits)


def equal(a: list[Tensor], b: list[Tensor], like: Tensor) -> Tensor:
    """(b,): whether all tokens are equal."""
    same = torch.ones_like(like, dtype=torch.bool)
    for x, y in zip(a, b, strict=True):
        same = same & (x == y)
    return same


def precedes(a: Tensor, b: Tensor) -> Tensor:
    """(n, t) and (n, t) -> (n,): whether faces a come before faces b."""
    first = (a != b).to(torch.int8).argmax(1, keepdim=True)
    return a.gather(1, first)[:, 0] < b.gather(1, first)[:, 0]


class FaceGenerator:
    """Decoding state of one batch of meshes."""

    def __init__(
        self,
        model: "MeshTransformer",
        table: Tensor,
        context: Context | None,
        keys: Tensor,
        max_faces: int,
        sampling: Sampling,
        prompt: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        """`keys` (b,) are those of the draws. `kept` (b, n, t) are faces in order that each mesh
        will have, padded with -1."""
        count = len(keys)
        self.model, self.sampling, self.count, self.max_faces = model, sampling, count, max_faces
        self.config, self.device, dtype = model.config, model.start.device, model.start.dtype
        self.table, self.tokens = table, model.config.tokens_per_face
        if context is not None:
            context = Context(context.values.to(dtype), context.mask)
        self.guided = context is not None and sampling.cond_scale != 1.0
        batch = count * (2 if self.guided else 1)
        context = with_null_text(context) if self.guided and context is not None else context
        self.coarse: list[Any] = list(model.coarse)
        self.fine: list[Any] = list(model.fine)
        self.cross_kvs = [block.cross_kv(context) for block in self.coarse]
        length = -(-max_faces // MIN_CACHE) * MIN_CACHE
        self.kv_caches = [block.attention.kv_cache(batch, length) for block in self.coarse]
        self.fine_kv_caches = [block.attention.kv_cache(batch, self.tokens) for block in self.fine]
        self.fine_positions = [
            cache_position(torch.tensor([t], device=self.device), self.tokens, None, self.device)
            for t in range(self.tokens)
        ]
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=self.device)
        self.keys = keys.to(self.device)
        shape = (count, max_faces, self.tokens)
        self.codes = torch.full(shape, -1, dtype=torch.int64, device=self.device)
        if prompt is not None:
            copy_prompt(prompt, self.codes)
        self.kept = None if kept is None else F.pad(kept, (0, 0, 0, 1), value=-1)
        self.next_kept = torch.zeros(count, dtype=torch.int64, device=self.device)

    def run(self) -> Tensor:
        step: Callable[[int], None] = self.step
        if self.device.type == "cuda":
            step = CapturedStep(self.step)
        for face in range(self.max_faces):
            go_on()
            step(self.cache_length(face))
            if face % CHECK_EVERY == CHECK_EVERY - 1 and bool(self.ended.all()):
                break
        return self.codes

    def cache_length(self, face: int) -> int:
        """Cache length that attention has to read for this face."""
        length = MIN_CACHE
        while length <= face:
            length *= 2
        return min(length, self.kv_caches[0].keys.shape[2])

    def step(self, cache_length: int) -> None:
        """Generate the next face of every mesh."""
        prompt = self.codes.index_select(1, self.position)[:, 0]
        forced = prompt[:, 0] >= 0
        coarse = self.coarse_step(cache_length)
        ends = self.sample_end(coarse) & ~forced & (self.position > 0)
        face = self.generate_face(coarse, prompt, forced)
        if self.kept is not None:
            face, ends = self.keep(self.kept, face, ends)
        self.ended |= ends
        face = face.masked_fill(self.ended[:, None], -1)
        self.codes.index_copy_(1, self.position, face[:, None])
        self.position += 1

    def keep(self, kept: Tensor, face: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """The next kept face, unless the generated one comes before it; no end before the last."""
        rows = torch.arange(len(kept), device=self.device)
        due = kept[rows, self.next_kept]
        is_left = due[:, 0] >= 0
        taken = is_left & (ends | ~precedes(face, due))
        self.next_kept += taken
        return torch.where(taken[:, None], due, face), ends & ~is_left

    def coarse_step(self, cache_length: int) -> Tensor:
        """Coarse hidden state (batch, d) after all faces so far."""
        model = self.model
        previous = self.codes.index_select(1, (self.position - 1).clamp_min(0))[:, 0]
        self.previous = torch.where(self.position == 0, -1, previous)
        face = model.face_proj(model.embed(previous, self.table).flatten(1))
        x = torch.where(self.position == 0, model.start, face)
        x = self.repeat_if_guided(x)[:, None]
        at = cache_position(self.position, cache_length, self.config.head_dim, self.device)
        for block, kv_cache, cross_kv in zip(self.coarse, self.kv_caches, self.cross_kvs):
            x = block.step(x, at, kv_cache, cross_kv)
        return model.coarse_norm(x)[:, 0]

    def sample_end(self, coarse: Tensor) -> Tensor:
        logit = self.guide(self.model.end_logits(coarse))
        if self.sampling.greedy:
            return logit > 0
        probability = torch.sigmoid(logit / self.sampling.temperature)
        return uniform(self.keys_of(0), "end", (1,))[:, 0] < probability

    def generate_face(self, coarse: Tensor, prompt: Tensor, forced: Tensor) -> Tensor:
        """Codes (b, t) of one face; where `forced`, those of the prompt."""
        head = self.model.head
        codes: list[Tensor] = []
        tokens: list[Tensor] = []
        for slot, at in enumerate(self.fine_positions):
            x = coarse + self.model.slot_embed[slot]
            if slot:
                previous = self.model.code_proj(self.embed_code(codes[-1], slot - 1))
                x = x + self.repeat_if_guided(previous)
            parts = self.generate_code(self.fine_step(x, at), slot, tokens)
            code = torch.where(forced, prompt[:, slot].clamp_min(0), head.join(parts))
            tokens += head.split(code)
            codes.append(code)
        return torch.stack(codes, dim=1)

    def generate_code(self, hidden: Tensor, slot: int, face: list[Tensor]) -> list[Tensor]:
        """Tokens of one code (its digits, or the code itself), given those of the face so far."""
        head, level, tokens = self.model.head, slot % self.config.depth, list[Tensor]()
        for part in range(head.parts):
            logits = self.guide(head.logits(level, part, hidden, self.table))
            if self.sampling.distinct:
                per_corner = self.config.depth * head.parts
                logits = forbid_repeated_corner(logits, face + tokens, per_corner)
            if self.sampling.ordered:
                logits = keep_order(logits, face, self.previous, self.tokens, self.config.depth)
            tokens.append(self.draw(logits, slot * head.parts + part))
            hidden = head.condition(level, part, hidden, self.repeat_if_guided(tokens[-1]))
        return tokens

    def draw(self, logits: Tensor, number: int) -> Tensor:
        """The token of one of the draws of a face."""
        return sample_tokens(logits, self.sampling, self.keys_of(number))

    def fine_step(self, x: Tensor, at: CachePosition) -> Tensor:
        x = x[:, None]
        for block, kv_cache in zip(self.fine, self.fine_kv_caches):
            x = block.step(x, at, kv_cache)
        return self.model.fine_norm(x)[:, 0]

    def embed_code(self, codes: Tensor, slot: int) -> Tensor:
        rows = self.table[slot % self.config.depth].index_select(0, codes)
        return F.rms_norm(rows, (self.config.dim,))

    def keys_of(self, draw: int) -> Tensor:
        """One key per row, from the face and the index of the draw within it."""
        draws = self.tokens * self.model.head.parts
        return self.keys + (self.position * draws + draw) * KEY_STRIDE

    def repeat_if_guided(self, rows: Tensor) -> Tensor:
        """The same rows for the conditional and the unconditional half of the batch."""
        return torch.cat((rows, rows)) if self.guided else rows

    def guide(self, logits: Tensor) -> Tensor:
        """Classifier-free guidance (arXiv 2207.12598)."""
        if not self.guided:
            return logits
        cond, uncond = logits.chunk(2)
        return uncond + self.sampling.cond_scale * (cond - uncond)


def copy_prompt(prompt: Tensor, codes: Tensor) -> None:
    """The first faces, into codes (b, f, t)."""
    length = min(prompt.shape[1], codes.shape[1])
    codes[:, :length] = prompt[:, :length]


def generate(
    model: "MeshTransformer",
    context: Context | None,
    count: int,
    max_faces: int,
    sampling: Sampling,
    prompt: Tensor | None,
    dtype: torch.dtype,
    kept: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """Codes (count, max_faces, t) of any number of meshes, `MAX_ROWS` at a time; in blocks where
    they are to be `exact`, but for the kernels, whose rows depend on no others."""
    tokens = model.config.tokens_per_face
    if sampling.ordered and model.head.parts > 1:
        raise ValueError("codes of several digits have no order of faces: drop ordered")
    if prompt is not None and (prompt.ndim != 3 or prompt.shape[::2] != (count, tokens)):
        raise ValueError(f"expected a prompt ({count}, faces, {tokens}), not {tuple(prompt.shape)}")
    keys = sample_keys(sampling.seed, range(count), "mesh")
    if count and kept is None and has_kernels(model, dtype):
        from quintet.mesh.transformer import decoder

        return decoder.generate(model, context, keys, max_faces, sampling, prompt, dtype)
    table, model = model.code_embed().to(dtype), model.cast_copy(dtype)
    codes: list[Tensor] = []
    for numbers in torch.arange(count, device=model.start.device).split(
        BLOCK if exact else MAX_ROWS
    ):
        rows = pad_rows(numbers, BLOCK) if exact else numbers
        part = None if context is None else Context(*(each[rows] for each in context))
        start = None if prompt is None else prompt[rows]
        left = None if kept is None else kept[rows]
        own = keys[rows.cpu()]
        generator = FaceGenerator(model, table, part, own, max_faces, sampling, start, left)
        generator.ended[len(numbers) :] = True  # padding
        codes.append(generator.run()[: len(numbers)])
    return torch.cat(codes)


def has_kernels(model: "MeshTransformer", dtype: torch.dtype) -> bool:
    """Whether `decoder` can generate: the head over digits on CUDA."""
    sizes = model.head.levels if isinstance(model.head, DigitHead) else (MAX_VALUES + 1,)
    supported = dtype in (torch.float32, torch.bfloat16, torch.float16)
    return model.start.is_cuda and HAS_TRITON and supported and max(sizes) <= MAX_VALUES
