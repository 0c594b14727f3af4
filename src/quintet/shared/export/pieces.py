"""Whole exports: the graphs of a generator, and a program that generates with them without torch.

A family brings its graphs and a module with their loop; `run.py` is the rest of the program.
"""

import inspect
import json
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.models.export import Input, Piece, graph
from quintet.nn.text import TOKENIZERS
from quintet.shared.export import run

NAMED = re.compile(r"^(\s*from )quintet\.(?:\w+\.)*(\w+)(?= import)", re.M)
PROGRAM = (
    "With the ONNX graphs, run.py generates what the model does and needs numpy and onnxruntime"
    " alone (run.py --help); its settings are in export.json."
)
ROWS = ("rows",)
TEXTS = ("a red star on white", "two rings", "green")
"""Examples of captions."""


def program(
    about: Mapping[str, Any], settings: Mapping[str, Any], *modules: ModuleType
) -> dict[str, str]:
    """Files of the program by name. `settings` are flags with their defaults, or types of those
    that have none; `modules` go along, and find each other there by the last part of their name."""
    flags = {
        name: [value.__name__, None] if isinstance(value, type) else [type(value).__name__, value]
        for name, value in settings.items()
    }
    files = {
        f"{module.__name__.rpartition('.')[2]}.py": NAMED.sub(r"\1\2", inspect.getsource(module))
        for module in (run, *modules)
    }
    return {**files, "export.json": json.dumps({**about, "settings": flags}, indent=1) + "\n"}


def encode(self: Any, text: Tensor) -> tuple[Tensor, Tensor]:
    return self.model.encode_text(text.shape[0], text)


def check_captions(config: Any) -> None:
    if config.text == "frozen":
        raise RunError(
            "a generator with a frozen text encoder has no graphs: export it as safetensors"
        )


def captions_of(config: Any) -> dict[str, Any] | None:
    """What the program has to know of captions."""
    if config.text not in TOKENIZERS:
        return None
    return {"kind": config.text, "length": config.text_length, "words": config.text_words}


def text_input(model: Any) -> Input:
    text = model.tokenize_captions(TEXTS)[0]
    about = f"(batch, {text.shape[1]}) int64: ids of captions ({model.config.text})"
    return Input(text[:2], text, about)


def context_piece(model: Any, copies: int = 1) -> tuple[Piece, dict[str, Input]]:
    """The text encoder, and what it gives as inputs of another graph, so many times."""
    text = text_input(model)
    context, mask = model.encode_text(len(TEXTS), text.checked)
    mask[-1, 1:] = False
    shape = f"{context.shape[1]}, {context.shape[2]}"
    described = {
        "context": f"(rows, {shape}) float32: captions",
        "mask": f"(rows, {context.shape[1]}) bool: the first alone is true where the caption is"
        " left out",
    }
    piece = Piece("context", "captions", graph(model, encode), {"text": text}, described)
    values = {"context": context, "mask": mask}
    rows = {name: torch.cat([value] * copies) for name, value in values.items()}
    few = {name: torch.cat([value[:2]] * copies) for name, value in values.items()}
    inputs = {name: Input(few[name], rows[name], text, ROWS) for name, text in described.items()}
    return piece, inputs


def row_inputs() -> dict[str, Input]:
    """Guidance inside of a graph: without it, a row for each sample; under it, two."""
    few, more = torch.arange(2), torch.arange(3)
    return {
        "temperature": Input(torch.tensor([0.5]), torch.tensor([0.9]), "(1) float32", ()),
        "scale": Input(torch.tensor([1.0]), torch.tensor([2.5]), "(1) float32: guidance", ()),
        "rows": Input(few.repeat(2), more.repeat(2), "(rows) int64: the sample of each row", ROWS),
        "uncond": Input(few + 2, more + 3, "(batch) int64: the row of each without a caption"),
    }
