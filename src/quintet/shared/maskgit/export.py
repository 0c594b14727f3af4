"""Exported graphs of a masked generator: captions, the prediction of a step and the decoder of ids,
with a program that generates by them without torch."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.nn.attention import Context
from quintet.shared.export.pieces import (
    PROGRAM,
    captions_of,
    check_captions,
    context_piece,
    program,
    row_inputs,
)
from quintet.shared.maskgit import driver
from quintet.shared.maskgit.config import DecodingConfig
from quintet.shared.maskgit.decoding import Decoding, gumbel_of, halton_ranks, predict
from quintet.shared.maskgit.generator import MaskedGenerator
from quintet.shared.tokenizer.export import joined, pixels_of


def step(
    self: Any,
    ids: Tensor,
    noise: Tensor,
    temperature: Tensor,
    scale: Tensor,
    rows: Tensor,
    uncond: Tensor,
    context: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    model = self.model
    captions = None if context is None or mask is None else Context(context, mask)
    gumbel = gumbel_of(noise).split(model.head.levels, -1)

    def guide(logits: Tensor) -> Tensor:
        cond = logits.index_select(0, torch.arange(ids.shape[0]))
        without = logits.index_select(0, uncond)
        return without + scale * (cond - without)

    both = lambda samples: samples.index_select(0, rows)
    draw = lambda logits, part: (logits + temperature * gumbel[part]).argmax(-1)
    return predict(model, ids, captions, both, guide, draw)


def decode(self: Any, ids: Tensor) -> Tensor:
    return pixels_of(self.model.tokenizer, ids.unflatten(1, self.model.config.grid))


@torch.no_grad()
def masked_pieces(model: MaskedGenerator, what: str, recipe: Any, **about: Any) -> Exportable:
    """Graphs for the grid of training, and the program beside them."""
    config = model.config
    check_captions(config)
    generator = torch.Generator().manual_seed(0)
    size, digits = config.tokens, model.head.levels
    ids = torch.randint(config.codebook_size, (3, size), generator=generator)
    masked = torch.where(torch.rand(3, size, generator=generator) < 0.5, -1, ids)
    noise = torch.rand(3, size, sum(digits), generator=generator)
    shape = f"{size}, {sum(digits)}"
    ids_text = f"(batch, {size}) int64: ids of the grid {joined(config.grid)}"
    inputs = {
        "ids": Input(masked[:2], masked, f"{ids_text}, -1 where masked"),
        "noise": Input(
            noise[:2],
            noise,
            f"(batch, {shape}) float32 in 0..1, uniform: for digits of bases {joined(digits)}",
        ),
        **row_inputs(),
    }
    pieces: list[Piece] = []
    if captions_of(config):
        piece, more = context_piece(model, 2)
        pieces, inputs = [piece], inputs | more
    pieces += [
        Piece(
            "predict",
            "prediction of a step",
            graph(model, step),
            inputs,
            {"drawn": ids_text, "confidence": f"(batch, {size}) float32: their log-probabilities"},
        ),
        Piece(
            "decode",
            f"ids to {what}",
            graph(model, decode),
            {"ids": Input(ids[:2], ids, ids_text)},
            {"pixels": f"float32 in 0..1: {what}"},
        ),
    ]
    about |= {"key": model.key_name, "grid": config.grid, "digits": digits}
    about |= {"halton": halton_ranks(config.grid), "captions": captions_of(config)}
    left_out = f"Sizes are those of training. {PROGRAM}"
    return Exportable(pieces, left_out, program(about, settings_of(recipe, about["fps"]), driver))


def settings_of(recipe: Any, fps: int) -> dict[str, Any]:
    """Flags of `quintet sample`, with the defaults of a run."""
    own: DecodingConfig | Decoding = getattr(recipe, "generation", None) or Decoding()
    steps = own.steps if isinstance(own, Decoding) else own.sampling_steps
    floats = ("temperature", "choice_temperature", "cond_scale")
    return {
        "count": 4 if fps else 8,
        "seed": 0,
        "steps": steps,
        "order": own.order,
        **{name: float(getattr(own, name)) for name in floats},
    }
