"""Checkpoints: safetensors files and a state.json with their digests, complete or absent.

A checkpoint is written under a partial name, synced and renamed, so a kill leaves earlier ones
intact. Safetensors are written by our own code (a JSON header and raw bytes), because file and
digest then take one pass, without the copies that the library makes while it holds the
interpreter's lock. The library reads them.
"""

import hashlib
import json
import math
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.machine.fsdp import whole
from quintet.engine.when import When
from quintet.files import atomic_folder, digest_of, remove_folder, write_json

Files = Mapping[str, Mapping[str, Tensor]]
NAME = re.compile(r"step-(\d{8})")
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
CHUNK = 64 << 20
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write, sync, and return the file's sha256. Names are sorted: equal state, equal bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    ordered = sorted(tensors)
    for name in ordered:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            raise RunError(f"{name} is {tensor.dtype}, which {path.name} cannot hold")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            file.write(piece)
            digest.update(piece)
        for name in ordered:
            flat = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
            data = memoryview(flat.numpy())  # type: ignore[arg-type]
            for begin in range(0, len(data), CHUNK):
                file.write(data[begin : begin + CHUNK])
                digest.update(data[begin : begin + CHUNK])
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def snapshot(
    files: Files, spare: Files | None = None, keep: bool = True
) -> dict[str, dict[str, Tensor]]:
    """Copies on the host, with a single synchronisation of the device.

    `spare` is an earlier snapshot whose memory is reused: fresh pages cost more than the copy
    itself. FSDP shards are gathered one tensor at a time by all processes; those without `keep`
    only take part in that.
    """
    copied: dict[str, dict[str, Tensor]] = {}
    for name, tensors in files.items():
        old = spare.get(name, {}) if spare else {}
        copied[name] = {}
        for key, value in tensors.items():
            full = whole(value.detach())
            if not keep:
                continue
            buffer = old.get(key)
            if buffer is None or buffer.shape != full.shape or buffer.dtype != full.dtype:
                buffer = torch.empty(full.shape, dtype=full.dtype, pin_memory=full.is_cuda)
            copied[name][key] = buffer.copy_(full, non_blocking=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return copied


def write(folder: Path, step: int, files: Files, about: Mapping[str, Any]) -> Path:
    """Write checkpoint `step`; its folder appears only when it is complete."""
    final = path_of(folder, step)
    # A run whose folder vanished must stop, not start another: no parents are created. A step is
    # replaced when it is repeated after a rollback.
    with atomic_folder(final, replace=True) as partial:
        listed = {}
        for name, tensors in files.items():
            path = partial / f"{name}.safetensors"
            digest = write_safetensors(path, tensors)
            listed[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
        page = {**about, "step": step, "files": listed}
        write_json(partial / "state.json", {**page, "seal": seal(page)})
    return final


def steps_in(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for entry in folder.iterdir() if (m := NAME.fullmatch(entry.name)))


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def seal(page: Mapping[str, Any]) -> str:
    """Digest of state.json itself: no other digest covers the position."""
    rest = {name: value for name, value in page.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def examine(path: Path) -> str | None:
    """The defect of a checkpoint, or None if every file has its recorded size and digest."""
    try:
        page = read_about(path)
        if page["seal"] != seal(page):
            return "state.json does not match its seal"
        named = NAME.fullmatch(path.name)
        if named and page["step"] != int(named[1]):
            return f"state.json says step {page['step']}"
        listed = page["files"]
        for name, facts in listed.items():
            file = path / Path(name).name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != facts["bytes"]:
                return f"{name} has {file.stat().st_size} bytes instead of {facts['bytes']}"
            if digest_of(file) != facts["sha256"]:
                return f"{name} does not match its digest"
    except BROKEN as error:
        return f"state.json cannot be used ({error})"
    return None


def read_about(path: Path) -> dict[str, Any]:
    page = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if not isinstance(page, dict):
        raise ValueError("it must hold a JSON object")
    return page


def read(path: Path, part: str | None = None) -> dict[str, dict[str, Tensor]]:
    """Tensors of a checkpoint by file and name: all, or the weights and averages of a part. Runs no
    code from it."""
    try:
        names = [Path(name).name.removesuffix(".safetensors") for name in read_about(path)["files"]]
        wanted = names if part is None else [n for n in names if n in (part, f"{part}.ema")]
        return {name: load_file(path / f"{name}.safetensors") for name in wanted}
    except (*BROKEN, SafetensorError) as error:
        raise RunError(f"checkpoint {path} cannot be read: {error}") from None


def averaged(files: Files, part: str) -> dict[str, Tensor]:
    """Weights of a part, averages last: of two names for one tensor only one has an average."""
    own = files.get(f"{part}.ema", {})
    return {**{n: value for n, value in files[part].items() if n not in own}, **own}


def read_shapes(file: Path) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Shapes of all tensors and names of those that are not finite, one tensor in memory."""
    shapes: dict[str, tuple[int, ...]] = {}
    nonfinite: list[str] = []
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            tensor = tensors.get_tensor(name)
            shapes[name] = tuple(tensor.shape)
            if tensor.is_floating_point() and not tensor.isfinite().all():
                nonfinite.append(name)
    return shapes, nonfinite


def position(path: Path, about: Mapping[str, Any]) -> tuple[int, int, float]:
    """Steps taken, samples consumed over all processes and seconds spent, by state.json; RunError
    if its values are invalid."""
    step, samples, seconds = (about.get(name) for name in ("step", "samples", "seconds"))
    counts = type(step) is int and type(samples) is int and min(step, samples) >= 0
    if not counts or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise RunError(f"{path}/state.json: step, samples or seconds cannot be used")
    return step, samples, seconds  # type: ignore[return-value]


def require_forms(path: Path, files: Files, expected: Files) -> None:
    """Shapes and dtypes must be those of the networks: other dtypes would be converted silently.

    Optimizer state has the shape and dtype of its parameter, or is a scalar.
    """
    for file, tensors in files.items():
        moments, like = file.endswith(".optim"), expected[file.removesuffix(".optim")]
        for name, value in tensors.items():
            own = like.get(name.partition("/")[2] if moments else name)
            if own is None or (moments and value.ndim == 0 and value.is_floating_point()):
                continue  # unexpected names are reported elsewhere
            if value.shape != own.shape or value.dtype != own.dtype:
                raise RunError(
                    f"{path}: {name} in {file}.safetensors is {tuple(value.shape)} of "
                    f"{value.dtype}, but this model expects {tuple(own.shape)} of {own.dtype}"
                )


def newest_intact(folder: Path, warn: Callable[[str], None]) -> int | None:
    """The newest checkpoint with valid digests; damaged ones are reported and skipped."""
    steps = steps_in(folder)
    for step in reversed(steps):
        problem = examine(path_of(folder, step))
        if problem is None:
            return step
        name = path_of(folder, step).name
        warn(f"checkpoint {name} is damaged ({problem}); trying the one before")
    if steps:
        raise RunError(
            f"none of the {len(steps)} checkpoints in {folder} is intact; restore one from a "
            "backup, or start a new run with --run"
        )
    return None


def owner(path: Path) -> str | None:
    """Id of the run that wrote a checkpoint; a damaged one is nobody's to remove."""
    try:
        return read_about(path).get("run")
    except (OSError, ValueError, RecursionError):
        return None


def superfluous(
    steps: Sequence[int], last: int, every: int, best: int | None, newest: int | None = None
) -> list[int]:
    """Steps to remove: all but the newest, the multiples of `every` and the best.

    `newest` is the step just written: later ones were skipped as damaged, and must not displace
    intact ones.
    """
    steps = [step for step in sorted(steps) if newest is None or step <= newest]
    keep = {*steps[-max(1, last) :], best}
    return [step for step in steps if step not in keep and not When(every).due(step)]


def retain(
    folder: Path,
    last: int,
    every: int,
    best: int | None,
    run_id: str,
    newest: int | None = None,
    uploading: int | None = None,
) -> None:
    """Remove superfluous checkpoints of this run, except one that is being uploaded."""
    for step in superfluous(steps_in(folder), last, every, best, newest):
        if step != uploading and owner(path_of(folder, step)) == run_id:
            remove_folder(path_of(folder, step))


class Writer:
    """Runs one job at a time in the background; an error is raised by the next call."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None
        self.spare: Files | None = None
        """A written snapshot whose memory the next one reuses."""
        self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; blocks only while another one is queued."""
        self.check()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    job()
            except BaseException as error:
                self._error = error
            finally:
                self._jobs.task_done()
        self._jobs.task_done()

    @property
    def busy(self) -> bool:
        return self._jobs.unfinished_tasks > 0

    def check(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise RunError(f"a checkpoint could not be written: {describe(error)}") from error

    def wait(self) -> None:
        self._jobs.join()
        self.check()

    def close(self) -> None:
        """Finish the current job and stop the thread."""
        self._jobs.join()
        self._jobs.put(None)
        self._thread.join()


def describe(error: BaseException) -> str:
    reason = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        reason = os.strerror(error.errno) + (f" ({error.filename})" if error.filename else "")
    return f"{reason}; earlier checkpoints are intact"
