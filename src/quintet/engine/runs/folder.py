"""The run folder: lock, configuration, metrics and events."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quintet.engine.config import Recipe, differences, to_json
from quintet.engine.errors import RunError
from quintet.engine.models import ready
from quintet.engine.models.hub import missing
from quintet.engine.runs import lock
from quintet.engine.runs.checkpoint import newest_intact, steps_in
from quintet.engine.runs.remote.uploader import Uploader
from quintet.engine.settings import settings_of
from quintet.files import PARTIAL, atomic_write, remove_partial, write_json
from quintet.suggest import command


@dataclass
class RunFolder:
    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    created: bool = False
    """Whether this process created it."""
    restarted: bool = False
    """Whether an earlier start in this folder left no checkpoint."""
    step: int | Literal["best"] | None = None
    """Checkpoint to use, of a path RUN@STEP or RUN@best; None is the newest intact one."""
    start: str = ""
    """Name of this start of the run, set by `lock` and written into the lock file."""
    uploader: Uploader | None = None
    """Of a run in object storage, in the process that writes it."""
    _lock: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "uploader": None, "_lock": None}  # of this process alone

    def __post_init__(self) -> None:
        self.checkpoints, self.frozen = self.path / "checkpoints", self.path / "frozen"
        self.exhibits = self.path / "exhibits"
        self.metrics, self.events = self.path / "metrics.jsonl", self.path / "events.jsonl"

    @classmethod
    def create(cls, path: Path, about: Mapping[str, Any]) -> "RunFolder":
        """A new run. A folder that is not empty is an error, unless a start died in it before its
        first checkpoint."""
        again = _is_without_checkpoint(path)
        if os.path.exists(path / "config.json") and not again:
            raise RunError(
                f"{path} already holds a run; resume it with "
                f"`{command('resume', path)}` or train --resume, or choose another --run"
            )
        if not again and os.path.exists(path) and (not path.is_dir() or any(_visible(path))):
            raise RunError(f"{path} exists and is not a run of Quintet; choose another --run")
        folder = cls(path, created=True, restarted=again)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            if again and not _is_without_checkpoint(path):  # written before the lock was free
                folder.unlock()
                return cls.create(path, about)
            folder.checkpoints.mkdir(exist_ok=True)
            folder.write_config({**about, "id": uuid.uuid4().hex})
            earlier = (folder.metrics, folder.events, path / "data.json")
            for file in earlier if again else ():
                file.unlink(missing_ok=True)
        except OSError as error:
            folder.unlock()
            raise RunError(
                f"the run folder {path} cannot be written: {os.strerror(error.errno or 0)}; "
                "choose a writable --run"
            ) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run, for reading."""
        folder, step = split_step(path)
        if not folder.is_dir():
            raise RunError(missing(path))
        if not (folder / "config.json").is_file():
            raise RunError(f"{folder} is not a run of Quintet: it holds no config.json")
        return cls(folder, read_json(folder / "config.json"), step=step)

    def chosen_step(self, say: Callable[[str], None]) -> int:
        """Step of the checkpoint to use; damaged ones are named and passed over."""
        steps = self.steps()
        if not steps:
            raise RunError(f"{self.path} has no checkpoint yet")
        if self.step is None:
            return newest_intact(self.checkpoints, say) or 0
        best = self.best()
        step = best["step"] if best and self.step == "best" else self.step
        if step not in steps:
            listed = ", ".join(map(str, steps))
            raise RunError(f"{self.path} has no checkpoint {self.step}; it has those of {listed}")
        return step

    def lock(self) -> None:
        """Lock until the process ends; the kernel releases the lock of a dead process."""
        try:
            handle = lock.acquire(self.path / ".lock")
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}") from None
        if handle is None:
            raise RunError(
                f"{self.path} is being trained by another process; wait for it, or stop it"
            )
        self._lock, self.start = handle, uuid.uuid4().hex
        os.ftruncate(handle, 0)
        os.write(handle, self.start.encode())

    def unlock(self) -> None:
        if self.uploader is not None:
            self.uploader.close()
        if self._lock is not None:
            lock.release(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Undo `create` after a start that failed before the first step."""
        written = ("config.json", "data.json", "events.jsonl", "metrics.jsonl", "report.html")
        for name in (*written, "tracker.json", "requests.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.path / "tensorboard", self.frozen):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.checkpoints, self.path):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def write_config(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)
        write_json(self.path / "config.json", self.about)

    @property
    def id(self) -> str:
        return str(self.about.get("id", ""))

    def best(self) -> dict[str, Any] | None:
        path = self.path / "best.json"
        if not path.is_file():
            return None
        best = read_json(path)
        if type(best.get("step")) is not int or type(best.get("value")) not in (int, float):
            raise RunError(f"{path} lacks a step or a value; delete it (it is rewritten)")
        return best

    def append(self, path: Path, record: Mapping[str, Any]) -> None:
        line = json.dumps(finite(record), allow_nan=False) + "\n"
        if path.is_symlink():
            raise RunError(f"{path} is a link; a run writes only inside its own folder")
        try:
            with open(path, "ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read() == b"\n" else "\n" + line  # a kill cut the last one
                file.write(line.encode())
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from None

    def forget_after(self, step: int) -> None:
        """Drop reports of steps that will be repeated, and partial files of interrupted writes."""
        for folder in (self.path, self.frozen, *self.exhibits.glob("step-*")):
            remove_partial(folder)
        for path in (self.metrics, self.events):
            if not path.exists():
                continue
            records = (r for r in read_lines(path) if type(r.get("step")) is int)
            lines = [
                json.dumps(finite(r), allow_nan=False) + "\n" for r in records if r["step"] <= step
            ]
            atomic_write(path, "".join(lines).encode())

    def steps(self) -> list[int]:
        return steps_in(self.checkpoints)


def _is_without_checkpoint(path: Path) -> bool:
    """Whether a run was started here and died before its first checkpoint. One with best.json had
    checkpoints, which somebody has removed."""
    try:
        about = read_json(path / "config.json")
    except RunError:
        return False
    had = (path / "best.json").exists() or steps_in(path / "checkpoints")
    return {"id", "settings"} <= set(about) and not had


def _visible(path: Path) -> Iterator[Path]:
    """Entries of a folder, except those of a start that was killed immediately."""
    for entry in path.iterdir():
        empty = entry.name == "checkpoints" and entry.is_dir() and not any(entry.iterdir())
        if not empty and entry.name != ".lock" and not entry.match(PARTIAL):
            yield entry


def split_step(path: Path | str) -> tuple[Path, int | Literal["best"] | None]:
    """`runs/a@1200` and `runs/a@best` name a checkpoint of the run `runs/a`, and `ready/NAME` a
    model of the package."""
    name, _, step = str(path).rpartition("@")
    if name and (step == "best" or step.isdecimal()) and not Path(path).is_dir():
        return Path(name), "best" if step == "best" else int(step)
    return ready.found(Path(path)), None


def at_step(path: Path, step: int | str | None) -> Path:
    return path if step is None else Path(f"{path}@{step}")


def require_settings(
    path: Path, about: Mapping[str, Any], recipe: Recipe, batch: int, asked: Any = None
) -> None:
    """The settings must be those of the checkpoint: config.json can be edited or damaged, and
    another learning rate would change the run. `asked` are the changes that commands asked for."""
    now = {**to_json(recipe), "global_batch": batch}
    then = {**now, **about.get("settings", {}), "global_batch": about.get("global_batch", batch)}
    settings = list(settings_of(recipe))
    changeable = {s.name for s in settings if (s.free and not s.recorded) or s.is_path}
    if isinstance(asked, Mapping):
        changeable |= {s.name for s in settings if s.recorded and asked.get(s.name) == s.default}
    changed = {n: v for n, v in differences(then, now).items() if n not in changeable}
    if changed:
        listed = "; ".join(
            f"{n} was {a!r} and is now {b!r}" for n, (a, b) in [*changed.items()][:3]
        )
        raise RunError(f"{path} was written with other settings: {listed}; restore config.json")


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} must hold a JSON object")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Records of a JSONL file; lines that are not JSON objects are skipped."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            records.append(value)
    return records


def finite(value: Any) -> Any:
    """Replace non-finite numbers by null: JSON has none."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
