"""Helpers of `quintet sample` for all rooms: input checks, model loading, validation data."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from quintet.engine.errors import RunError

Device = Literal["auto", "cpu", "cuda"]


def check_inputs(inputs: Sequence[Path], what: str) -> None:
    """Existing files with distinct names, which name the outputs."""
    for path in inputs:
        if not path.is_file():
            raise RunError(f"{path} is not a file; give {what}")
    names = [path.stem.removesuffix(".ids") for path in inputs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RunError(f"two inputs are named {twice}; rename one, or sample them separately")


def check_positive(flags: Any, *names: str) -> None:
    for name in names:
        if not getattr(flags, name) > 0:
            raise RunError(
                f"--{name.replace('_', '-')} is {getattr(flags, name)}; it must be above 0"
            )


def loaded(run: Path, device: Device) -> Any:
    """Model of a run or an export, on the chosen device."""
    import torch

    import quintet

    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("--device cuda, but torch finds no GPU; use --device cpu or auto")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return quintet.load(run).to("cuda" if on_gpu else "cpu")


def recipe_with_data(run: Path, what: str) -> Any:
    """Recipe of a run whose data can be opened again; otherwise an error asks for `what`."""
    from quintet import rooms
    from quintet.engine.runs.folder import RunFolder

    about = RunFolder.open(run).about
    if "model" in about:
        raise RunError(f"{run} is an exported model without data; give {what}")
    _, recipe = rooms.recorded(about, run)
    if recipe.data is not None and recipe.data.startswith("python:"):
        raise RunError(f"{run} was trained on a Python data set; give {what}")
    return recipe


def readable(source: Any, count: int) -> Iterator[tuple[int, Any]]:
    """The first `count` readable samples; as in training, unreadable ones are skipped."""
    read = 0
    for index in range(len(source)):
        if read == count:
            return
        try:
            item = source.keyed(index, None)
        except (OSError, ValueError):
            continue
        read += 1
        yield index, item


def stem_of(text: str, number: int) -> str:
    """File name of a prompt: its number, and its letters and digits."""
    slug = "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
    return f"{number:02d}-{slug[:60]}" if slug else f"{number:02d}"
