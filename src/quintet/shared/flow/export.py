"""Exported graphs of a flow generator: the velocity of a step and the decoder of its latents, with
a program that generates by them without torch."""

import json
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.nn.text import TOKENIZERS
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
from quintet.shared.tokenizer.export import joined


def velocity(
    self: Any,
    x: Tensor,
    time: Tensor,
    known: Tensor,
    text: Tensor,
    captioned: Tensor,
    end: Tensor,
) -> Tensor:
    return self.model(x, time, known, text, None, ~captioned, None, end)


def velocity_of_captions(
    self: Any, x: Tensor, time: Tensor, known: Tensor, text: Tensor, captioned: Tensor
) -> Tensor:
    return self.model(x, time, known, text, None, ~captioned)


def velocity_to(self: Any, x: Tensor, time: Tensor, known: Tensor, end: Tensor) -> Tensor:
    return self.model(x, time, known, end=end)


def velocity_alone(self: Any, x: Tensor, time: Tensor, known: Tensor) -> Tensor:
    return self.model(x, time, known)


FORWARD = {
    (True, True): velocity,
    (True, False): velocity_of_captions,
    (False, True): velocity_to,
    (False, False): velocity_alone,
}
"""By whether there are captions, and jumps."""


def decode(self: Any, latents: Tensor) -> Tensor:
    tokenizer, restored = self.model.tokenizer, self.model.restored(latents)
    return tokenizer.decode(tokenizer.quantiser.codes_to_values(restored)).clamp(0, 1)


def flow_pieces(model: FlowGenerator, what: str, generation: Any) -> Exportable:
    """Graphs for the grid of training, and the program beside them."""
    config = model.config
    if config.text == "frozen":
        raise RunError(
            "a generator with a frozen text encoder has no graphs: export it as safetensors"
        )
    if config.has_beside:
        raise RunError("a generator that enlarges has no graphs: export it as safetensors")
    captioned = config.text in TOKENIZERS
    grid, shape = joined(config.grid), (config.latent_channels, *config.grid)
    generator = torch.Generator().manual_seed(0)
    values: dict[str, tuple[Tensor, str]] = {
        "x": (
            torch.randn(3, *shape, generator=generator),
            f"(batch, {joined(shape)}) float32: normalised latents, those of the data where known",
        ),
        "time": (torch.tensor([0.1, 0.5, 0.9]), "(batch) float32 from 0 (noise) to 1 (data)"),
        "known": (
            torch.rand(3, 1, *config.grid, generator=generator) < 0.2,
            f"(batch, 1, {grid}) bool: latents that are given",
        ),
    }
    if captioned:
        texts = ["a red star on white", "two rings", "green"]
        length = config.text_length
        values["text"] = (
            model.tokenize_captions(texts)[0],
            f"(batch, {length}) int64: ids of the caption ({config.text})",
        )
        values["captioned"] = (
            torch.tensor([True, False, True]),
            "(batch) bool: false leaves the caption out, for guidance",
        )
    if config.jumps:
        values["end"] = (
            torch.tensor([0.4, 0.5, 1.0]),
            "(batch) float32: the time that the step goes to",
        )
    inputs = {n: Input(value[:2], value, text) for n, (value, text) in values.items()}
    step = Piece(
        "velocity",
        "velocity of a step",
        graph(model, FORWARD[captioned, config.jumps]),
        inputs,
        {"velocity": f"(batch, {joined(shape)}) float32"},
    )
    latents = values["x"][0]
    pixels = Piece(
        "decode",
        f"latents to {what}",
        graph(model, decode),
        {"latents": Input(latents[:2], latents, f"(batch, {joined(shape)}) float32: normalised")},
        {"pixels": f"float32 in 0..1: {what}"},
    )
    left_out = (
        f"Sizes are those of training. With the ONNX graphs, generate.py makes {what} from captions"
        " and needs numpy, onnxruntime and Pillow alone; its settings are in generate.json."
    )
    return Exportable([step, pixels], left_out, program(model, generation))


def program(model: FlowGenerator, generation: Any) -> dict[str, str]:
    """The files of the program, by name."""
    config, solver = model.config, Solver()
    named = ("grid", "latent_channels", "jumps", "text", "text_length", "text_words")
    about = {name: getattr(config, name) for name in named}
    about["shift"] = config.time_shift
    about["steps"] = getattr(generation, "sampling_steps", 4 if config.jumps else solver.steps)
    about["cond_scale"] = getattr(generation, "cond_scale", solver.cond_scale)
    source = files(__package__ or "").joinpath("driver.py").read_text(encoding="utf-8")
    return {"generate.py": source, "generate.json": json.dumps(about, indent=2) + "\n"}
