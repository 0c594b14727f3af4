"""Run folders to watch."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, *records: Any, mode: str = "a") -> None:
    with open(path, mode) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def report(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "seconds": step / 2, "samples_per_second": 8.0, "vae/loss": 1.0, **more}


def make_run(path: Path, steps: int = 100) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    about = {"recipe": "image/vqgan_tiny", "settings": {"steps": steps}}
    (path / "config.json").write_text(json.dumps(about))
    return path
