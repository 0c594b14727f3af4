"""Parallel generation of ids (MaskGIT, arXiv 2202.04200), without host synchronisation.

    all ids masked ─ repeat: predict all, fix some, mask the others again ─> all ids fixed

After step i of n a share cos(pi / 2 * i / n) of the ids is masked. Those to fix are the most likely
ones, with noise that falls to zero, or follow a Halton sequence (arXiv 2503.17076), which spreads
them evenly. Guidance rises linearly over the steps (Muse, arXiv 2301.00704).

Every draw is a function of the key of its sample, and the step is a tensor: on CUDA a step is one
captured graph of a fixed number of rows, so that a sample depends neither on its batch nor on its
place in it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from quintet.engine.keys import uniform
from quintet.nn.attention import Context
from quintet.shared.conditioning import pad_rows, with_null_text
from quintet.shared.generation.generator import CastWeights, rows_of
from quintet.shared.sampling import go_on
from quintet.shared.stepping import CapturedStep

if TYPE_CHECKING:
    from quintet.shared.maskgit.model import MaskedTransformer

KEY_STRIDE = 0x632BE59BD9B4E019
"""Odd, so that no two steps of a sample share a key."""
PRIMES = (2, 3, 5)
MASKED = -1


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How ids are generated."""

    steps: int = 12
    """Steps; in each, more of the ids are fixed."""
    order: Literal["confidence", "halton"] = "confidence"
    """Which ids are fixed first."""
    temperature: float = 0.7
    """Sampling temperature; 0 is greedy."""
    choice_temperature: float = 4.5
    """confidence: noise in the choice of ids, which falls to 0 in the last step."""
    cond_scale: float = 3.0
    """Classifier-free guidance scale (arXiv 2207.12598) of the last step, which rises from 1."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, not {self.steps}: try 8 to 64")
        if self.order not in ("confidence", "halton"):
            raise ValueError(f"order must be confidence or halton, not {self.order!r}")
        if not math.isfinite(self.cond_scale):
            raise ValueError(f"cond_scale must be finite, not {self.cond_scale}")
        for name in ("temperature", "choice_temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


def radical_inverse(number: int, base: int) -> float:
    """The digits of a number, mirrored at the point: 6 = 110 in base 2 is 0.011 = 3/8."""
    value, scale = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        value += digit * scale
        scale /= base
    return value


@lru_cache(maxsize=16)
def halton_ranks(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Place of each cell of a grid, in row-major order, in the Halton sequence."""
    ranks: dict[int, int] = {}
    number = 0
    while len(ranks) < math.prod(grid):
        number += 1
        cell = 0
        for size, base in zip(grid, PRIMES):
            cell = cell * size + int(radical_inverse(number, base) * size)
        ranks.setdefault(cell, len(ranks))
    return tuple(ranks[cell] for cell in range(len(ranks)))


def gumbel(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    return gumbel_of(uniform(keys, name, shape))


def gumbel_of(noise: Tensor) -> Tensor:
    """Of uniform noise."""
    return -torch.log(-torch.log(noise.clamp_min(2.0**-25)))


class Decoder:
    """Generates blocks of a fixed number of samples."""

    def __init__(
        self,
        model: "MaskedTransformer",
        decoding: Decoding,
        rows: int,
        context: Context | None,
    ) -> None:
        """`context` is that of a block, for its shape."""
        self.model, self.decoding = model, decoding
        config, device = model.config, model.weight.device
        self.guided = context is not None and decoding.cond_scale != 1.0
        self.context = context
        if self.guided and context is not None:
            self.context = with_null_text(context)
        self.ids = torch.zeros(rows, config.tokens, dtype=torch.int64, device=device)
        self.free = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.keys = torch.zeros(rows, dtype=torch.int64, device=device)
        self.done = torch.zeros((), dtype=torch.int64, device=device)
        ranks = torch.tensor(halton_ranks(config.grid), device=device, dtype=torch.float32)
        self.halton = (config.tokens - ranks).expand(rows, -1)
        self.step: Callable[[int], None] = self.take_step
        if device.type == "cuda":
            self.step = CapturedStep(self.take_step)

    def run(self, ids: Tensor, keys: Tensor, context: Context | None) -> Tensor:
        """The ids (rows, n), with the masked ones generated."""
        if self.context is not None and context is not None:
            context = with_null_text(context) if self.guided else context
            self.context.values.copy_(context.values)
            self.context.mask.copy_(context.mask)
        self.ids.copy_(ids)
        self.keys.copy_(keys)
        self.free.copy_((self.ids == MASKED).sum(1, keepdim=True))
        self.done.zero_()
        for _ in range(self.decoding.steps):
            go_on()
            self.step(0)
        return self.ids.clone()

    def take_step(self, _: int) -> None:
        decoding = self.decoding
        known = self.ids != MASKED
        done = (self.done + 1) / decoding.steps
        keys = self.keys + self.done * KEY_STRIDE
        ids, confidence = self.predict(keys)
        if decoding.order == "halton":
            confidence = self.halton
        elif decoding.choice_temperature:
            noise = gumbel(keys, "choice", tuple(ids.shape[1:]))
            confidence = confidence + decoding.choice_temperature * (1 - done) * noise
        confidence = confidence.masked_fill(known, math.inf)
        ranks = confidence.argsort(1).argsort(1)
        # At least one more id is fixed in each step, and all of them in the last.
        left = (torch.cos(done * (math.pi / 2)) * self.free).floor().long()
        left = left.minimum(self.free - self.done - 1).clamp_min(0)
        left = torch.where(done < 1, left, 0)
        chosen = torch.where(ranks < left, MASKED, ids)
        self.ids.copy_(torch.where(known, self.ids, chosen))
        self.done += 1

    def predict(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled ids (rows, n), and the logarithm of their probability."""
        decoding = self.decoding
        share = self.done / max(decoding.steps - 1, 1) if decoding.steps > 1 else 1.0
        scale = 1 + (decoding.cond_scale - 1) * share

        def guide(logits: Tensor) -> Tensor:
            if not self.guided:
                return logits
            cond, uncond = logits.chunk(2)
            return uncond + scale * (cond - uncond)

        both = lambda rows: rows.repeat(2, 1) if self.guided else rows
        draw = lambda logits, part: self.draw(logits, keys, part)
        return predict(self.model, self.ids, self.context, both, guide, draw)

    def draw(self, logits: Tensor, keys: Tensor, part: int) -> Tensor:
        """Sampled from the softmax, by the Gumbel-max trick."""
        temperature = self.decoding.temperature
        if temperature == 0:
            return logits.argmax(-1)
        noise = gumbel(keys, f"digit/{part}", tuple(logits.shape[1:]))
        return (logits / temperature + noise).argmax(-1)


def predict(
    model: "MaskedTransformer",
    ids: Tensor,
    context: Context | None,
    both: Callable[[Tensor], Tensor],
    guide: Callable[[Tensor], Tensor],
    draw: Callable[[Tensor, int], Tensor],
) -> tuple[Tensor, Tensor]:
    """Sampled ids (b, n), and the logarithm of their probability. `both` repeats samples for the
    rows of guidance, `guide` takes logits of rows to those of samples, and `draw` samples a
    digit."""
    hidden = model.hidden(both(ids), context)
    parts: list[Tensor] = []
    confidence = torch.zeros(ids.shape, device=ids.device)
    for part in range(model.head.parts):
        logits = guide(model.head.logits(0, part, hidden, hidden))
        token = draw(logits, part)
        log_prob = logits.log_softmax(-1).gather(-1, token[..., None])[..., 0]
        confidence = confidence + log_prob
        parts.append(token)
        hidden = model.head.condition(0, part, hidden, both(token))
    return model.head.join(parts), confidence


def decoder_of(
    model: "MaskedTransformer",
    decoding: Decoding,
    rows: int,
    context: Context | None,
    cache: CastWeights | None,
) -> Decoder:
    if cache is None:
        return Decoder(model, decoding, rows, context)
    shape = None if context is None else tuple(context.values.shape)
    return cache.kept((decoding, rows, shape), lambda: Decoder(model, decoding, rows, context))


def generate_ids(
    model: "MaskedTransformer",
    ids: Tensor,
    keys: Tensor,
    context: Context | None,
    decoding: Decoding,
    cache: CastWeights | None = None,
) -> Tensor:
    """Ids (b, n) with the masked ones (-1) generated, a block of samples at a time."""
    rows = rows_of(ids.shape[1], ids.device)
    decoder: Decoder | None = None
    blocks: list[Tensor] = []
    for numbers in torch.arange(len(ids), device=ids.device).split(rows):
        numbers = pad_rows(numbers, rows)
        part = None if context is None else Context(*(each[numbers] for each in context))
        decoder = decoder or decoder_of(model, decoding, rows, part, cache)
        blocks.append(decoder.run(ids[numbers], keys[numbers], part))
    return torch.cat(blocks)[: len(ids)] if blocks else ids
