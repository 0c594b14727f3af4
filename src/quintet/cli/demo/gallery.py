"""Rows of the demo page: what a model was asked for, what it made, and its number."""

import base64
import io
import itertools
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from quintet.media.errors import BadFile
from quintet.report.markup import details, table, text
from quintet.shared.demo import Figure, Metrics, Row, Sample

BARS = 90
"""Of a waveform."""


@dataclass
class Shown:
    """A row of the page as far as it is known."""

    row: Row
    figure: Figure | None = None
    samples: Sequence[Sample] = ()
    note: str = ""
    """What stands in place of missing samples."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the model, folded; plain text."""
    report: str = ""
    """Link to the report of its run."""
    command: str = ""

    def html(self) -> str:
        link = f'<p><a href="{text(self.report)}">Report of the run</a></p>' if self.report else ""
        facts = table((), {text(name): [text(value)] for name, value in self.facts.items()})
        code = f"<pre>{text(self.command)}</pre>" if self.command else ""
        folded = details("The model", (facts if self.facts else "") + code + link)
        return (
            f'<section class="room"><div class="about"><h2>{text(self.row.title)}</h2>'
            f"<p>{text(self.row.description)}</p>{number(self.figure)}{folded}</div>"
            f"{self.outputs()}</section>"
        )

    def outputs(self) -> str:
        samples = [sample for sample in self.samples if sample.file.is_file()]
        if not samples:
            return f'<p class="waiting">{text(self.note)}</p>'
        groups = itertools.groupby(samples, key=lambda sample: sample.prompt)
        sounds = all(sample.file.suffix == ".wav" for sample in samples)
        inside = "".join(group(prompt, list(members)) for prompt, members in groups)
        return f'<div class="outputs{" sounds" if sounds else ""}">{inside}</div>'


def figure_of(row: Row, metrics: Metrics, recipe: Any) -> Figure | None:
    """None where a metric is missing or not finite."""
    try:
        return row.figure(metrics, recipe)
    except (KeyError, TypeError, ValueError):
        return None


def number(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return (
        f'<p class="number"><strong>{text(figure.value)}</strong> {text(figure.meaning)}'
        f'<span class="soft">{text(figure.baseline)}</span></p>'
    )


def group(prompt: str, samples: Sequence[Sample]) -> str:
    """One prompt and what was made of it: the prompt is the caption of a single sample, and the
    heading of several."""
    if len(samples) == 1:
        return figure(samples[0], f"“{prompt}”" if prompt else "")
    figures = "".join(figure(sample, "") for sample in samples)
    return f'<p class="prompt">“{text(prompt)}”</p>{figures}' if prompt else figures


def figure(sample: Sample, title: str) -> str:
    label = ", ".join(filter(None, (title or f"“{sample.prompt}”", sample.note)))
    head = f"<b>{text(title)}</b>" if title else ""
    note = f"<span>{text(sample.note)}</span>" if sample.note else ""
    body = player if sample.file.suffix == ".wav" else picture
    return (
        f"<figure>{body(sample.file, escape(label))}<figcaption>{head}{note}</figcaption></figure>"
    )


def picture(file: Path, label: str) -> str:
    kind = file.suffix.removeprefix(".")
    return f'<img alt="{label}" src="{uri(f"image/{kind}", file.read_bytes())}">'


def player(file: Path, label: str) -> str:
    content = file.read_bytes()
    source = uri("audio/wav", content)
    return f'{waveform(content)}<audio controls aria-label="{label}" src="{source}"></audio>'


def uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def waveform(content: bytes) -> str:
    """The peaks of a sound as one SVG path; nothing for a file that cannot be read."""
    import numpy as np

    from quintet.report.sound import read_wav

    try:
        samples, _ = read_wav(content)
    except (wave.Error, EOFError, ValueError, RuntimeError, BadFile):
        return ""
    if len(samples) < BARS:
        return ""
    peaks = np.array([np.abs(part).max() for part in np.array_split(samples, BARS)])
    heights = 19 * peaks / max(float(peaks.max()), 1e-6) + 0.5
    lines = "".join(f"M{2 * n + 1} {20 - h:.1f}v{2 * h:.1f}" for n, h in enumerate(heights))
    return (
        f'<svg class="wave" viewBox="0 0 {2 * BARS} 40" preserveAspectRatio="none" '
        f'aria-hidden="true"><path d="{lines}"/></svg>'
    )


def encoded_png(pixels: object) -> str:
    """Pixels as an image of the page."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG", optimize=True)  # type: ignore[arg-type]
    return uri("image/png", content.getvalue())
