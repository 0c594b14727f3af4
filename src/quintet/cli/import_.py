"""`quintet import`."""

import dataclasses
from pathlib import Path

import tyro

from quintet.cli.common import parse
from quintet.cli.export import check_new_folder
from quintet.engine.errors import RunError
from quintet.files import atomic_folder


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


def import_old(argv: list[str]) -> None:
    from quintet.engine.models.importing import Limits, import_weights

    args = parse(Import, argv, "import")
    for name in ("max_gb", "memory_gb", "minutes"):
        if not 0 < getattr(args, name) < 1e6:
            flag = name.replace("_", "-")
            raise RunError(f"--{flag} is {getattr(args, name)}; give more than 0, and a number")
    check_new_folder(args.out)
    gigabyte = 1_000_000_000
    sizes = int(args.max_gb * gigabyte), int(args.memory_gb * gigabyte)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(args.out) as partial:
        result = import_weights(args.old, partial, Limits(*sizes, args.minutes * 60))
    network = "without a network" if result.offline else "with limits, but not off the network"
    print(
        f"{result.tensors} tensors, {result.bytes / 1e6:.1f} MB, and {result.values} other values, "
        f"read {network}\n"
        f"{args.out / 'tensors.safetensors'} holds them under their old names; "
        f"{args.out / 'listing.json'} lists names and shapes"
    )
