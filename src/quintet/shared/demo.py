"""What `ROOM/demo.py` declares for `quintet demo`. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.shared.sampling import Trained

Metrics = Mapping[str, float]
"""Validation metrics by name, without `val/`."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A .png or .wav that a trained model generated or retrieved, and its prompt."""

    prompt: str
    file: Path
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training run, in its own folder below that of the demo."""

    folder: str
    recipe: str
    title: str
    description: str
    """One sentence for the page."""
    steps: Mapping[str, int]
    """Steps by length of the demo."""
    seconds: Mapping[str, int]
    """Duration on two CPU cores, evaluation included, to estimate the remaining time."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings by dotted name that differ from the recipe's in demos of any length."""
    quick_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further settings for a quick demo: less warm-up, preparation and evaluation."""
    minimal_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """And further ones for a test of the installation."""
    summarise: Callable[[Metrics, Any], str]
    """Format the metrics and their baselines as a sentence, given the recipe."""
    evaluate_halfway: bool = False
    """Evaluate halfway through a full demo as well, where evaluation is cheap."""
    depends_on: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that take the run folder of an earlier stage of the room."""
    draw: Callable[[Trained, Path], list[Sample]] | None = None
    """Samples for the page from a run, written to a folder; None: exhibits only."""
    next_arguments: str = ""
    """Arguments of `quintet sample RUN` that the page suggests."""
