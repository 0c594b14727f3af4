"""Parts of a model as graphs that run without Quintet: ONNX files, or programs of torch.export.

A room says in its export.py what can leave it. Every file is run against the model right after it
was written, at another size than it was traced with.
"""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from quintet.engine.errors import RunError

Format = Literal["onnx", "torch-export"]
SUFFIXES: Mapping[str, str] = {"onnx": ".onnx", "torch-export": ".pt2"}
TOLERANCE = 1e-4
"""By how much an export may differ from its model; times the largest value where that is over 1."""
LEAST_EQUAL = 0.99
"""Share of integers that must be equal: one on the edge between two codes may fall either way."""
LARGEST_FILE = 1_500_000_000
"""Bytes of weights in one ONNX file, whose format ends at 2 GiB; past it they lie beside it."""


class Input(NamedTuple):
    traced: Tensor
    """An example that the graph is traced with."""
    checked: Tensor
    """Another one, of another size along the free axes."""
    says: str
    """What it is, with its shape."""
    free: tuple[str, ...] = ("batch",)
    """Names of the leading axes that may have any size."""


class Piece(NamedTuple):
    """A network of its own, cut out of a model."""

    name: str
    says: str
    network: nn.Module
    """Takes the inputs in order, and returns a tensor, or a tuple of them."""
    inputs: Mapping[str, Input]
    outputs: Mapping[str, str]
    """What each output is, with its shape."""


class Exportable(NamedTuple):
    """What can leave a model."""

    pieces: Sequence[Piece]
    left_out: str
    """What stays behind, and why."""


class Checked(NamedTuple):
    """One file, and how it compares with the model."""

    piece: Piece
    file: str
    any_size: bool
    """Whether the free axes are free; some models fix them."""
    findings: tuple[str, ...]
    difference: float
    """The largest absolute difference over all outputs of floating numbers."""


def export(found: Exportable, folder: Path, form: Format) -> list[Checked]:
    """Write every piece into a folder and check it there."""
    need(form)
    return [export_piece(piece, folder, form) for piece in found.pieces]


def need(form: Format) -> None:
    """Refuse before the work, where something is not installed."""
    try:
        for name in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
            importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed; for ONNX: pip install 'quintet[onnx]'"
        ) from None


@torch.no_grad()
def export_piece(piece: Piece, folder: Path, form: Format) -> Checked:
    piece.network.eval().requires_grad_(False)
    with quiet():
        program, any_size = traced(piece)
        if not any_size:
            fixed = {name: given._replace(free=()) for name, given in piece.inputs.items()}
            piece = piece._replace(inputs=fixed)
        path = folder / f"{piece.name}{SUFFIXES[form]}"
        run = WRITERS[form](program, piece, path)
        given = [i.checked if any_size else i.traced.flip(0) for i in piece.inputs.values()]
        said, wanted = run(given), listed(piece.network(*given))
    findings = [compare(n, a, b) for n, a, b in zip(piece.outputs, said, wanted, strict=True)]
    wrong = [text for text, fits, _ in findings if not fits]
    if wrong:
        raise RunError(f"{path.name} does not do what the model does: {'; '.join(wrong)}")
    texts = tuple(text for text, _, _ in findings)
    return Checked(piece, path.name, any_size, texts, max(apart for _, _, apart in findings))


def traced(piece: Piece) -> tuple[Any, bool]:
    """The program, and whether its free axes are free."""
    from torch._dynamo.exc import UserError

    examples = tuple(given.traced for given in piece.inputs.values())
    axes = {name for given in piece.inputs.values() for name in given.free}
    sizes = {name: torch.export.Dim(name, min=1) for name in axes}
    shapes = tuple(
        {axis: sizes[name] for axis, name in enumerate(given.free)}
        for given in piece.inputs.values()
    )
    try:
        return torch.export.export(piece.network, examples, dynamic_shapes=shapes), True
    except UserError:  # the model's own code ties an axis to the size it was traced with
        return torch.export.export(piece.network, examples), False


Runner = Callable[[Sequence[Tensor]], list[Tensor]]


def write_onnx(program: Any, piece: Piece, path: Path) -> Runner:
    import onnxruntime

    axes = tuple(dict(enumerate(given.free)) for given in piece.inputs.values() if given.free)
    weights = sum(t.numel() * t.element_size() for t in piece.network.state_dict().values())
    torch.onnx.export(
        program,
        f=path,
        input_names=list(piece.inputs),
        output_names=list(piece.outputs),
        dynamic_shapes=axes or None,  # the program has them already; this gives them their names
        dynamo=True,
        external_data=weights > LARGEST_FILE,
        verbose=False,
    )
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        named = {name: value.numpy() for name, value in zip(piece.inputs, given, strict=True)}
        return [torch.from_numpy(found) for found in session.run(list(piece.outputs), named)]

    return run


def write_program(program: Any, piece: Piece, path: Path) -> Runner:
    torch.export.save(program, path)
    # It may unpickle, so this is the only file of its kind that is ever read: our own.
    again: Any = torch.export.load(path).module()
    return lambda given: listed(again(*given))


WRITERS: Mapping[str, Callable[[Any, Piece, Path], Runner]] = {
    "onnx": write_onnx,
    "torch-export": write_program,
}


def listed(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def compare(name: str, said: Tensor, wanted: Tensor) -> tuple[str, bool, float]:
    """In words, whether it will do, and the largest difference."""
    if said.shape != wanted.shape:
        return f"{name} has shape {tuple(said.shape)}, not {tuple(wanted.shape)}", False, 0.0
    if not wanted.is_floating_point():
        share = float((said == wanted).double().mean())
        return f"{name}: {share:.2%} equal", share >= LEAST_EQUAL, 0.0
    apart = float((said - wanted).abs().max())
    largest = float(wanted.abs().max())
    fits = apart <= TOLERANCE * max(1.0, largest)  # false for a NaN
    return f"{name}: {apart:.1e} apart at most, of {largest:.3g}", fits, apart


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """The exporters warn of their own changes to come, and of packages that nothing here uses."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
