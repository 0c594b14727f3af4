"""What the demo's page says around the runs: what was trained, what it can do, what to do next."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.cli.demo_stages import STAGES, Length, Stage
from quintet.cli.words import recorded
from quintet.engine.errors import RunError

SENTENCES = ("a flat box", "a tall cone", "a pyramid")
SEARCHES = ("a slow minor melody on strings", "a fast melody, high-pitched, with a drum kit")
SPOKEN = ("ba do ki", "ma ni su")
HEARD = 3
"""Sounds shown for each search."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A file that a trained model made or found, and what it was asked for."""

    asked: str
    file: Path
    note: str = ""


def sampled(demo: Path) -> dict[str, list[Made]]:
    """What `quintet sample` makes of sentences, by the folder of the training. What a training of a
    few steps cannot do is left out of the page."""
    found: dict[str, list[Made]] = {}
    for folder, make in (("writer", _meshes), ("music", _searches), ("voice", _speech)):
        try:
            found[folder] = make(demo / folder, demo / "samples" / folder)
        except RunError:
            found[folder] = []
    return found


def _meshes(run: Path, out: Path) -> list[Made]:
    from quintet.mesh.sample import Flags, sample

    flags = Flags(text=SENTENCES, count=4, temperature=0.4, device="cpu")
    *_, sheet = sample(run, (), out, flags)
    return [Made(asked=", ".join(SENTENCES), file=sheet, note="four meshes for each sentence")]


def _searches(run: Path, out: Path) -> list[Made]:
    """The nearest held-out sounds, with the captions that they were made by."""
    from quintet.music.data import open_data
    from quintet.music.sample import Flags, sample

    sample(run, (), out, Flags(text=SEARCHES, count=64, device="cpu"))
    ranking: list[dict[str, Any]] = json.loads((out / "ranking.json").read_text(encoding="utf-8"))
    recipe = recorded(run)[1]
    held: Any = open_data(recipe.data, recipe.sounds, "valid", recipe.seed)
    found: list[Made] = []
    for entry in ranking:
        for best in entry["best"][:HEARD]:
            file = Path(best["name"])
            caption = held.text(int(file.stem.rpartition("-")[2]))
            note = f"similarity {best['similarity']:+.2f}, to {caption}"
            found.append(Made(asked=entry["of"], file=out / file.name, note=note))
    return found


def _speech(run: Path, out: Path) -> list[Made]:
    from quintet.speech.sample import Flags, sample

    files = sample(run, (), out, Flags(text=SPOKEN, device="cpu"))
    sounds = [file for file in files if file.suffix == ".wav"]
    return [Made(asked=text, file=file) for text, file in zip(SPOKEN, sounds)]


# -- the page --------------------------------------------------------------------------------------


def opening(
    demo: Path, length: Length, numbers: Mapping[str, str], made: Mapping[str, list[Made]]
) -> str:
    """Trusted HTML: every text in it is escaped here."""
    parts = [
        "<p>One engine has trained six small models one after another, on built-in data that it "
        "draws, builds, plays and speaks itself, on the CPU of this machine. Every number is of "
        "held-out data that no training has seen, beside what a guess without a model reaches. "
        f"{_of_length(length)}</p>",
        *(_part(stage, numbers[stage.folder], made.get(stage.folder, [])) for stage in STAGES),
    ]
    return "".join(parts)


def closing(demo: Path) -> str:
    return f"<section><h2>What to do next</h2>{_next_steps(demo)}</section>"


def _of_length(length: Length) -> str:
    if length == "full":
        return "The recipes themselves train a little longer, and learn more."
    if length == "quick":
        return "This was the quick form: the models are at the beginning of what they can learn."
    return f"At {length} steps nothing is learned: this only shows that everything is installed."


def _part(stage: Stage, numbers: str, made: Sequence[Made]) -> str:
    shown = "".join(_figure(item) for item in made if item.file.is_file())
    return (
        f"<h3>{_text(stage.title)} <code>{_text(stage.recipe)}</code></h3>"
        f'<p>{_text(stage.what)} <a href="{_text(stage.folder)}/report.html">Its own report</a></p>'
        f"<p><strong>{_text(numbers[:1].upper() + numbers[1:])}.</strong></p>{shown}"
    )


def _figure(item: Made) -> str:
    label = _text(f"“{item.asked}”{item.note and ', '}{item.note}")
    content = base64.b64encode(item.file.read_bytes()).decode()
    if item.file.suffix == ".wav":
        source = f"data:audio/wav;base64,{content}"
        body = f'<audio controls aria-label="{label}" src="{source}"></audio>'
    else:
        body = f'<img alt="{label}" src="data:image/png;base64,{content}">'
    return f"<figure>{body}<figcaption>{label}</figcaption></figure>"


def _next_steps(demo: Path) -> str:
    write = (
        f'quintet sample {demo}/writer --text "a flat pyramid" --count 4 --format obj --out meshes'
    )
    commands = {
        "Write meshes from a sentence of your own": write,
        "Have something said": f'quintet sample {demo}/voice --text "ba do ki" --out spoken.wav',
        "Look for a sound": f'quintet sample {demo}/music --text "a melody on flute" --out found',
        "Train a recipe in full": "quintet train image/vqgan_tiny --run runs/image",
        "Train on a folder of your own": "quintet train image/vqgan PHOTOS --run runs/photos",
        "See what can be trained": "quintet list",
    }
    return "".join(
        f"<p>{_text(what)}:</p><pre>{_text(command)}</pre>" for what, command in commands.items()
    )


def _text(value: str) -> str:
    from quintet.report import text

    return text(value)
