"""Where a figure comes from: the commit, and the machine and versions that a run recorded."""

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def commit() -> str:
    """Of the checkout, with + if it has changes; `unknown` for a copy without its history."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*"]
    ended = subprocess.run(git, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "unknown"


def machine(run: Path) -> dict[str, Any]:
    """Device and versions of a run."""
    about = json.loads((run / "config.json").read_text(encoding="utf-8"))
    versions = {"quintet": about["quintet"], **about["versions"]}
    return {"device": about["machine"]["device"], "versions": versions}
