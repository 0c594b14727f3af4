"""Exported graphs of a flow generator: captions, the velocity of a step and the decoder of latents,
with a program that generates by them without torch."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.nn.attention import Context
from quintet.shared.export.pieces import (
    PROGRAM,
    captions_of,
    check_captions,
    context_piece,
    program,
)
from quintet.shared.flow import driver
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
from quintet.shared.tokenizer.export import joined, pixels_of


def velocity(
    self: Any,
    x: Tensor,
    time: Tensor,
    end: Tensor,
    known: Tensor,
    context: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    captions = None if context is None or mask is None else Context(context, mask)
    return self.model.velocity(x, time, known, captions, end=end)


def decode(self: Any, latents: Tensor) -> Tensor:
    return pixels_of(self.model.tokenizer, self.model.restored(latents))


@torch.no_grad()
def flow_pieces(model: FlowGenerator, what: str, recipe: Any, **about: Any) -> Exportable:
    """Graphs for the grid of training, and the program beside them."""
    config = model.config
    check_captions(config)
    if config.takes_beside:
        raise RunError("a generator that enlarges has no graphs: export it as safetensors")
    shape = (config.latent_channels, *config.grid)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *shape, generator=generator)
    values: dict[str, tuple[Tensor, str]] = {
        "x": (
            x,
            f"(rows, {joined(shape)}) float32: normalised latents, those of the data where known",
        ),
        "time": (torch.tensor([0.1, 0.5, 0.9]), "(rows) float32 from 0 (noise) to 1 (data)"),
        "end": (
            torch.tensor([0.4, 0.5, 1.0]),
            "(rows) float32: the time that a step goes to; only a model of few steps reads it",
        ),
        "known": (
            torch.rand(3, 1, *config.grid, generator=generator) < 0.2,
            f"(rows, 1, {joined(config.grid)}) bool: latents that are given",
        ),
    }
    inputs = {n: Input(value[:2], value, text, ("rows",)) for n, (value, text) in values.items()}
    pieces: list[Piece] = []
    if captions_of(config):
        piece, more = context_piece(model)
        pieces, inputs = [piece], inputs | more
    latents = f"(batch, {joined(shape)}) float32: normalised"
    pieces += [
        Piece(
            "velocity",
            "velocity of a step",
            graph(model, velocity),
            inputs,
            {"velocity": f"(rows, {joined(shape)}) float32"},
        ),
        Piece(
            "decode",
            f"latents to {what}",
            graph(model, decode),
            {"latents": Input(x[:2], x, latents)},
            {"pixels": f"float32 in 0..1: {what}"},
        ),
    ]
    solver, own = Solver(), getattr(recipe, "generation", None)
    settings = {
        "count": 4 if about["fps"] else 8,
        "seed": 0,
        "steps": getattr(own, "sampling_steps", 4 if config.jumps else solver.steps),
        "method": getattr(own, "method", solver.method),
        "cond_scale": float(getattr(own, "cond_scale", solver.cond_scale)),
    }
    about |= {"key": model.key_name, "shape": shape, "shift": config.time_shift}
    about |= {"jumps": config.jumps, "captions": captions_of(config)}
    left_out = f"Sizes are those of training; known {what} are for programs of your own. {PROGRAM}"
    return Exportable(pieces, left_out, program(about, settings, driver))
