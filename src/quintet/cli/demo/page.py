"""Opening and closing of the demo page: stages, metrics, samples and next steps."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

from quintet import rooms
from quintet.cli.demo.stages import Length
from quintet.engine.errors import RunError
from quintet.files import marking_outputs
from quintet.shared.demo import Sample, Stage
from quintet.suggest import command


def draw_samples(stages: Sequence[Stage], demo: Path) -> dict[str, list[Sample]]:
    """Samples by stage folder; none where a model of a few steps fails."""
    samples: dict[str, list[Sample]] = {stage.folder: [] for stage in stages}
    for stage in stages:
        if stage.draw is not None:
            with suppress(RunError), marking_outputs():
                _, trained = rooms.trained(demo / stage.folder)
                samples[stage.folder] = stage.draw(trained, demo / "samples" / stage.folder)
        samples[stage.folder] = samples[stage.folder] or newest_exhibit(demo / stage.folder)
    return samples


def newest_exhibit(run: Path) -> list[Sample]:
    """The newest picture of validation data, moving if there is one."""
    steps = sorted((run / "exhibits").glob("step-*"))
    if not steps:
        return []
    files = [*sorted(steps[-1].glob("*.gif")), *sorted(steps[-1].glob("*.png"))]
    return [Sample(prompt="", file=file, note="validation data") for file in files[:1]]


# -- page --------------------------------------------------------------------------------------


def opening(
    stages: Sequence[Stage],
    length: Length,
    metrics: Mapping[str, str],
    samples: Mapping[str, list[Sample]],
) -> str:
    """Trusted HTML: all text in it is escaped here."""
    sections = (_stage_section(s, metrics[s.folder], samples[s.folder]) for s in stages)
    return (
        f"<p>{len(stages)} small models, trained by one engine on the CPU of this machine, on "
        "built-in synthetic data. All metrics are on validation data, next to a baseline without "
        f"a model. {_length_note(length)}</p>{''.join(sections)}"
    )


def closing(stages: Sequence[Stage], demo: Path) -> str:
    commands = {
        **{f"Sample: {s.title}": c for s in stages if (c := sample_command(s, demo))},
        "Train a recipe at full length": command(
            "train", "image/vqgan_tiny", "--run", "runs/image"
        ),
        "Train on your own images": command(
            "train", "image/vqgan", "PHOTOS", "--run", "runs/photos"
        ),
        "List the recipes": command("list"),
    }
    items = (f"<p>{escape(title)}:</p><pre>{escape(c)}</pre>" for title, c in commands.items())
    return f"<section><h2>Next steps</h2>{''.join(items)}</section>"


def sample_command(stage: Stage, demo: Path) -> str:
    words = shlex.split(stage.next_arguments)
    return command("sample", demo / stage.folder, *words) if words else ""


def _length_note(length: Length) -> str:
    if length == "full":
        return "The recipes themselves train longer, with better results."
    if length == "quick":
        return "This was the quick demo: the models are undertrained."
    return f"{length} steps train nothing: this only tests the installation."


def _stage_section(stage: Stage, metrics: str, samples: Sequence[Sample]) -> str:
    figures = "".join(_figure(item) for item in samples if item.file.is_file())
    return (
        f"<h3>{escape(stage.title)} <code>{escape(stage.recipe)}</code></h3>"
        f"<p>{escape(stage.description)} "
        f'<a href="{escape(stage.folder)}/report.html">Report of this run</a></p>'
        f"<p><strong>{escape(metrics[:1].upper() + metrics[1:])}.</strong></p>{figures}"
    )


def _figure(item: Sample) -> str:
    quoted = f"“{item.prompt}”" if item.prompt else ""
    label = escape(", ".join(filter(None, (quoted, item.note))))
    content = base64.b64encode(item.file.read_bytes()).decode()
    if item.file.suffix == ".wav":
        source = f"data:audio/wav;base64,{content}"
        body = f'<audio controls aria-label="{label}" src="{source}"></audio>'
    else:
        kind = item.file.suffix.removeprefix(".")
        body = f'<img alt="{label}" src="data:image/{kind};base64,{content}">'
    return f"<figure>{body}<figcaption>{label}</figcaption></figure>"
