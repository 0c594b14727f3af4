"""A run that stands at step six of ten, and somebody who changes its files."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from campaign.subjects import Subject
from quintet.engine.runs import checkpoint
from quintet.files import digest_of

BULK = "mesh/autoencoder_tiny"
"""The smallest recipe; most changes are made to its run."""
OLDER, NEWEST = 4, 6


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


class Forger:
    def __init__(self, name: str, path: Path):
        self.name, self.path = name, path
        self.reference = Subject(name).reference(1)
        self.mark = path.parent / "sprung"
        kept = {f"step-{step:08d}" for step in (OLDER, NEWEST)}
        shutil.copytree(
            self.reference,
            path,
            ignore=lambda folder, entries: (
                [entry for entry in entries if entry.startswith("step-") and entry not in kept]
                if Path(folder).name == "checkpoints"
                else []
            ),
        )
        best = path / "best.json"
        best.write_text(json.dumps({"step": OLDER, "metric": "x", "value": 1e9}), encoding="utf-8")

    @property
    def other(self) -> Path:
        """An undisturbed run of the same recipe that is not this one."""
        return Subject(self.name).reference(2)

    @property
    def older(self) -> Path:
        return checkpoint.path_of(self.path / "checkpoints", OLDER)

    @property
    def newest(self) -> Path:
        return checkpoint.path_of(self.path / "checkpoints", NEWEST)

    @property
    def id(self) -> str:
        return str(self.config()["id"])

    def config(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_text(encoding="utf-8"))

    def trap(self) -> Trap:
        return Trap(self.mark)

    def checkpoint_files(self) -> list[Path]:
        """Of the newest."""
        return sorted(self.newest.iterdir())

    def rewrite(
        self, file: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
    ) -> None:
        held = {name: value.clone() for name, value in load_file(file).items()}
        checkpoint.write_safetensors(file, change(held))

    def reseal(
        self, folder: Path, changes: dict[str, Any] | None = None, without: str | None = None
    ) -> None:
        """Sizes, digests and seal as they would be if the files had been written so."""
        page = checkpoint.read_about(folder)
        for name in page["files"]:
            file = folder / name
            digest = digest_of(file)
            page["files"][name] = {"bytes": file.stat().st_size, "sha256": digest}
        page = {
            name: value for name, value in {**page, **(changes or {})}.items() if name != without
        }
        text = json.dumps({**page, "seal": checkpoint.seal(page)})
        (folder / "state.json").write_text(text, encoding="utf-8")

    def insert(self, file: str, line: str, chance: random.Random) -> None:
        path = self.path / file
        lines = path.read_text(encoding="utf-8").splitlines()
        lines.insert(chance.randrange(len(lines) + 1), line)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
