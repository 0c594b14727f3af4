"""The model card of an export, filled in from the run."""

import json
from pathlib import Path
from typing import Any

from quintet.engine.folder import RunFolder, read_lines


def model_card(run: Path, model: Any) -> str:
    folder = RunFolder.open(run)
    about, settings = folder.about, folder.about.get("settings", {})
    records = read_lines(folder.metrics) if folder.metrics.exists() else []
    measured = [r for r in records if any(name.startswith("val/") for name in r)]
    rows = [
        f"| {name.removeprefix('val/')} | {value:.5g} |"
        for name, value in (measured[-1].items() if measured else ())
        if name.startswith("val/") and isinstance(value, (int, float))
    ]
    numbers = ["| measure | held out |", "|---|---|", *rows] if rows else ["Not measured."]
    parameters = sum(p.numel() for p in model.parameters())
    kind = type(model).__name__
    return "\n".join(
        [
            "---",
            "library_name: quintet",
            "---",
            f"# {kind} of {run.resolve().name}",
            "",
            f"Trained with Quintet {about.get('quintet')} by the recipe `{about.get('recipe')}`: "
            f"{parameters / 1e6:.2f} M parameters, {settings.get('steps')} steps of "
            f"{about.get('global_batch')} samples, seed {settings.get('seed')}, "
            f"{'built-in data' if settings.get('data') is None else 'a data set of its own'}. "
            "Weights are the moving average.",
            "",
            "```python",
            "import quintet",
            "",
            f'model = quintet.{kind}.from_pretrained("this-folder")',
            "```",
            "",
            f"## Numbers at step {measured[-1]['step'] if measured else 0}",
            "",
            *numbers,
            "",
            "## Configuration",
            "",
            "```json",
            json.dumps(
                {k: v for k, v in settings.items() if k not in ("data", "init_from")}, indent=2
            ),
            "```",
            "",
        ]
    )
