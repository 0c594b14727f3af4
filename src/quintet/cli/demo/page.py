"""Opening and closing of the demo page: stages, metrics, samples and next steps."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.cli.common import recorded
from quintet.cli.demo.stages import STAGES, Length, Stage
from quintet.engine.errors import RunError

MESH_CAPTIONS = ("a flat box", "a tall cone", "a pyramid")
MUSIC_QUERIES = ("a slow minor melody on strings", "a fast melody, high-pitched, with a drum kit")
SPEECH_TEXTS = ("ba do ki", "ma ni su")
RESULTS_PER_QUERY = 3
"""Audio files shown per query."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A file that a trained model generated or retrieved, and its prompt."""

    prompt: str
    file: Path
    note: str = ""


def draw_samples(demo: Path) -> dict[str, list[Sample]]:
    """Output of `quintet sample` by stage folder; none where a model of a few steps fails."""
    samples: dict[str, list[Sample]] = {}
    for folder, draw in (
        ("transformer", _generate_meshes),
        ("music", _search_music),
        ("speech", _synthesise_speech),
    ):
        try:
            samples[folder] = draw(demo / folder, demo / "samples" / folder)
        except RunError:
            samples[folder] = []
    return samples


def _generate_meshes(run: Path, out: Path) -> list[Sample]:
    from quintet.mesh.sample import Flags, sample

    flags = Flags(text=MESH_CAPTIONS, count=4, temperature=0.4, device="cpu")
    *_, sheet = sample(run, (), out, flags)
    return [Sample(prompt=", ".join(MESH_CAPTIONS), file=sheet, note="four meshes per caption")]


def _search_music(run: Path, out: Path) -> list[Sample]:
    """The nearest validation sounds with their captions."""
    from quintet.music.data import open_data
    from quintet.music.sample import Flags, sample

    sample(run, (), out, Flags(text=MUSIC_QUERIES, count=64, device="cpu"))
    ranking: list[dict[str, Any]] = json.loads((out / "ranking.json").read_text(encoding="utf-8"))
    recipe = recorded(run)[1]
    valid_data: Any = open_data(recipe.data, recipe.sounds, "valid", recipe.seed)
    samples: list[Sample] = []
    for entry in ranking:
        for best in entry["best"][:RESULTS_PER_QUERY]:
            file = Path(best["name"])
            caption = valid_data.text(int(file.stem.rpartition("-")[2]))
            note = f"similarity {best['similarity']:+.2f}, caption: {caption}"
            samples.append(Sample(prompt=entry["of"], file=out / file.name, note=note))
    return samples


def _synthesise_speech(run: Path, out: Path) -> list[Sample]:
    from quintet.speech.sample import Flags, sample

    files = sample(run, (), out, Flags(text=SPEECH_TEXTS, device="cpu"))
    sounds = [file for file in files if file.suffix == ".wav"]
    return [Sample(prompt=text, file=file) for text, file in zip(SPEECH_TEXTS, sounds)]


# -- page --------------------------------------------------------------------------------------


def opening(length: Length, metrics: Mapping[str, str], samples: Mapping[str, list[Sample]]) -> str:
    """Trusted HTML: all text in it is escaped here."""
    parts = [
        "<p>Six small models, trained by one engine on the CPU of this machine, on built-in "
        "synthetic data. All metrics are on validation data, next to a baseline without a model. "
        f"{_length_note(length)}</p>",
        *(
            _stage_section(stage, metrics[stage.folder], samples.get(stage.folder, []))
            for stage in STAGES
        ),
    ]
    return "".join(parts)


def closing(demo: Path) -> str:
    return f"<section><h2>Next steps</h2>{_next_steps(demo)}</section>"


def _length_note(length: Length) -> str:
    if length == "full":
        return "The recipes themselves train longer, with better results."
    if length == "quick":
        return "This was the quick demo: the models are undertrained."
    return f"{length} steps train nothing: this only tests the installation."


def _stage_section(stage: Stage, metrics: str, samples: Sequence[Sample]) -> str:
    figures = "".join(_figure(item) for item in samples if item.file.is_file())
    return (
        f"<h3>{_text(stage.title)} <code>{_text(stage.recipe)}</code></h3>"
        f"<p>{_text(stage.description)} "
        f'<a href="{_text(stage.folder)}/report.html">Report of this run</a></p>'
        f"<p><strong>{_text(metrics[:1].upper() + metrics[1:])}.</strong></p>{figures}"
    )


def _figure(item: Sample) -> str:
    label = _text(f"“{item.prompt}”{item.note and ', '}{item.note}")
    content = base64.b64encode(item.file.read_bytes()).decode()
    if item.file.suffix == ".wav":
        source = f"data:audio/wav;base64,{content}"
        body = f'<audio controls aria-label="{label}" src="{source}"></audio>'
    else:
        body = f'<img alt="{label}" src="data:image/png;base64,{content}">'
    return f"<figure>{body}<figcaption>{label}</figcaption></figure>"


def _next_steps(demo: Path) -> str:
    generate = f'quintet sample {demo}/transformer --text "a flat pyramid" --count 4 --out meshes'
    commands = {
        "Generate meshes from a caption": generate,
        "Synthesise speech": f'quintet sample {demo}/speech --text "ba do ki" --out speech.wav',
        "Search for music": f'quintet sample {demo}/music --text "a melody on flute" --out found',
        "Train a recipe at full length": "quintet train image/vqgan_tiny --run runs/image",
        "Train on your own images": "quintet train image/vqgan PHOTOS --run runs/photos",
        "List the recipes": "quintet list",
    }
    return "".join(
        f"<p>{_text(what)}:</p><pre>{_text(command)}</pre>" for what, command in commands.items()
    )


def _text(value: str) -> str:
    from quintet.report import text

    return text(value)
