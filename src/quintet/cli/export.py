"""`quintet export`."""

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tyro

from quintet import rooms
from quintet.cli.words import parse, recorded
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Export:
    """Write weights, configuration and a model card; `from_pretrained` and the Hub read them.

    As onnx or torch-export: parts of the model as graphs that run without Quintet. Whatever is
    written is compared with the model before the folder appears.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: tyro.conf.Positional[Path]
    """A new folder."""
    format: Literal["safetensors", "onnx", "torch-export"] = "safetensors"
    """safetensors is what Quintet itself reads."""


def export(given: list[str]) -> None:
    import quintet

    asked = parse(Export, given, "export")
    name, recipe = recorded(asked.run)
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise RunError(f"{asked.out} exists and is not empty; choose a new folder")
    model = quintet.load(asked.run)
    if asked.format == "safetensors":
        said = complete_or_absent(asked.out, lambda aside: weights(asked.run, model, aside))
    else:
        found = rooms.part_of_room(name, "export").pieces(model, recipe)
        if not found.pieces:
            raise RunError(
                f"a {type(model).__name__} cannot be exported as {asked.format}: {found.left_out};"
                " --format safetensors holds all of it"
            )
        said = complete_or_absent(
            asked.out, lambda aside: graphs(asked.run, model, found, aside, asked.format)
        )
    print("\n".join(said))
    if asked.format == "safetensors":
        print(f"load it with quintet.{type(model).__name__}.from_pretrained('{asked.out}')")
    print(f"{asked.out} is complete; {asked.out / 'README.md'} says what is in it")


def complete_or_absent(out: Path, write: Callable[[Path], list[str]]) -> list[str]:
    """Have it written under another name, so that what was refused leaves nothing behind."""
    aside = out.with_name(f".{out.name}.writing-{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        said = write(aside)
        os.replace(aside, out)  # an empty folder may be in its place
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return said


def weights(run: Path, model: Any, folder: Path) -> list[str]:
    from quintet.report.card import copy_samples, model_card

    card = model_card(run, model, copy_samples(run, folder))
    (folder / "README.md").write_text(card, encoding="utf-8")
    model.save_pretrained(folder)
    own, again = model.state_dict(), type(model).from_pretrained(folder).state_dict()
    different = [name for name in own if not own[name].equal(again[name])]
    if different:
        raise RunError(f"{len(different)} tensors came back changed, {different[0]} first")
    return [f"{len(own)} tensors, read back and equal bit for bit"]


def graphs(run: Path, model: Any, found: Any, folder: Path, form: Any) -> list[str]:
    from quintet.engine.exporting import export as write
    from quintet.report.graphs import graphs_page

    files = write(found, folder, form)
    (folder / "README.md").write_text(graphs_page(run, model, found, files), encoding="utf-8")
    return [
        f"{checked.file}: {'; '.join(checked.findings)}"
        f"{'' if checked.any_size else '; of fixed sizes'}"
        for checked in files
    ] + [found.left_out]
