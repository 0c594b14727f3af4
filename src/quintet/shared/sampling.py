"""What `quintet sample` does in every room: check inputs, place the model, read held-out data."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from quintet.engine.errors import RunError

Device = Literal["auto", "cpu", "cuda"]


def check_inputs(inputs: Sequence[Path], what: str) -> None:
    """Files that are there, no two of one name: what is written is called after them."""
    for path in inputs:
        if not path.is_file():
            raise RunError(f"{path} is not a file; give {what}")
    names = [path.stem.removesuffix(".ids") for path in inputs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RunError(f"two inputs are called {twice}; rename one, or sample them apart")


def check_positive(flags: Any, *names: str) -> None:
    for name in names:
        if not getattr(flags, name) > 0:
            raise RunError(
                f"--{name.replace('_', '-')} is {getattr(flags, name)}; give more than 0"
            )


def loaded(run: Path, device: Device) -> Any:
    """The model of a run or an export, where it is asked to be."""
    import torch

    import quintet

    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("--device cuda, but torch sees no GPU")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return quintet.load(run).to("cuda" if on_gpu else "cpu")


def recipe_with_data(run: Path, what: str) -> Any:
    """The settings of a run whose data can be opened again; `what` is to be given otherwise."""
    from quintet import rooms
    from quintet.engine.folder import RunFolder

    about = RunFolder.open(run).about
    if "model" in about:
        raise RunError(f"{run} is an exported model and has no data; give {what}")
    _, recipe = rooms.recorded(about, run)
    if recipe.data is not None and recipe.data.startswith("python:"):
        raise RunError(f"{run} reads a data set from Python; give {what}")
    return recipe


def readable(held: Any, count: int) -> Iterator[tuple[int, Any]]:
    """The first `count` samples that can be read; as in training, others are left out."""
    found = 0
    for index in range(len(held)):
        if found == count:
            return
        try:
            item = held.keyed(index, None)
        except (OSError, ValueError):
            continue
        found += 1
        yield index, item


def stem_of(text: str, number: int) -> str:
    """A file name that shows a sentence: letters and digits of it, and its place."""
    words = "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
    return f"{number:02d}-{words[:60]}" if words else f"{number:02d}"
