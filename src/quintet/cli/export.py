"""`quintet export`."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import tyro

from quintet import rooms
from quintet.cli.common import Step, check_step, parse
from quintet.engine.errors import RunError
from quintet.files import atomic_folder


@dataclasses.dataclass(kw_only=True)
class Export:
    """Write weights, configuration and a model card; `from_pretrained` and the Hub read them.

    The formats onnx and torch-export write parts of the model as graphs that run without Quintet;
    beside the ONNX graphs of a generator, run.py samples with numpy and onnxruntime alone. All
    files are compared with the model before the folder appears.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder; for graphs also an export of built-in data, or ready/NAME."""
    out: tyro.conf.Positional[Path]
    """A new folder."""
    step: Step = None
    """Checkpoint to use, or best; the default is the newest one."""
    format: Literal["safetensors", "onnx", "torch-export"] = "safetensors"
    """safetensors is the format that Quintet reads."""
    dtype: Literal["fp32", "fp16"] = "fp32"
    """Numbers in safetensors; fp16 halves the file, and is loaded as fp32."""


def export(argv: list[str]) -> None:
    import quintet
    from quintet.engine.models.export import require_usable
    from quintet.engine.runs.folder import RunFolder, at_step
    from quintet.report.card import last_evaluation

    args = parse(Export, argv, "export")
    check_step(args.step)
    run = at_step(args.run, args.step)
    folder = RunFolder.open(run)
    recipe = rooms.recipe_of(folder.about, folder.path)
    is_run = "model" not in folder.about
    if not is_run and args.format == "safetensors":
        raise RunError(f"{folder.path} is an export already: copy it, or choose another --format")
    if args.dtype == "fp16" and (args.format != "safetensors" or rooms.family_of(recipe).adopts):
        raise RunError("--dtype fp16 is for safetensors of Quintet's own models; leave it out")
    check_new_folder(args.out)
    if is_run:
        require_usable(run, args.out)
    model = quintet.load(run)
    if is_run:
        model.measured(last_evaluation(run))
    graphs = None
    if args.format != "safetensors":
        graphs = rooms.family_of(recipe).export.pieces(model, recipe)
        if not graphs.pieces:
            raise RunError(
                f"a {type(model).__name__} cannot be exported as {args.format}: {graphs.left_out};"
                " --format safetensors holds all of it"
            )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(args.out) as partial:
        if graphs is None:
            lines = write_weights(run, model, partial, args.dtype)
            lines += [f"load it with {model.loading(str(args.out))}"]
        else:
            lines = write_graphs(run, model, graphs, partial, args.format)
    print("\n".join(lines))
    print(f"{args.out} is complete; see {args.out / 'README.md'}")


def check_new_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not empty; choose a new folder")


def write_weights(run: Path, model: Any, folder: Path, dtype: str) -> list[str]:
    from quintet.engine.models.pretrained import CONFIG, halve, halved
    from quintet.engine.runs.folder import RunFolder, read_json
    from quintet.files import write_json
    from quintet.report.card import copy_samples, model_card

    card = model_card(run, model, copy_samples(run, folder))
    (folder / "README.md").write_text(card, encoding="utf-8")
    model.save_pretrained(folder)
    own = model.exported()
    if dtype == "fp16":
        halve(folder)
        own = {name: halved(value).to(value.dtype) for name, value in own.items()}
    again = type(model).from_pretrained(folder).state_dict()
    different = [name for name in own if not own[name].equal(again[name])]
    if different:
        raise RunError(f"{len(different)} tensors changed when read back, {different[0]} first")
    builtin = rooms.builtin_recipe(RunFolder.open(run).about)
    if builtin:
        write_json(folder / CONFIG, {**read_json(folder / CONFIG), **builtin})
    return [f"{len(own)} tensors, read back and equal bit for bit"]


def write_graphs(run: Path, model: Any, graphs: Any, folder: Path, form: Any) -> list[str]:
    from quintet.engine.models.export import export as write
    from quintet.report.graphs import graphs_page

    files = write(graphs, folder, form)
    for name, text in graphs.files.items() if form == "onnx" else ():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(graphs_page(run, model, graphs, files), encoding="utf-8")
    return [
        f"{checked.file}: {'; '.join(checked.findings)}"
        f"{'' if checked.any_size else '; fixed sizes'}"
        for checked in files
    ] + [graphs.left_out]
