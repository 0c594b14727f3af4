"""Old `.pt` files: their tensors, written out as safetensors, and a list of what else is in them.

The only place that reads a pickle. It does so weights-only, with torch's own small reader that
knows tensors, containers and plain values and calls nothing that a file names; and in a process
that may use so much memory, time and disk, starts no program and, where the system grants it,
has no network. The process that asked never opens the file.

    OLD.pt ─ a child: limits ─> zip directory ─> torch.load(weights_only) ─> checks ─> OUT/
"""

import ctypes
import importlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quintet.engine.errors import RunError

MAX_BYTES = 16_000_000_000
"""Of the file; a larger one is refused before it is opened."""
MEMORY = 2_000_000_000
"""What reading may take beside the file itself, which is mapped and not copied."""
SECONDS = 600
"""Until the process is killed, whatever it is doing."""
HANDLES = 64
"""Files that it may hold open."""
DEPTH = 32
"""Containers within containers."""
ITEMS = 200_000
"""Values in all; a few bytes can stand for billions where a container holds itself."""
DIRECTORY_BYTES = 100_000_000
"""Of the pickle in the archive, which holds names and shapes but no numbers."""
SWELL = 4
"""Times the file's size that its tensors may take: tied ones are stored once and written often."""
SAID = 4_000
"""Characters of a text in the file that the listing keeps."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
REMEDY = "convert it where you trust it, with safetensors.torch.save_file(state_dict, path)"


class Limits(NamedTuple):
    bytes: int = MAX_BYTES
    memory: int = MEMORY
    seconds: float = SECONDS


class Imported(NamedTuple):
    """What came out of a file."""

    tensors: int
    bytes: int
    values: int
    offline: bool
    """Whether the process that read it had no network."""


def import_weights(old: Path, out: Path, limits: Limits = Limits()) -> Imported:  # noqa: B008
    """Write `tensors.safetensors` and `listing.json` into the folder `out`, which exists."""
    if not old.is_file():
        raise RunError(f"there is no file {old}")
    size = old.stat().st_size
    if size > limits.bytes:
        raise RunError(f"{old} holds {size:,} bytes, more than {limits.bytes:,}; raise --max-gb")
    command = [sys.executable, "-P", "-m", "quintet.engine.models.importing"]
    asked = json.dumps({"old": str(old.resolve()), "out": str(out.resolve()), **limits._asdict()})
    try:
        ended = subprocess.run(
            [*command, asked],
            capture_output=True,
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            timeout=limits.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{old} was not read within {limits.seconds:g} seconds") from None
    return _answer(old, ended)


def _answer(old: Path, ended: "subprocess.CompletedProcess[bytes]") -> Imported:
    """What the child said, in one line; it may have died without a word."""
    try:
        said = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        signals = {number.value: number.name for number in signal.Signals}
        how = signals.get(-ended.returncode, f"status {ended.returncode}")
        raise RunError(
            f"{old}: reading it ended with {how}, at one of the limits on memory, time and disk"
        ) from None
    if "problem" in said:
        raise RunError(f"{old} {said['problem']}")
    return Imported(**said)


# -- in the child ---------------------------------------------------------------------------


class Refused(Exception):
    """Why the file is not read; the parent knows its name."""


def cut_off_network() -> bool:
    """A network of its own has no way out. Before anything starts a thread, or a plain user may
    not have one."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))


def set_limits(size: int, memory: int, seconds: float) -> None:
    """After torch is there, whose libraries alone take gigabytes of addresses."""
    here = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    most = here + 2 * size + memory
    for kind, limit in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_FSIZE, SWELL * size + DIRECTORY_BYTES),
        (resource.RLIMIT_NOFILE, HANDLES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def check_archive(old: Path) -> int:
    """Bytes of the records with numbers, by the directory alone. torch stores its records as they
    are: a compressed one, or more bytes than the file has, is no work of torch's."""
    try:
        with zipfile.ZipFile(old) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise Refused(
            f"is no archive of torch.save, is cut off, or is older than torch 1.6 ({error}); "
            "copy it again, or save it again with a newer torch"
        ) from None
    names = [record.filename for record in records]
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise Refused("holds compressed records, which torch does not write; it is not opened")
    if sum(record.file_size for record in records) > old.stat().st_size:
        raise Refused("claims more bytes than it has; it is not opened")
    if any("/code/" in name or name.endswith("constants.pkl") for name in names):
        raise Refused("is a program (TorchScript) and no checkpoint; it is not opened")
    pickles = [record for record in records if record.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > DIRECTORY_BYTES:
        raise Refused("is no checkpoint of torch.save: its directory is missing or too large")
    return sum(record.file_size for record in records if "/data/" in record.filename)


def load(old: Path) -> Any:
    """Weights-only: whatever the file names beside tensors is an error, and is not called."""
    import torch

    try:
        return torch.load(old, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise
    except Exception as error:  # torch raises many kinds
        text = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"class ([\w.]+)", text)
        if named:
            reason = f"names {named[1]}, which is no tensor; nothing was run and nothing is read"
            raise Refused(f"{reason}: {REMEDY}") from None
        raise Refused(f"cannot be read ({(text or repr(error)).splitlines()[0][:200]})") from None


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Everything that is no container, by the names that lead to it, joined by slashes."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)) and type(value).__name__ in ("list", "tuple"):
        items = enumerate(value)
    else:
        yield name or "value", value
        return
    if depth == DEPTH:
        raise Refused(f"holds containers within containers, more than {DEPTH} deep, at {name[:80]}")
    for key, item in items:
        if type(key) not in (str, int):
            raise Refused(f"has a name that is {type(key).__name__} and no text, in {name[:80]}")
        yield from leaves(item, f"{name}/{key}" if name else str(key), depth + 1)


def sorted_out(content: Any, most: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and plain values by name; anything else is refused."""
    from torch import Tensor, device, dtype

    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    total = 0
    for count, (name, value) in enumerate(leaves(content)):
        if count == ITEMS or name in tensors or name in values or name == "__metadata__":
            what = (
                f"more than {ITEMS:,} values" if count == ITEMS else f"the name {name[:80]} twice"
            )
            raise Refused(f"holds {what}; it is no plain checkpoint")
        if isinstance(value, Tensor):
            total += check_tensor(name, value)
            tensors[name] = value.detach()
        elif isinstance(value, (str, bytes)):
            long = f"{len(value)} bytes, not opened" if isinstance(value, bytes) else value[:SAID]
            values[name] = long
        elif value is None or isinstance(value, (bool, int, float)):
            values[name] = value if value is None or math.isfinite(value) else str(value)
        elif isinstance(value, (device, dtype)) or type(value).__name__ == "Size":
            values[name] = str(value)
        else:
            raise Refused(f"holds a {type(value).__name__} at {name[:80]}, which is no tensor")
    if not tensors:
        raise Refused("holds no tensors")
    if total > most:
        raise Refused(f"holds tensors of {total:,} bytes, more than {SWELL} times its own size")
    return tensors, values


def check_tensor(name: str, tensor: Any) -> int:
    """Its bytes. One that is spread over fewer bytes than it has values was made to swell."""
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise Refused(f"holds {name[:80]}, which is sparse, quantised or without values")
    size = tensor.numel() * tensor.element_size()
    if size > tensor.untyped_storage().nbytes():
        raise Refused(f"claims {size:,} bytes for {name[:80]}, more than are stored for it")
    return size


def check_storages(tensors: Mapping[str, Any], stored: int) -> None:
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    if sum(held.values()) > stored:
        raise Refused("claims more bytes for its tensors than their records have")


def write(out: Path, old: Path, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    from quintet.engine.runs.checkpoint import write_safetensors
    from quintet.files import digest_of, write_json

    path = out / "tensors.safetensors"
    digest = write_safetensors(path, tensors)
    shapes = {
        name: {"shape": list(tensor.shape), "type": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in tensors.items()
    }
    source = {"file": old.name, "bytes": old.stat().st_size, "sha256": digest_of(old)}
    page = {"from": source, "sha256": digest, "tensors": shapes, "values": dict(values)}
    write_json(out / "listing.json", page)
    return path.stat().st_size


def read_and_write(asked: Mapping[str, Any]) -> Imported:
    offline = cut_off_network()
    for needed in ("torch", "quintet.engine.runs.checkpoint"):
        importlib.import_module(needed)
    old, out = Path(asked["old"]), Path(asked["out"])
    size = old.stat().st_size
    set_limits(size, asked["memory"], asked["seconds"])
    stored = check_archive(old)
    tensors, values = sorted_out(load(old), SWELL * size)
    check_storages(tensors, stored)
    return Imported(len(tensors), write(out, old, tensors, values), len(values), offline)


def main() -> None:
    try:
        said = read_and_write(json.loads(sys.argv[1]))._asdict()
    except Refused as refused:
        said = {"problem": "".join(c if c.isprintable() else "�" for c in str(refused))}
    except MemoryError:
        said = {"problem": "needs more memory than it may; raise --memory-gb if you trust it"}
    except (RunError, OSError) as error:
        said = {"problem": f"cannot be imported: {error}"}
    sys.stdout.write(f"\n{json.dumps(said)}\n")
    sys.stdout.flush()
    os._exit(0)  # nothing of what was read may act as the interpreter ends


if __name__ == "__main__":
    main()
