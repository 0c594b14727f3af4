"""README.md of an export to ONNX or torch.export: what goes in and out, and how to run it."""

from collections.abc import Sequence
from pathlib import Path

from quintet.engine.exporting import Checked, Exportable, Format, Piece
from quintet.report.card import plain

ONNX = """\
import numpy, onnxruntime

session = onnxruntime.InferenceSession("{file}")
given = {{
{given}
}}
{outputs} = session.run(None, given)"""
PROGRAM = """\
import torch

program = torch.export.load("{file}").module()  # may run code: only for files that you trust
given = [
{given}
]
{outputs} = program(*given)"""


def graphs_page(run: Path, model: object, found: Exportable, files: Sequence[Checked]) -> str:
    form: Format = "onnx" if files[0].file.endswith(".onnx") else "torch-export"
    parts = [
        f"# {type(model).__name__} of {plain(run.resolve().name)}, as {form}",
        "Parts of the model as graphs that run without Quintet, each compared with the model when"
        f" it was written. {found.left_out}",
    ]
    for checked in files:
        parts += describe(checked, form)
    return "\n\n".join(parts) + "\n"


def describe(checked: Checked, form: Format) -> list[str]:
    piece = checked.piece
    axes = list(dict.fromkeys(name for given in piece.inputs.values() for name in given.free))
    sizes = {name: given.traced.shape for name, given in piece.inputs.items()}
    fixed = ", ".join(f"{name} {tuple(shape)}" for name, shape in sizes.items())
    size = f"{' and '.join(axes)} of any size" if checked.any_size else f"sizes fixed at {fixed}"
    rows = [f"| in | {name} | {given.says} |" for name, given in piece.inputs.items()]
    rows += [f"| out | {name} | {says} |" for name, says in piece.outputs.items()]
    return [
        f"## {checked.file}: {piece.says}",
        "\n".join(["| | name | what |", "|---|---|---|", *rows]),
        f"With {size}. Against the model: {'; '.join(checked.findings)}.",
        f"```python\n{usage(piece, checked.file, form)}\n```",
    ]


def usage(piece: Piece, file: str, form: Format) -> str:
    """Code that runs as it stands, on zeros."""
    library = "numpy" if form == "onnx" else "torch"
    lines: list[str] = []
    for name, given in piece.inputs.items():
        kind = f"{library}.{str(given.traced.dtype).removeprefix('torch.')}"
        kind = kind.replace("numpy.bool", "numpy.bool_")  # as every numpy spells it
        zeros = f"{library}.zeros({tuple(given.traced.shape)}, dtype={kind})"
        lines.append(f'    "{name}": {zeros},' if form == "onnx" else f"    {zeros},  # {name}")
    outputs = ", ".join(piece.outputs) + ("," if form == "onnx" and len(piece.outputs) == 1 else "")
    pattern = ONNX if form == "onnx" else PROGRAM
    return pattern.format(file=file, given="\n".join(lines), outputs=outputs)
