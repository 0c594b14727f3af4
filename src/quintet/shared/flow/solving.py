"""Generation by solving the flow in few steps, without host synchronisation.

    noise ─ repeat: velocity under guidance, one step ─> latents

On CUDA a step is one captured graph of a fixed number of rows, so that a sample depends neither on
its batch nor on its place in it. Known latents stay as they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from quintet.nn.attention import Context
from quintet.nn.flow import euler_step, midpoint_step
from quintet.shared.conditioning import pad_rows, with_null_text
from quintet.shared.flow.model import FlowTransformer, shifted
from quintet.shared.generation.generator import CastWeights, rows_of
from quintet.shared.sampling import go_on
from quintet.shared.stepping import CapturedStep


@dataclass(frozen=True, kw_only=True)
class Solver:
    """How latents are generated."""

    steps: int = 25
    """Steps from noise to data; a model of few steps takes 1 to 8."""
    method: Literal["euler", "midpoint"] = "euler"
    """midpoint evaluates the network twice per step."""
    cond_scale: float = 2.5
    """Classifier-free guidance scale (arXiv 2207.12598); 1 disables guidance."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, not {self.steps}: try 10 to 50")
        if self.method not in ("euler", "midpoint"):
            raise ValueError(f"method must be euler or midpoint, not {self.method!r}")
        if not math.isfinite(self.cond_scale):
            raise ValueError(f"cond_scale must be finite, not {self.cond_scale}")


class Start(NamedTuple):
    """Where generation begins."""

    latents: Tensor
    """(b, c, *grid), normalised: those of the data where known, elsewhere as they are at `time`."""
    known: Tensor
    """(b, 1, *grid) booleans."""
    time: float = 0.0
    beside: Tensor | None = None
    """(b, c, *grid), normalised: latents of a condition."""

    def rows(self, numbers: Tensor) -> "Start":
        """That of some of the samples."""
        beside = None if self.beside is None else self.beside[numbers]
        return Start(self.latents[numbers], self.known[numbers], self.time, beside)


class Sampler:
    """Solves the flow for blocks of a fixed number of samples."""

    def __init__(
        self, model: FlowTransformer, solver: Solver, start: Start, context: Context | None
    ) -> None:
        """`start` and `context` are those of a block, for their shapes."""
        self.model, self.solver = model, solver
        self.guided = context is not None and solver.cond_scale != 1.0
        self.context = with_null_text(context) if self.guided and context is not None else context
        self.latents, self.known = torch.zeros_like(start.latents), torch.zeros_like(start.known)
        self.beside = None if start.beside is None else torch.zeros_like(start.beside)
        self.times = torch.zeros(solver.steps + 1, device=start.latents.device)
        self.done = torch.zeros(1, dtype=torch.int64, device=start.latents.device)
        self.step: Callable[[int], None] = self.take_step
        if start.latents.is_cuda:
            self.step = CapturedStep(self.take_step)

    def run(self, start: Start, context: Context | None) -> Tensor:
        """The latents at time 1."""
        if self.context is not None and context is not None:
            context = with_null_text(context) if self.guided else context
            self.context.values.copy_(context.values)
            self.context.mask.copy_(context.mask)
        self.latents.copy_(start.latents)
        self.known.copy_(start.known)
        if self.beside is not None and start.beside is not None:
            self.beside.copy_(start.beside)
        times = times_of(self.solver.steps, self.model.config.time_shift, start.time)
        self.times.copy_(times, non_blocking=True)  # else it would wait for the block before
        self.done.zero_()
        for _ in range(self.solver.steps):
            go_on()
            self.step(0)
        return self.latents.clone()

    def take_step(self, _: int) -> None:
        begin, end = self.times[self.done][0], self.times[self.done + 1][0]
        step = euler_step if self.solver.method == "euler" else midpoint_step
        field = lambda x, time: self.velocity(x, time, end)
        ahead = step(field, self.latents, begin, end)
        self.latents.copy_(torch.where(self.known, self.latents, ahead))
        self.done += 1

    def velocity(self, x: Tensor, time: Tensor, end: Tensor) -> Tensor:
        ends = end.expand(len(x))
        dtype = self.model.weight.dtype
        arguments: list[Any] = [x, time, self.known, ends, self.beside]
        if self.guided:
            arguments = [None if each is None else torch.cat((each, each)) for each in arguments]
        x, time, known, ends, beside = arguments
        out = self.model.velocity(x.to(dtype), time, known, self.context, end=ends, beside=beside)
        if not self.guided:
            return out
        velocity, without = out.chunk(2)
        return without + self.solver.cond_scale * (velocity - without)


def times_of(steps: int, shift: float, first: float = 0.0) -> Tensor:
    """The times of a solver's steps from `first` to 1, those of a training with this shift."""
    share = first * shift / (first * shift + 1 - first)  # `shifted` of it is `first`
    return shifted(torch.linspace(share, 1, steps + 1, dtype=torch.float64), shift).float()


def solve(
    model: FlowTransformer,
    start: Start,
    context: Context | None,
    solver: Solver,
    cache: CastWeights | None = None,
) -> Tensor:
    """Latents (b, c, *grid) at time 1, a block of samples at a time."""
    count, device = len(start.latents), start.latents.device
    rows = rows_of(math.prod(start.latents.shape[2:]) // model.config.cells, device)
    sampler: Sampler | None = None
    blocks: list[Tensor] = []
    for numbers in torch.arange(count, device=device).split(rows):
        numbers = pad_rows(numbers, rows)
        block = start.rows(numbers)
        part = None if context is None else Context(*(each[numbers] for each in context))
        sampler = sampler or sampler_of(model, solver, block, part, cache)
        blocks.append(sampler.run(block, part))
    return torch.cat(blocks)[:count] if blocks else start.latents


def sampler_of(
    model: FlowTransformer,
    solver: Solver,
    start: Start,
    context: Context | None,
    cache: CastWeights | None,
) -> Sampler:
    build = lambda: Sampler(model, solver, start, context)
    if cache is None:
        return build()
    shape = None if context is None else tuple(context.values.shape)
    return cache.kept((solver, tuple(start.latents.shape), shape), build)
