"""Trackers: TensorBoard, W&B and trackio get the reports, the events and the exhibits of a run."""

import importlib
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.engine.config import TrackerConfig
from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder, read_json
from quintet.engine.runs.sinks import Sink
from quintet.files import write_json

MEDIA = {
    ".png": "Image",
    ".jpg": "Image",
    ".gif": "Video",
    ".mp4": "Video",
    ".wav": "Audio",
    ".glb": "Object3D",
    ".obj": "Object3D",
}
"""The class of W&B and of trackio that shows a file."""


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in record.items() if isinstance(v, (int, float)) and k != "step"}


class TensorBoard(Sink):
    def __init__(self, folder: RunFolder):
        from torch.utils.tensorboard import SummaryWriter

        done = folder.steps()  # points of steps that will be repeated are dropped
        self.writer = SummaryWriter(
            str(folder.path / "tensorboard"), purge_step=done[-1] + 1 if done else 0
        )

    def report(self, record: Mapping[str, Any]) -> None:
        for name, value in numbers(record).items():
            self.writer.add_scalar(name, value, record["step"])

    def event(self, step: int, message: str) -> None:
        self.writer.add_text("events", message, step)

    def exhibits(self, step: int, files: Sequence[Path]) -> None:
        """Images, animations and sounds as the files have them; texts; not meshes, which it would
        need point by point (their rendered sheet is an image)."""
        Summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        for file in files:
            tag, data = f"exhibits/{file.stem}", file.read_bytes()
            value = None
            if file.suffix in (".png", ".jpg", ".gif"):
                value = Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=data))
            elif file.suffix == ".wav":
                audio = Summary.Audio(encoded_audio_string=data, content_type="audio/wav")
                value = Summary.Value(tag=tag, audio=audio)
            elif file.suffix == ".txt":
                self.writer.add_text(tag, data.decode("utf-8", "replace"), step)
            if value is not None:
                writer = self.writer._get_file_writer()
                writer.add_summary(Summary(value=[value]), step)  # type: ignore[union-attr]

    def close(self) -> None:
        self.writer.close()


def identity(folder: RunFolder, run_name: str | None) -> tuple[str, str]:
    """Id and name of the last start in this folder; a copy of a run gets its own. The folder is
    recognised by its inode, which a move keeps, or by its path, which a restored backup keeps."""
    file, path = folder.path / "tracker.json", folder.path.resolve()
    name = run_name or path.name
    here = {"run": folder.id, "path": str(path), "inode": path.stat().st_ino, "asked": run_name}
    known = read_json(file) if file.is_file() else {}
    # Of a run that had no tracker until now, a copy may exist that is tracked from now on as well.
    tracked, shown = uuid.uuid4().hex if folder.steps() else folder.id, name
    if known.get("run") == folder.id:
        tracked, shown = str(known.get("id")), str(known.get("name"))
        if here["inode"] != known.get("inode") and here["path"] != known.get("path"):
            tracked = uuid.uuid4().hex
            shown = f"{name}-{tracked[:6]}" if name == shown else name
        elif run_name != known.get("asked"):
            shown = name
    write_json(file, {**here, "id": tracked, "name": shown})
    return tracked, shown


class Tracker(Sink):
    """W&B, or trackio, which has the same API."""

    def __init__(self, name: str, folder: RunFolder, config: TrackerConfig):
        self.module = importlib.import_module(name)
        project = config.project or os.environ.get(f"{name.upper()}_PROJECT") or "quintet"
        tracked, shown = identity(folder, config.run_name)  # W&B resumes by id, trackio by name
        about: dict[str, Any] = {
            "project": project,
            "name": shown,
            "config": folder.about,
            "resume": "allow",  # a resumed run stays one run
        }
        if name == "wandb":
            about |= {"dir": str(folder.path), "id": tracked}
            about |= {"entity": config.entity, "tags": list(config.tags) or None}
        self.module.init(**about)

    def report(self, record: Mapping[str, Any]) -> None:
        self.module.log(numbers(record), step=int(record["step"]))

    def exhibits(self, step: int, files: Sequence[Path]) -> None:
        clips = {file.stem for file in files if file.suffix == ".mp4"}
        shown: dict[str, Any] = {}
        for file in files:
            kind = MEDIA.get(file.suffix)
            if kind is None or (file.suffix == ".gif" and file.stem in clips):
                continue
            shown[f"exhibits/{file.stem}"] = getattr(self.module, kind)(str(file))
        if shown:
            self.module.log(shown, step=step)

    def close(self) -> None:
        self.module.finish()


def trackers(names: Sequence[str], folder: RunFolder, config: TrackerConfig) -> list[Sink]:
    """TensorBoard is used if installed; other trackers must be installed."""
    sinks: list[Sink] = []
    for name in names:
        try:
            sink = TensorBoard(folder) if name == "tensorboard" else Tracker(name, folder, config)
            sinks.append(sink)
        except ImportError as error:
            if name != "tensorboard":
                raise RunError(
                    f"tracker '{name}' is not installed ({error}); pip install 'quintet[{name}]'"
                ) from None
    return sinks
