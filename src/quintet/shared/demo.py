"""What `ROOM/demo.py` declares for `quintet demo`. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.shared.sampling import Trained

Metrics = Mapping[str, float]
"""Validation metrics by name, without `val/`."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A .png, .gif or .wav that a model generated or retrieved, and what it was asked for."""

    prompt: str
    file: Path
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A metric in a few words, beside its baseline."""

    value: str
    """With its unit: 25.1 dB."""
    meaning: str
    baseline: str

    def __str__(self) -> str:
        return f"{self.value} {self.meaning}; {self.baseline}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the page: a model, one number, and samples."""

    title: str
    description: str
    """What goes in and what comes out, in one sentence."""
    figure: Callable[[Metrics, Any], Figure]
    """The number, from validation metrics and the recipe."""
    draw: Callable[[Trained, Path], list[Sample]] | None = None
    """Samples, written to a folder; None: the newest exhibit of the run."""
    arguments: str = ""
    """Arguments of `quintet sample MODEL` that the page suggests."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training run, in its own folder below that of the demo."""

    folder: str
    recipe: str
    row: Row
    steps: int
    seconds: int
    """Duration on two CPU cores, evaluation included."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings by dotted name that differ from the recipe's."""
    minimal_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further ones for a test of the installation."""
    evaluations: int = 1
    depends_on: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that take the run folder of an earlier stage of the room."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """A stage that the page shows while it trains, and a demo stops and resumes."""

    stage: Stage
    strip: Callable[[Path], tuple[Any, Any]]
    """Pixels of originals and of outputs, one below the other, from the picture of an exhibit."""
    metric: str
    """The validation metric to plot; its baselines are metrics whose names begin with it."""
    unit: str


@dataclass(frozen=True, kw_only=True)
class RoomDemo:
    """DEMO of `ROOM/demo.py`."""

    stages: Sequence[Stage]
    """What `quintet demo --full` trains."""
    ready: str = ""
    """Name of the model of the package that shows the room without training; empty: none."""
    row: Row | None = None
    """The row of that model."""
    live: Live | None = None
    position: int = 0
    """Rooms come in this order, and else by name."""


def one_for_each(
    captions: Sequence[str],
    trained: Trained,
    out: Path,
    suffix: str,
    write: Callable[[Path, Any], None],
) -> list[Sample]:
    """What a masked generator makes of each caption, all at once."""
    from quintet.shared.generation.sampling import GeneratorFlags, check_texts, settings_of
    from quintet.shared.sampling import stem_of

    model = trained.model("cpu")
    check_texts(model, captions)
    outputs = model.generate(list(captions), **settings_of(trained.path, GeneratorFlags()))
    out.mkdir(parents=True, exist_ok=True)
    samples: list[Sample] = []
    for number, (text, output) in enumerate(zip(captions, outputs)):
        samples.append(Sample(prompt=text, file=out / f"{stem_of(text, number)}{suffix}"))
        write(samples[-1].file, output)
    return samples
