"""Model card of an export, filled in from the run.

Cards are published: they contain no local paths, and text from files is escaped, because the Hub
renders the card as Markdown and parses its header as YAML.
"""

import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from quintet.engine.models.pretrained import Pretrained
from quintet.engine.runs.checkpoint import path_of
from quintet.engine.runs.folder import RunFolder, finite, read_json, read_lines
from quintet.files import mark_output
from quintet.report.source import mapping

PIPELINES = {
    "VQGanVAE": "image-feature-extraction",
    "MeshTransformer": "text-to-3d",
    "MuLaN": "feature-extraction",
    "VoiceBox": "text-to-speech",
}
"""Pipeline tags of the Hub, where there is one for the model."""
IMAGES, LINKED = (".png", ".gif"), (".wav", ".mp4", ".glb", ".obj", ".ply", ".txt")
MAX_SAMPLE_BYTES = 12_000_000
"""Larger samples are not copied."""
OMITTED_SETTINGS = ("data", "init_from")
"""Settings described in the text of the card."""


def model_card(run: Path, model: Any, samples: Sequence[str] = ()) -> str:
    """The card in Markdown; `samples` are names of files in samples/, next to it."""
    folder = RunFolder.open(run)
    state = state_of(folder)
    records = records_of(folder, state)
    metrics = validation_metrics(records)
    kind = type(model).__name__
    own = isinstance(model, Pretrained)
    load = model.loading(".") if own else f'quintet.{kind}.from_pretrained(".")'
    parts = [
        yaml_header(kind, str(folder.about.get("recipe")), list(group_baselines(metrics))),
        f"# {kind}: {escape(folder.path.resolve().name)}",
        provenance(folder, state, records, model),
        "## Usage",
        f"```python\nimport {load.partition('.')[0]}\n\n"
        f'# "." is this folder; elsewhere use its path or Hub name\nmodel = {load}\n```',
        f"## Validation metrics at step {escape(last_step(records))}",
        metrics_table(metrics),
        *samples_section(samples),
        "## Licence",
        "Not chosen yet. Before publishing, state the licence here and replace `unknown` in the"
        " header of this file; consider the licence of the training data.",
        "## Configuration",
        json_block(without_paths(settings_of(folder))),
    ]
    return "\n\n".join(parts) + "\n"


# -- header ---------------------------------------------------------------------------------


def yaml_header(kind: str, recipe: str, metrics: Sequence[str]) -> str:
    """YAML front matter; a JSON string is always a valid YAML string."""
    room = recipe.partition("/")[0]
    lines = ["library_name: quintet", "license: unknown"]
    if kind in PIPELINES:
        lines.append(f"pipeline_tag: {PIPELINES[kind]}")
    lines += ["tags:", *(f"- {yaml_string(tag)}" for tag in ("quintet", room))]
    if metrics:
        lines += ["metrics:", *(f"- {yaml_string(name)}" for name in metrics)]
    return "\n".join(["---", *lines, "---"])


def yaml_string(text: str) -> str:
    return json.dumps("".join(c if c.isprintable() else " " for c in text), ensure_ascii=False)


# -- provenance ----------------------------------------------------------------------


def provenance(
    folder: RunFolder, state: Mapping[str, Any], records: Sequence[Mapping[str, Any]], model: Any
) -> str:
    about, settings = folder.about, settings_of(folder)
    last: Mapping[str, Any] = next((r for r in reversed(records) if "samples" in r), {})
    samples, seconds = (state.get(n, last.get(n)) for n in ("samples", "seconds"))
    sentences = [
        f"Trained with Quintet {escape(about.get('quintet'))}, recipe"
        f" `{code_span(about.get('recipe'))}`, on {trained_on(settings)}:"
        f" {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters,"
        f" {escape(state.get('step', settings.get('steps')))} steps of"
        f" {escape(about.get('global_batch'))} samples, seed {escape(settings.get('seed'))}.",
    ]
    if is_number(samples) and is_number(seconds):
        sentences.append(
            f"It saw {samples} samples in {seconds:.3g} seconds{hardware(about, state)}."
        )
    if settings.get("init_from"):
        sentences.append(
            f"Initialised from the weights of {escape(last_name(settings['init_from']))}."
        )
    if any(str(name).endswith(".ema.safetensors") for name in mapping(state.get("files"))):
        sentences.append("The weights are the exponential moving average (EMA).")
    return " ".join(sentences)


def hardware(about: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Hardware and software, as far as the run recorded them."""
    if "device" not in state:
        return ""
    versions, machine = (mapping(m) for m in (state.get("versions"), about.get("machine")))
    return (
        f" on {escape(state.get('processes'))} process(es),"
        f" {escape(machine.get('device') or state['device'])}, {escape(state.get('precision'))},"
        f" torch {escape(versions.get('torch'))}"
    )


def trained_on(settings: Mapping[str, Any]) -> str:
    """The name of the data set without its path."""
    data = settings.get("data")
    if data is None:
        return "Quintet's built-in data"
    if str(data).startswith("python:"):
        return "a Python data set"
    return f"the data set {escape(last_name(data))}"


def state_of(folder: RunFolder) -> Mapping[str, Any]:
    """The state.json of the checkpoint that the card describes."""
    if not folder.steps():
        return {}
    path = path_of(folder.checkpoints, folder.chosen_step(lambda _: None)) / "state.json"
    return read_json(path) if path.is_file() else {}


def records_of(folder: RunFolder, state: Mapping[str, Any]) -> list[Any]:
    """The log up to the checkpoint."""
    records = read_lines(folder.metrics) if folder.metrics.exists() else []
    if "step" not in state:
        return records
    return [record for record in records if record.get("step", 0) <= state["step"]]


def settings_of(folder: RunFolder) -> Mapping[str, Any]:
    return mapping(folder.about.get("settings"))


# -- metrics ----------------------------------------------------------------------------------


def last_evaluation(run: Path) -> dict[str, float]:
    """Metrics of the last evaluation up to the checkpoint."""
    folder = RunFolder.open(run)
    return validation_metrics(records_of(folder, state_of(folder)))


def validation_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The last evaluation, by metric."""
    evaluations = [r for r in records if any(name.startswith("val/") for name in r)]
    return {
        name.removeprefix("val/"): value
        for name, value in (evaluations[-1].items() if evaluations else ())
        if name.startswith("val/") and is_number(value)
    }


def last_step(records: Sequence[Mapping[str, Any]]) -> Any:
    return next((r.get("step") for r in reversed(records) if any("val/" in n for n in r)), 0)


def group_baselines(metrics: Mapping[str, float]) -> dict[str, list[str]]:
    """Each metric with the ones named after it: psnr_mean_colour is a baseline of psnr."""
    names = sorted(metrics, key=len)
    owner = {n: next((o for o in names if n.startswith(f"{o}_")), n) for n in metrics}
    return {n: [m for m in metrics if owner[m] == n != m] for n in metrics if owner[n] == n}


def metrics_table(metrics: Mapping[str, float]) -> str:
    rows: list[str] = []
    for name, others in group_baselines(metrics).items():
        baselines = ", ".join(f"{escape(o[len(name) + 1 :])} {metrics[o]:.5g}" for o in others)
        rows.append(f"| {escape(name)} | {metrics[name]:.5g} | {baselines} |")
    if not rows:
        return "Not evaluated."
    return "\n".join(["| metric | value | baselines and components |", "|---|---|---|", *rows])


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- samples ----------------------------------------------------------------------------------


def copy_samples(run: Path, out: Path) -> list[str]:
    """Copy the exhibits nearest to the checkpoint to out/samples and return their names."""
    folder = RunFolder.open(run)
    newest = f"step-{state_of(folder).get('step', 0):08d}"
    steps = sorted(folder.exhibits.glob("step-*")) if folder.exhibits.is_dir() else []
    steps = [path for path in steps if path.name <= newest] or steps
    copied: list[str] = []
    for file in sorted(steps[-1].iterdir()) if steps else []:
        supported = file.suffix in (*IMAGES, *LINKED) and re.fullmatch(r"[\w.-]+", file.name)
        # The card is published: a link could lead out of the run.
        regular = file.is_file() and not file.is_symlink()
        if supported and regular and file.stat().st_size <= MAX_SAMPLE_BYTES:
            (out / "samples").mkdir(parents=True, exist_ok=True)
            # An adopted model's folder has no mark of its own: its config.json is a library's.
            mark_output(out / "samples" / file.name)
            shutil.copyfile(file, out / "samples" / file.name)
            copied.append(file.name)
    return copied


def samples_section(samples: Sequence[str]) -> list[str]:
    images = [name for name in samples if Path(name).suffix in IMAGES]
    others = [name for name in samples if Path(name).suffix in LINKED]
    lines = [f"![{escape(Path(name).stem)}](samples/{name})" for name in images]
    if others:
        lines.append("\n".join(f"- [{escape(name)}](samples/{name})" for name in others))
    return ["## Samples on validation data", *lines] if lines else []


# -- text from files --------------------------------------------------------------------------


def escape(value: Any) -> str:
    """Escape Markdown and HTML, on one line."""
    line = "".join(c if c.isprintable() else " " for c in str(value))
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(line, quote=False))


def code_span(value: Any) -> str:
    return "".join(c if c.isprintable() and c != "`" else " " for c in str(value))


def json_block(value: Any) -> str:
    """A JSON code block; no string inside can close it."""
    block = json.dumps(finite(value), indent=2, allow_nan=False)
    return "```json\n" + block.replace("`", "\\u0060") + "\n```"


def last_name(path: Any) -> str:
    """The last part of a POSIX or Windows path."""
    return PureWindowsPath(PurePosixPath(str(path)).name).name


def without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(n): without_paths(v) for n, v in value.items() if n not in OMITTED_SETTINGS}
    if isinstance(value, (list, tuple)):
        return [without_paths(item) for item in value]
    return last_name(value) if isinstance(value, str) else value
