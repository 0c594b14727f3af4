"""Writing a mesh face by face, with everything on the device.

One face is one step: the coarse decoder reads the face before, the end is decided, and the fine
decoder writes the codes. A step never asks the host anything: the position is a tensor, caches have
a fixed length, a mesh that has ended writes padding. So on CUDA a step is one captured graph, and
the host only looks every few faces whether all meshes have ended. Attention reads the first 64,
128, 256, ... places of the cache, whichever is enough, each with a graph of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quintet.engine.keys import fold, uniform
from quintet.nn.attention import Context, place

if TYPE_CHECKING:
    from quintet.mesh.transformer import MeshTransformer

LOOK_EVERY = 16
"""Faces between two looks of the host at whether all meshes have ended."""
SHORTEST = 64
"""The first length of cache that attention reads; each next one is twice as long."""
STRIDE = 0x632BE59BD9B4E019
"""Odd, so that no two draws of a row share a key."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How codes are drawn."""

    temperature: float = 1.0
    """Above 1 wilder, below 1 tamer, 0 always the likeliest."""
    top_k: int | None = None
    """Only the k likeliest codes (or steps of a digit) are drawn from."""
    top_p: float | None = None
    """Only the likeliest codes that hold this much probability together are drawn from."""
    cond_scale: float = 1.0
    """How far the caption is followed beyond what it asks for (arXiv 2207.12598); 1 is plain."""
    seed: int = 0
    """Every draw follows from this number, the row, the face and the code's place."""
    distinct: bool = True
    """A face's corners are never written with the same codes, so that every face has an area."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.cond_scale):
            raise ValueError(f"cond_scale must be a number, not {self.cond_scale}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


def keep_likeliest(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Logits (b, v) with -inf where top_k or top_p forbid; ties at the threshold stay."""
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p is not None and top_p < 1:
        ordered = logits.sort(dim=-1, descending=True).values
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        kept = (before < top_p).sum(-1, keepdim=True) - 1
        logits = logits.masked_fill(logits < ordered.gather(-1, kept), float("-inf"))
    return logits


def draw(logits: Tensor, sampling: Sampling, keys: Tensor) -> Tensor:
    """(b,) codes; by the largest of logits plus Gumbel noise, which is a draw from the softmax."""
    if sampling.greedy:
        return logits.argmax(-1)
    kept = keep_likeliest(logits / sampling.temperature, sampling.top_k, sampling.top_p)
    noise = uniform(keys, "code", (logits.shape[-1],))
    return (kept - torch.log(-torch.log(noise))).argmax(-1)


def bar_repetition(logits: Tensor, face: list[Tensor], corner: int) -> Tensor:
    """Before the last draw of a corner: not the one that would repeat an earlier corner.

    `face` holds what was drawn so far for this face, `corner` draws for each of its corners.
    """
    begin = len(face) // corner * corner
    if len(face) - begin != corner - 1:
        return logits
    for other in range(0, begin, corner):
        last = face[other + corner - 1]
        same = torch.ones_like(last, dtype=torch.bool)
        for a, b in zip(face[begin:], face[other:]):
            same = same & (a == b)
        barred = logits.scatter(1, last[:, None], float("-inf"))
        logits = torch.where(same[:, None], barred, logits)
    return logits


class FaceWriter:
    """The state of one batch of meshes being written."""

    def __init__(
        self,
        model: "MeshTransformer",
        table: Tensor,
        context: Context | None,
        count: int,
        longest: int,
        sampling: Sampling,
        prompt: Tensor | None = None,
    ) -> None:
        self.model, self.sampling, self.count, self.longest = model, sampling, count, longest
        self.config, self.device, dtype = model.config, model.start.device, model.start.dtype
        self.table = table
        if context is not None:
            context = Context(context.values.to(dtype), context.mask)
        self.guided = context is not None and sampling.cond_scale != 1.0
        self.rows = count * (2 if self.guided else 1)
        context = doubled(context) if self.guided and context is not None else context
        self.memories: list[Any] = [block.remember(context) for block in self.blocks(model.coarse)]
        room = -(-longest // SHORTEST) * SHORTEST
        self.caches = [b.attention.cache(self.rows, room) for b in self.blocks(model.coarse)]
        self.fine_caches = [
            b.attention.cache(self.rows, self.config.tokens) for b in self.blocks(model.fine)
        ]
        self.fine_places = [
            place(torch.tensor([t], device=self.device), self.config.tokens, None, self.device)
            for t in range(self.config.tokens)
        ]
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=self.device)
        seeds = [fold(sampling.seed, "mesh", row) for row in range(count)]
        self.keys = torch.tensor(seeds, dtype=torch.int64, device=self.device)
        self.codes = self.begin(prompt)

    @staticmethod
    def blocks(modules: Any) -> list[Any]:
        return list(modules)

    def begin(self, prompt: Tensor | None) -> Tensor:
        shape = (self.count, self.longest, self.config.tokens)
        codes = torch.full(shape, -1, dtype=torch.int64, device=self.device)
        if prompt is None:
            return codes
        if prompt.ndim != 3 or prompt.shape[0] != self.count or prompt.shape[2] != shape[2]:
            raise ValueError(
                f"expected a prompt ({self.count}, faces, {shape[2]}), not {tuple(prompt.shape)}"
            )
        length = min(prompt.shape[1], self.longest)
        codes[:, :length] = prompt[:, :length].to(self.device)
        return codes

    def run(self) -> Tensor:
        step: Callable[[int], None] = self.step
        if self.device.type == "cuda":
            step = Captured(self.step)
        for face in range(self.longest):
            step(self.reach(face))
            if face % LOOK_EVERY == LOOK_EVERY - 1 and bool(self.ended.all()):
                break
        return self.codes

    def reach(self, face: int) -> int:
        """How much of the cache attention has to read for this face."""
        length = SHORTEST
        while length <= face:
            length *= 2
        return min(length, self.caches[0].keys.shape[2])

    def step(self, length: int) -> None:
        """Write the next face of every mesh."""
        given = self.codes.index_select(1, self.position)[:, 0]
        forced = given[:, 0] >= 0
        coarse = self.read_face(length)
        self.ended |= self.decide_end(coarse) & ~forced & (self.position > 0)
        face = self.write_face(coarse, given, forced)
        face = face.masked_fill(self.ended[:, None], -1)
        self.codes.index_copy_(1, self.position, face[:, None])
        self.position += 1

    def read_face(self, length: int) -> Tensor:
        """The coarse state (rows, d) after all faces so far."""
        model = self.model
        before = self.codes.index_select(1, (self.position - 1).clamp_min(0))[:, 0]
        vector = model.to_face(model.embed(before, self.table).flatten(1))
        x = torch.where(self.position == 0, model.start, vector)
        x = self.for_both(x)[:, None]
        at = place(self.position, length, self.config.head_dim, self.device)
        for block, cache, memory in zip(self.blocks(model.coarse), self.caches, self.memories):
            x = block.step(x, at, cache, memory)
        return model.coarse_norm(x)[:, 0]

    def decide_end(self, coarse: Tensor) -> Tensor:
        logit = self.guide(self.model.end_logits(coarse))
        if self.sampling.greedy:
            return logit > 0
        chance = torch.sigmoid(logit / self.sampling.temperature)
        return uniform(self.keys_of(0), "end", (1,))[:, 0] < chance

    def write_face(self, coarse: Tensor, given: Tensor, forced: Tensor) -> Tensor:
        """The codes (b, t) of one face; those of a prompt are taken as they are."""
        head = self.model.head
        written: list[Tensor] = []
        drawn: list[Tensor] = []
        for slot, at in enumerate(self.fine_places):
            x = coarse + self.model.slots[slot]
            if slot:
                x = x + self.for_both(self.model.to_token(self.vector(written[-1], slot - 1)))
            parts = self.write_code(self.fine_state(x, at), slot, drawn)
            code = torch.where(forced, given[:, slot].clamp_min(0), head.join(parts))
            drawn += head.split(code)
            written.append(code)
        return torch.stack(written, dim=1)

    def write_code(self, state: Tensor, slot: int, face: list[Tensor]) -> list[Tensor]:
        """The parts of one code; `face` holds those of the codes before it."""
        head, level, parts = self.model.head, slot % self.config.depth, list[Tensor]()
        for part in range(head.parts):
            logits = self.guide(head.logits(level, part, state, self.table))
            if self.sampling.distinct:
                logits = bar_repetition(logits, face + parts, self.config.depth * head.parts)
            parts.append(draw(logits, self.sampling, self.keys_of(slot * head.parts + part)))
            state = head.hear(level, part, state, self.for_both(parts[-1]))
        return parts

    def fine_state(self, x: Tensor, at: Any) -> Tensor:
        x = x[:, None]
        for block, cache in zip(self.blocks(self.model.fine), self.fine_caches):
            x = block.step(x, at, cache)
        return self.model.fine_norm(x)[:, 0]

    def vector(self, codes: Tensor, slot: int) -> Tensor:
        rows = self.table[slot % self.config.depth].index_select(0, codes)
        return torch.nn.functional.rms_norm(rows, (self.config.dim,))

    def keys_of(self, draw: int) -> Tensor:
        """A key for each row, by the face and the number of the draw in it."""
        draws = self.config.tokens * self.model.head.parts
        return self.keys + (self.position * draws + draw) * STRIDE

    def for_both(self, rows: Tensor) -> Tensor:
        """The same rows for the pass with the caption and for the one without."""
        return torch.cat((rows, rows)) if self.guided else rows

    def guide(self, logits: Tensor) -> Tensor:
        """Away from what would be written without the caption (arXiv 2207.12598)."""
        if not self.guided:
            return logits
        with_text, without = logits.chunk(2)
        return without + self.sampling.cond_scale * (with_text - without)


def doubled(context: Context) -> Context:
    """The batch twice: with its captions, and with only the learned vector in their place."""
    nothing = context.mask.clone()
    nothing[:, 1:] = False
    return Context(context.values.repeat(2, 1, 1), torch.cat((context.mask, nothing)))


class Captured:
    """Runs a step as a CUDA graph, one for each length of cache.

    The first face of a length is written without one: it loads the kernels that the graph records.
    """

    def __init__(self, step: Callable[[int], None]) -> None:
        self.step = step
        self.seen: set[int] = set()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, length: int) -> None:
        if length not in self.seen:
            self.seen.add(length)
            self.step(length)
            return
        if length not in self.graphs:
            self.graphs[length] = self.record(length)
        self.graphs[length].replay()

    def record(self, length: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        # Only this thread is held to what a capture allows: a loader's may pin memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self.step(length)
        return graph
