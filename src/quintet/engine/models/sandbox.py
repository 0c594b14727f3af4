"""A sandbox that reads `.pt` files, and writes their tensors as safetensors.

The only place that reads a pickle: with `weights_only`, torch's restricted reader that knows
tensors, containers and plain values and calls nothing that a file names, and in a child process
with limits on memory, time and disk, without new programs and, where the system allows it, without
network. The parent never opens the file.

    OLD.pt ─ child: limits ─> zip directory ─> torch.load(weights_only) ─> checks ─> NEW.safetensors

Files from before torch 1.6 are no archives but five pickles and then the numbers: LegacyFile limits
the pickles, and each storage is counted as it is claimed.
"""

import ctypes
import io
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
from typing import Any

from quintet.engine.errors import RunError

MAX_BYTES = 16_000_000_000
"""Maximum size of the file, checked before it is opened."""
MEMORY = 2_000_000_000
"""Maximum memory beyond the file itself, which is memory-mapped or, before torch 1.6, read once."""
SECONDS = 600
"""Until the process is killed."""
HANDLES = 64
"""Maximum number of open files."""
DEPTH = 32
"""Maximum nesting of containers."""
ITEMS = 200_000
"""Maximum number of values; a container that contains itself could hold billions."""
DIRECTORY_BYTES = 100_000_000
"""Maximum size of the pickle in the file, which holds names and shapes but no numbers."""
SWELL = 4
"""Maximum size of the tensors, in multiples of the file: tied ones are stored once."""

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of a file from before torch 1.6: a pickled magic number."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
REMEDY = "convert it where you trust it, with safetensors.torch.save_file(state_dict, path)"


def to_safetensors(old: Path, new: Path) -> bool:
    """Write the tensors of a .pt file, named by their keys joined by slashes. Returns whether the
    child process had no network."""
    size = old.stat().st_size
    if size > MAX_BYTES:
        raise RunError(f"{old} holds {size:,} bytes, more than {MAX_BYTES:,}: {REMEDY}")
    command = [sys.executable, "-P", "-m", "quintet.engine.models.sandbox"]
    paths = {"old": str(old.resolve()), "new": str(new.resolve())}
    request = json.dumps({**paths, "memory": MEMORY, "seconds": SECONDS})
    try:
        child = subprocess.run(
            [*command, request],
            capture_output=True,
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{old} was not read within {SECONDS:g} seconds: {REMEDY}") from None
    try:  # there is no last line if the child was killed
        result = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        signals = {number.value: number.name for number in signal.Signals}
        how = signals.get(-child.returncode, f"status {child.returncode}")
        raise RunError(
            f"{old}: reading it ended with {how}, at one of the limits on memory, time and disk"
        ) from None
    if "problem" in result:
        raise RunError(f"{old} {result['problem']}")
    return result["offline"]


# -- in the child ---------------------------------------------------------------------------


class Refused(Exception):
    """The reason why a file is not read; the parent adds its name."""


NO_DIRECTORY = "is not a checkpoint of torch.save: its directory is missing or too large"
TOO_LITTLE = "claims more bytes for its tensors than it has"


def cut_off_network() -> bool:
    """Enter a network namespace without interfaces. Must happen before any thread is started, or
    an unprivileged user may not."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))


def set_limits(size: int, memory: int, seconds: float) -> None:
    """After the import of torch, whose libraries alone map gigabytes of address space."""
    mapped = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    address_space = mapped + 2 * size + memory
    for kind, limit in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_FSIZE, SWELL * size + DIRECTORY_BYTES),
        (resource.RLIMIT_NOFILE, HANDLES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def check_archive(old: Path) -> int:
    """Bytes of the tensor records, from the zip directory. torch.save does not compress: compressed
    records, or more bytes than the file has, are not from torch."""
    try:
        with zipfile.ZipFile(old) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise Refused(
            f"is not a file of torch.save, or is truncated ({error}); copy it again"
        ) from None
    names = [record.filename for record in records]
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise Refused("holds compressed records, which torch does not write; it is not opened")
    if sum(record.file_size for record in records) > old.stat().st_size:
        raise Refused("claims more bytes than it has; it is not opened")
    if any("/code/" in name or name.endswith("constants.pkl") for name in names):
        raise Refused("is a program (TorchScript), not a checkpoint; it is not opened")
    pickles = [record for record in records if record.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > DIRECTORY_BYTES:
        raise Refused(NO_DIRECTORY)
    return sum(record.file_size for record in records if "/data/" in record.filename)


def read(old: Path) -> dict[str, Any]:
    """Tensors by name, of a file of either format."""
    size = old.stat().st_size
    with old.open("rb") as file:
        start = file.read(512)
    if start.startswith(LEGACY):
        return read_legacy(old, size)
    if start[257:262] == b"ustar":
        raise Refused(f"is a tar archive, as torch 0.1 wrote them; {REMEDY}")
    stored = check_archive(old)
    tensors = tensors_in(load(old, "cpu", mmap=True), SWELL * size)
    storages = (tensor.untyped_storage() for tensor in tensors.values())
    if sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) > stored:
        raise Refused("claims more bytes for its tensors than their records have")
    return tensors


class LegacyFile(io.BufferedReader):
    """The pickles of a file from before torch 1.6, which must end within DIRECTORY_BYTES. The
    numbers after them are read from the descriptor, not through these methods."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0 or self.tell() + size > DIRECTORY_BYTES:
            raise Refused(NO_DIRECTORY)
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(DIRECTORY_BYTES)
        if self.tell() > DIRECTORY_BYTES:
            raise Refused(NO_DIRECTORY)
        return line


def read_legacy(old: Path, size: int) -> dict[str, Any]:
    storages: dict[int, Any] = {}
    claimed = 0

    def claim(storage: Any, _location: str) -> Any:
        """Called for each storage before its numbers are read. A file may leave them out: zeros, so
        that no memory of this process is written in their place."""
        nonlocal claimed
        claimed += storage.nbytes()
        if claimed > size:
            raise Refused(TOO_LITTLE)
        storages[storage.data_ptr()] = storage
        return storage.fill_(0)

    with LegacyFile(old.open("rb", buffering=0)) as file:
        tensors = tensors_in(load(file, claim, mmap=False), SWELL * size)
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in storages:  # torch.FloatTensor(1000)
            raise Refused(f"holds {name[:80]}, which has no numbers in the file")
    return tensors


def load(file: Any, map_location: Any, mmap: bool) -> Any:
    """Load weights only: any other name in the file is an error, and is not called."""
    import torch

    try:
        return torch.load(file, map_location=map_location, weights_only=True, mmap=mmap)
    except (MemoryError, Refused):
        raise
    except Exception as error:  # torch raises many kinds
        text = str(error)
        if "DefaultCPUAllocator" in text:  # a storage, before it could be counted
            raise Refused(TOO_LITTLE) from None
        named = re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"class ([\w.]+)", text)
        if named:
            reason = f"names {named[1]}, which is not a tensor; nothing was run or read"
            raise Refused(f"{reason}: {REMEDY}") from None
        # torch begins with advice to read the file without protection.
        inner = re.search(r"WeightsUnpickler error:\s*(.+)", text)
        reason = inner[1] if inner else (text or repr(error)).splitlines()[0]
        if isinstance(error, EOFError):
            reason = "it ends too early"
        raise Refused(f"cannot be read ({reason.strip()[:200]})") from None


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All values that are no containers, by their keys joined by slashes."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)) and type(value).__name__ in ("list", "tuple"):
        items = enumerate(value)
    else:
        yield name or "value", value
        return
    if depth == DEPTH:
        raise Refused(f"holds containers nested more than {DEPTH} deep, at {name[:80]}")
    for key, item in items:
        if type(key) not in (str, int):
            raise Refused(f"has a name that is {type(key).__name__} and no text, in {name[:80]}")
        yield from leaves(item, f"{name}/{key}" if name else str(key), depth + 1)


def tensors_in(content: Any, max_bytes: int) -> dict[str, Any]:
    """Tensors by name; plain values beside them are left out."""
    from torch import Tensor

    tensors: dict[str, Any] = {}
    total = 0
    for count, (name, value) in enumerate(leaves(content)):
        if count == ITEMS:
            raise Refused(f"holds more than {ITEMS:,} values; it is not a plain checkpoint")
        if not isinstance(value, Tensor):
            continue
        if name in tensors or name == "__metadata__":
            raise Refused(f"holds the name {name[:80]} twice, or that name is reserved")
        total += check_tensor(name, value)
        tensors[name] = value.detach()
    if not tensors:
        raise Refused("holds no tensors")
    if total > max_bytes:
        raise Refused(f"holds tensors of {total:,} bytes, more than {SWELL} times its own size")
    return tensors


def check_tensor(name: str, tensor: Any) -> int:
    """The size of a tensor, which must not exceed its storage (as an expanded one does)."""
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise Refused(f"holds {name[:80]}, which is sparse, quantised or without values")
    size = tensor.numel() * tensor.element_size()
    if size > tensor.untyped_storage().nbytes():
        raise Refused(f"claims {size:,} bytes for {name[:80]}, more than are stored for it")
    return size


def main() -> None:
    result: dict[str, Any]
    try:
        request, result = json.loads(sys.argv[1]), {"offline": cut_off_network()}
        from quintet.engine.runs.checkpoint import write_safetensors  # and torch, before the limits

        old = Path(request["old"])
        set_limits(old.stat().st_size, request["memory"], request["seconds"])
        write_safetensors(Path(request["new"]), read(old))
    except Refused as refused:
        result = {"problem": "".join(c if c.isprintable() else "�" for c in str(refused))}
    except MemoryError:
        result = {"problem": f"needs more memory than its limit: {REMEDY}"}
    except (RunError, OSError) as error:
        result = {"problem": f"cannot be converted: {error}"}
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    sys.stdout.flush()
    os._exit(0)  # no finalizer of anything that was read may run


if __name__ == "__main__":
    main()
