"""`quintet import`."""

import dataclasses
from pathlib import Path

import tyro

from quintet.cli.export import complete_or_absent
from quintet.cli.words import parse
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Import:
    """Write the tensors of an old .pt file as safetensors, with a listing of names and shapes.

    Nothing in the file is run: it is read weights-only, by a process with limits on memory, time
    and disk. The names stay as they were; the tensors are not made into a model of Quintet.
    """

    old: tyro.conf.Positional[Path]
    """The .pt file, as torch.save wrote it."""
    out: tyro.conf.Positional[Path]
    """A new folder."""
    max_gb: float = 16.0
    """Gigabytes of the file; a larger one is refused."""
    memory_gb: float = 2.0
    """Gigabytes of memory that reading may take beside the file."""
    minutes: float = 10.0
    """How long it may take."""


def import_old(given: list[str]) -> None:
    from quintet.engine.importing import Limits, import_weights

    asked = parse(Import, given, "import")
    for name in ("max_gb", "memory_gb", "minutes"):
        if not 0 < getattr(asked, name) < 1e6:
            flag = name.replace("_", "-")
            raise RunError(f"--{flag} is {getattr(asked, name)}; give more than 0, and a number")
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise RunError(f"{asked.out} exists and is not empty; choose a new folder")
    gigabyte = 1_000_000_000
    sizes = int(asked.max_gb * gigabyte), int(asked.memory_gb * gigabyte)
    limits = Limits(*sizes, asked.minutes * 60)

    def write(aside: Path) -> list[str]:
        done = import_weights(asked.old, aside, limits)
        network = "without a network" if done.offline else "with limits, but not off the network"
        return [
            f"{done.tensors} tensors, {done.bytes / 1e6:.1f} MB, and {done.values} other values, "
            f"read {network}",
            f"{asked.out / 'tensors.safetensors'} holds them under their old names; "
            f"{asked.out / 'listing.json'} lists names and shapes",
        ]

    print("\n".join(complete_or_absent(asked.out, write)))
