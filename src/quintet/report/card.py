"""The model card of an export, filled in from the run.

A card travels: it holds no path of the machine that it was made on, and what comes from files is
escaped, for the Hub shows it as Markdown and reads its head as YAML.
"""

import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from quintet.engine.folder import RunFolder, read_json, read_lines

PIPELINES = {
    "VQGanVAE": "image-feature-extraction",
    "MeshTransformer": "text-to-3d",
    "MuLaN": "feature-extraction",
    "VoiceBox": "text-to-speech",
}
"""What the Hub files a model under, where it has a drawer for it."""
SHOWN, LINKED = (".png", ".gif"), (".wav", ".mp4", ".glb", ".obj", ".ply", ".txt")
LARGEST_SAMPLE = 12_000_000
"""Bytes of one sample; larger ones stay in the run."""
HIDDEN = ("data", "init_from")
"""Settings that the card tells in words."""


def model_card(run: Path, model: Any, samples: Sequence[str] = ()) -> str:
    """`samples` are names of files that lie beside the card, in samples/."""
    folder = RunFolder.open(run)
    records = read_lines(folder.metrics) if folder.metrics.exists() else []
    numbers = held_out(records)
    kind = type(model).__name__
    parts = [
        head(kind, str(folder.about.get("recipe")), list(grouped(numbers))),
        f"# {kind} of {plain(run.resolve().name)}",
        origin(folder, records, model),
        "## How to load it",
        '```python\nimport quintet\n\n# "." is this folder; from elsewhere its path, or its name on'
        f' the Hub\nmodel = quintet.{kind}.from_pretrained(".")\n```',
        f"## Numbers at step {plain(last_step(records))}",
        table(numbers),
        *shown(samples),
        "## Licence",
        "Not chosen yet. Before you publish this model, put its licence here and in place of"
        " `unknown` at the top of this file; the data that it was trained on has a say in it.",
        "## Configuration",
        code(without_paths(settings_of(folder))),
    ]
    return "\n\n".join(parts) + "\n"


# -- the head ---------------------------------------------------------------------------------


def head(kind: str, recipe: str, measures: Sequence[str]) -> str:
    """YAML; a JSON string is one of its strings, whatever is in it."""
    room = recipe.partition("/")[0]
    lines = ["library_name: quintet", "license: unknown"]
    if kind in PIPELINES:
        lines.append(f"pipeline_tag: {PIPELINES[kind]}")
    lines += ["tags:", *(f"- {quoted(tag)}" for tag in ("quintet", room))]
    if measures:
        lines += ["metrics:", *(f"- {quoted(name)}" for name in measures)]
    return "\n".join(["---", *lines, "---"])


def quoted(text: str) -> str:
    return json.dumps("".join(c if c.isprintable() else " " for c in text), ensure_ascii=False)


# -- where it comes from ----------------------------------------------------------------------


def origin(folder: RunFolder, records: Sequence[Mapping[str, Any]], model: Any) -> str:
    about, settings = folder.about, settings_of(folder)
    state = newest_state(folder)
    last: Mapping[str, Any] = next((r for r in reversed(records) if "samples" in r), {})
    samples, seconds = (state.get(n, last.get(n)) for n in ("samples", "seconds"))
    words = [
        f"Trained with Quintet {plain(about.get('quintet'))} by the recipe"
        f" `{ticked(about.get('recipe'))}` on {trained_on(settings)}:"
        f" {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters,"
        f" {plain(state.get('step', settings.get('steps')))} steps of"
        f" {plain(about.get('global_batch'))} samples, seed {plain(settings.get('seed'))}.",
    ]
    if is_number(samples) and is_number(seconds):
        words.append(f"It saw {samples} samples in {seconds:.3g} seconds{where(about, state)}.")
    if settings.get("init_from"):
        words.append(f"It began with the weights of {plain(last_name(settings['init_from']))}.")
    words.append("Weights are the moving average.")
    return " ".join(words)


def where(about: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """The hardware, as far as the run wrote it down."""
    if "device" not in state:
        return ""
    versions, machine = (mapping(m) for m in (state.get("versions"), about.get("machine")))
    return (
        f" on {plain(state.get('processes'))} process(es),"
        f" {plain(machine.get('device') or state['device'])}, {plain(state.get('precision'))},"
        f" torch {plain(versions.get('torch'))}"
    )


def trained_on(settings: Mapping[str, Any]) -> str:
    """Its name alone: where it lies is nobody's business."""
    data = settings.get("data")
    if data is None:
        return "Quintet's built-in data"
    if str(data).startswith("python:"):
        return "a data set from Python"
    return f"the data set {plain(last_name(data))}"


def newest_state(folder: RunFolder) -> Mapping[str, Any]:
    steps = folder.steps()
    path = folder.checkpoints / f"step-{steps[-1]:08d}" / "state.json" if steps else None
    return read_json(path) if path is not None and path.is_file() else {}


def settings_of(folder: RunFolder) -> Mapping[str, Any]:
    return mapping(folder.about.get("settings"))


def mapping(value: Any) -> Mapping[str, Any]:
    """What a file holds there, or nothing where it is something else."""
    return value if isinstance(value, Mapping) else {}


# -- numbers ----------------------------------------------------------------------------------


def held_out(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The last evaluation, by the names of measures."""
    measured = [r for r in records if any(name.startswith("val/") for name in r)]
    return {
        name.removeprefix("val/"): value
        for name, value in (measured[-1].items() if measured else ())
        if name.startswith("val/") and is_number(value)
    }


def last_step(records: Sequence[Mapping[str, Any]]) -> Any:
    return next((r.get("step") for r in reversed(records) if any("val/" in n for n in r)), 0)


def grouped(numbers: Mapping[str, float]) -> dict[str, list[str]]:
    """Each measure, and those named after it: psnr_mean_colour is a baseline of psnr."""
    names = sorted(numbers, key=len)
    owner = {n: next((o for o in names if n.startswith(f"{o}_")), n) for n in numbers}
    return {n: [m for m in numbers if owner[m] == n != m] for n in numbers if owner[n] == n}


def table(numbers: Mapping[str, float]) -> str:
    rows: list[str] = []
    for name, others in grouped(numbers).items():
        beside = ", ".join(f"{plain(o[len(name) + 1 :])} {numbers[o]:.5g}" for o in others)
        rows.append(f"| {plain(name)} | {numbers[name]:.5g} | {beside} |")
    if not rows:
        return "Not measured."
    return "\n".join(
        ["| measure | held out | baselines, and parts of it |", "|---|---|---|", *rows]
    )


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- samples ----------------------------------------------------------------------------------


def copy_samples(run: Path, out: Path) -> list[str]:
    """Copy the newest exhibits to out/samples, and return their names."""
    exhibits = RunFolder.open(run).exhibits
    steps = sorted(exhibits.glob("step-*")) if exhibits.is_dir() else []
    copied: list[str] = []
    for file in sorted(steps[-1].iterdir()) if steps else []:
        known = file.suffix in (*SHOWN, *LINKED) and re.fullmatch(r"[\w.-]+", file.name)
        inside = file.is_file() and not file.is_symlink()
        if known and inside and file.stat().st_size <= LARGEST_SAMPLE:
            (out / "samples").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / "samples" / file.name)
            copied.append(file.name)
    return copied


def shown(samples: Sequence[str]) -> list[str]:
    pictures = [name for name in samples if Path(name).suffix in SHOWN]
    others = [name for name in samples if Path(name).suffix in LINKED]
    lines = [f"![{plain(Path(name).stem)}](samples/{name})" for name in pictures]
    if others:
        lines.append("\n".join(f"- [{plain(name)}](samples/{name})" for name in others))
    return ["## Samples, on held-out data", *lines] if lines else []


# -- text from files --------------------------------------------------------------------------


def plain(value: Any) -> str:
    """Text that Markdown and HTML take for nothing but text, on one line."""
    line = "".join(c if c.isprintable() else " " for c in str(value))
    escaped = html.escape(line, quote=False)
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", escaped)


def ticked(value: Any) -> str:
    return "".join(c if c.isprintable() and c != "`" else " " for c in str(value))


def code(value: Any) -> str:
    """JSON in a block that nothing in it can close."""
    return "```json\n" + json.dumps(value, indent=2).replace("`", "\\u0060") + "\n```"


def last_name(path: Any) -> str:
    """Of a path as any system writes it."""
    return PureWindowsPath(PurePosixPath(str(path)).name).name


def without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(n): without_paths(v) for n, v in value.items() if n not in HIDDEN}
    if isinstance(value, (list, tuple)):
        return [without_paths(item) for item in value]
    return last_name(value) if isinstance(value, str) else value
