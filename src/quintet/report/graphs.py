"""README.md of an ONNX or torch.export export: inputs, outputs and example code."""

from collections.abc import Sequence
from pathlib import Path

from quintet.engine.models.export import Checked, Exportable, Format, Piece
from quintet.report.card import escape

ONNX = """\
import numpy, onnxruntime

session = onnxruntime.InferenceSession("{file}")
inputs = {{
{inputs}
}}
{outputs} = session.run(None, inputs)"""
PROGRAM = """\
import torch

program = torch.export.load("{file}").module()  # may run code: load trusted files only
inputs = [
{inputs}
]
{outputs} = program(*inputs)"""


def graphs_page(run: Path, model: object, exportable: Exportable, files: Sequence[Checked]) -> str:
    form: Format = "onnx" if files[0].file.endswith(".onnx") else "torch-export"
    parts = [
        f"# {type(model).__name__}: {escape(run.resolve().name)}, {form}",
        "Parts of the model as graphs that run without Quintet. Each was compared with the model at"
        f" export. {exportable.left_out}",
    ]
    for checked in files:
        parts += describe(checked, form)
    return "\n\n".join(parts) + "\n"


def describe(checked: Checked, form: Format) -> list[str]:
    piece = checked.piece
    axes = list(dict.fromkeys(name for spec in piece.inputs.values() for name in spec.dynamic))
    sizes = {name: spec.traced.shape for name, spec in piece.inputs.items()}
    fixed = ", ".join(f"{name} {tuple(shape)}" for name, shape in sizes.items())
    size = f"{' and '.join(axes)} dynamic" if checked.any_size else f"fixed at {fixed}"
    rows = [f"| in | {name} | {spec.description} |" for name, spec in piece.inputs.items()]
    rows += [f"| out | {name} | {text} |" for name, text in piece.outputs.items()]
    return [
        f"## {checked.file}: {piece.description}",
        "\n".join(["| | name | description |", "|---|---|---|", *rows]),
        f"Shapes: {size}. Compared with the model: {'; '.join(checked.findings)}.",
        f"```python\n{usage(piece, checked.file, form)}\n```",
    ]


def usage(piece: Piece, file: str, form: Format) -> str:
    """Example code that runs on zeros."""
    library = "numpy" if form == "onnx" else "torch"
    lines: list[str] = []
    for name, spec in piece.inputs.items():
        kind = f"{library}.{str(spec.traced.dtype).removeprefix('torch.')}"
        kind = kind.replace("numpy.bool", "numpy.bool_")  # numpy 1 and 2
        zeros = f"{library}.zeros({tuple(spec.traced.shape)}, dtype={kind})"
        lines.append(f'    "{name}": {zeros},' if form == "onnx" else f"    {zeros},  # {name}")
    outputs = ", ".join(piece.outputs) + ("," if form == "onnx" and len(piece.outputs) == 1 else "")
    pattern = ONNX if form == "onnx" else PROGRAM
    return pattern.format(file=file, inputs="\n".join(lines), outputs=outputs)
