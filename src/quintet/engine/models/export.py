"""Export of parts of a model as graphs that run without Quintet: ONNX, or torch.export programs.

export.py of a room lists the parts. Every file is compared with the model after writing, on inputs
of another size than the traced ones.
"""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from quintet.engine import skipped
from quintet.engine.errors import RunError
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from quintet.suggest import command

Format = Literal["onnx", "torch-export"]
SUFFIXES: Mapping[str, str] = {"onnx": ".onnx", "torch-export": ".pt2"}
TOLERANCE = 1e-4
"""Maximum difference from the model; times the largest value if that is above 1."""
MIN_EQUAL = 0.99
"""Fraction of integers that must be equal: a latent between two codes may round either way."""
MAX_FILE_BYTES = 1_500_000_000
"""Bytes of weights in one ONNX file, limited to 2 GiB by the format; larger ones are external."""


class Input(NamedTuple):
    traced: Tensor
    """The example for tracing."""
    checked: Tensor
    """Another example, of another size along the dynamic axes."""
    description: str
    """Content and shape."""
    dynamic: tuple[str, ...] = ("batch",)
    """Names of the leading axes of any size."""


class Piece(NamedTuple):
    """A part of a model that is exported as one graph."""

    name: str
    description: str
    network: nn.Module
    """Takes the inputs in order; returns a tensor or a tuple of tensors."""
    inputs: Mapping[str, Input]
    outputs: Mapping[str, str]
    """Content and shape of each output."""


class Exportable(NamedTuple):
    """The exportable parts of a model."""

    pieces: Sequence[Piece]
    left_out: str
    """What is not exported, and why."""
    files: Mapping[str, str] = {}
    """Text files beside ONNX graphs, such as a program that runs them, by name."""


class Checked(NamedTuple):
    """An exported file, compared with the model."""

    piece: Piece
    file: str
    any_size: bool
    """Whether the dynamic axes are dynamic; some models fix them."""
    findings: tuple[str, ...]
    """The difference of each output."""


def export(exportable: Exportable, folder: Path, form: Format) -> list[Checked]:
    """Write and check every piece."""
    try:
        for name in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
            importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed; for ONNX: pip install 'quintet[onnx]'"
        ) from None
    return [export_piece(piece, folder, form) for piece in exportable.pieces]


def require_usable(run: Path, out: Path) -> None:
    """Refuse weights that are not finite, and those of a part that was hardly trained."""
    folder = RunFolder.open(run)
    step, main = folder.chosen_step(lambda _: None), folder.about.get("main", {}).get("part")
    path_of = partial(checkpoint.path_of, folder.checkpoints)
    causes = _flaws(path_of(step), main)
    if causes:
        usable = (s for s in reversed(folder.steps()) if s != step and not _flaws(path_of(s), main))
        remedy = "no other checkpoint is better"
        if (newest := next(usable, None)) is not None:
            remedy = f"an intact one: {command('export', folder.path, out, '--step', newest)}"
        raise RunError(
            f"{folder.path} cannot be exported at step {step}: {'; '.join(causes)}; {remedy}. "
            f"Before the next run, {skipped.REMEDY}"
        )


def _flaws(path: Path, part: str) -> list[str]:
    """Why the weights of a part in a checkpoint are of no use."""
    try:
        weights = checkpoint.averaged(checkpoint.read(path, part), part)
        counts = skipped.read(checkpoint.read_about(path))
    except (RunError, OSError, ValueError, KeyError) as error:
        return [f"it is damaged ({error})"]
    causes = skipped.problems({name: count for name, count in counts.items() if name == part})
    bad = [n for n, t in weights.items() if t.is_floating_point() and not t.isfinite().all()]
    if bad:
        causes.append(f"not finite: {len(bad)} of {len(weights)} tensors, {bad[0]} is the first")
    return causes


@torch.no_grad()
def export_piece(piece: Piece, folder: Path, form: Format) -> Checked:
    piece.network.eval().requires_grad_(False)
    with quiet():
        program, any_size = traced(piece)
        if not any_size:
            fixed = {name: each._replace(dynamic=()) for name, each in piece.inputs.items()}
            piece = piece._replace(inputs=fixed)
        path = folder / f"{piece.name}{SUFFIXES[form]}"
        run = WRITERS[form](program, piece, path)
        inputs = [i.checked if any_size else i.traced.flip(0) for i in piece.inputs.values()]
        outputs, expected = run(inputs), as_list(piece.network(*inputs))
    compared = [compare(n, a, b) for n, a, b in zip(piece.outputs, outputs, expected, strict=True)]
    wrong = [text for text, equal in compared if not equal]
    if wrong:
        raise RunError(f"{path.name} differs from the model: {'; '.join(wrong)}")
    return Checked(piece, path.name, any_size, tuple(text for text, _ in compared))


def traced(piece: Piece) -> tuple[Any, bool]:
    """The program, and whether its dynamic axes are dynamic."""
    from torch._dynamo.exc import UserError

    inputs = piece.inputs.values()
    examples = tuple(each.traced for each in inputs)
    axes = {name for each in inputs for name in each.dynamic}
    sizes = {name: torch.export.Dim(name, min=1) for name in axes}
    shapes = tuple({i: sizes[name] for i, name in enumerate(each.dynamic)} for each in inputs)
    try:
        return torch.export.export(piece.network, examples, dynamic_shapes=shapes), True
    except UserError:  # code of the model fixes an axis at its traced size
        return torch.export.export(piece.network, examples), False


Runner = Callable[[Sequence[Tensor]], list[Tensor]]


def write_onnx(program: Any, piece: Piece, path: Path) -> Runner:
    import onnxruntime

    axes = tuple(dict(enumerate(i.dynamic)) for i in piece.inputs.values() if i.dynamic)
    weights = sum(t.numel() * t.element_size() for t in piece.network.state_dict().values())
    torch.onnx.export(
        program,
        f=path,
        input_names=list(piece.inputs),
        output_names=list(piece.outputs),
        dynamic_shapes=axes or None,  # only their names; the program has the axes
        dynamo=True,
        external_data=weights > MAX_FILE_BYTES,
        verbose=False,
    )
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        named = {name: value.numpy() for name, value in zip(piece.inputs, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(list(piece.outputs), named)]

    return run


def write_program(program: Any, piece: Piece, path: Path) -> Runner:
    torch.export.save(program, path)
    # Loading may unpickle: only this file, just written, is ever read.
    loaded: Any = torch.export.load(path).module()
    return lambda inputs: as_list(loaded(*inputs))


WRITERS: Mapping[str, Callable[[Any, Piece, Path], Runner]] = {
    "onnx": write_onnx,
    "torch-export": write_program,
}


def as_list(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def compare(name: str, output: Tensor, expected: Tensor) -> tuple[str, bool]:
    """The difference as text, and whether it is within the tolerance."""
    if output.shape != expected.shape:
        return f"{name} has shape {tuple(output.shape)}, not {tuple(expected.shape)}", False
    if not expected.is_floating_point():
        share = float((output == expected).double().mean())
        return f"{name}: {share:.2%} equal", share >= MIN_EQUAL
    difference = float((output - expected).abs().max())
    largest = float(expected.abs().max())
    equal = difference <= TOLERANCE * max(1.0, largest)  # false for NaN
    return f"{name}: largest difference {difference:.1e}, largest value {largest:.3g}", equal


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Without the exporters' warnings about deprecations and unused packages."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def graph(model: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """A module with the signature of `forward(self, ...)`, which finds the model as self.model."""
    module = type("Graph", (nn.Module,), {"forward": forward})()
    module.model = model
    return module
