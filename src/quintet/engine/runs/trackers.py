"""Trackers: TensorBoard, W&B and trackio get the reports, the events and the exhibits of a run."""

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.engine.config import TrackerConfig
from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.sinks import Sink

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
                self.writer._get_file_writer().add_summary(Summary(value=[value]), step)

    def close(self) -> None:
        self.writer.close()


class Tracker(Sink):
    """W&B, or trackio, which has the same API."""

    def __init__(self, name: str, folder: RunFolder, config: TrackerConfig):
        self.module = importlib.import_module(name)
        project = config.project or os.environ.get(f"{name.upper()}_PROJECT") or "quintet"
        about: dict[str, Any] = {
            "project": project,
            "name": config.run_name or folder.path.resolve().name,
            "config": folder.about,
            "resume": "allow",  # a resumed run stays one run
        }
        if name == "wandb":
            about |= {"dir": str(folder.path), "id": folder.id}
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
            made = TensorBoard(folder) if name == "tensorboard" else Tracker(name, folder, config)
            sinks.append(made)
        except ImportError as error:
            if name != "tensorboard":
                raise RunError(
                    f"tracker '{name}' is not installed ({error}); pip install 'quintet[{name}]'"
                ) from None
    return sinks
