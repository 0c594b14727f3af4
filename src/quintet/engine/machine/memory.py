"""How much memory there is, how much is in use, and whether an error means that it ran out."""

import os
import resource
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
# Limits and use of a container, of cgroups' second and first version.
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Storage size calculation overflowed",
)


def ran_out(error: BaseException) -> bool:
    """Whether the error says that memory, of the device or of the host, was used up."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(s in str(error) for s in MESSAGES)


def total() -> int:
    """Bytes of the machine, or of the container where it has fewer."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _groups())])


def available() -> int:
    """Bytes that this process could still take."""
    limits = [_lines(Path("/proc/meminfo")).get("MemAvailable", total())]
    limits += [limit - used for limit, used in _groups()]
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        limits.append(space - _lines(STATUS).get("VmSize", 0))
    return max(0, min(limits))


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return _lines(STATUS).get("VmRSS", peak())


def peak() -> int:
    """The most that were, since the process began or since `forget_peak`."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _lines(STATUS).get("VmHWM", most if sys.platform == "darwin" else most * 1024)


def forget_peak() -> None:
    """Where the system allows it, and it does on Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def _lines(path: Path) -> dict[str, int]:
    """`Name:   123 kB` as bytes by name."""
    try:
        rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1:] == ["kB"]}
    except (OSError, ValueError, IndexError):
        return {}


def _groups() -> list[tuple[int, int]]:
    groups: list[tuple[int, int]] = []
    for limit, used in GROUPS:
        try:
            groups.append((int(Path(limit).read_text()), int(Path(used).read_text())))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return groups
