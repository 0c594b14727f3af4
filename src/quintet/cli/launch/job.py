"""What the launchers of all clusters share: the job, and its command under torchrun."""

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated

import tyro

from quintet.cli.common import check_positive
from quintet.engine.errors import RunError
from quintet.suggest import command, words

PORT = 29500
RESTARTS = 3
"""Deaths of processes before torchrun gives up; a node that comes and goes counts as none."""
SPARE = 30
"""Seconds of `grace` that are left when torchrun kills what has not stopped."""


@dataclasses.dataclass(kw_only=True)
class Job(ABC):
    """Flags of every cluster. Settings of the recipe follow `--`."""

    recipe: Annotated[str, tyro.conf.Positional]
    """The recipe, e.g. image/vqgan."""
    run: PurePosixPath
    """Folder of the run, on storage that all nodes share; it is started or resumed."""
    data: str | None = None
    """Data folder, under the same path on every node; by default built-in data."""
    nodes: int = 1
    """Number of nodes."""
    gpus: int = 8
    """GPUs of each node, with a process each; 0 for one process on the CPU."""
    cpus: int = 12
    """CPU cores of each process: one trains, the others load data."""
    grace: int = 180
    """Seconds for a step, an evaluation and a checkpoint when the job is stopped."""
    name: str | None = None
    """Name of the job; by default that of the run's folder."""
    settings: tyro.conf.Suppress[tuple[str, ...]] = ()

    def check(self) -> None:
        for flag in ("nodes", "cpus"):
            check_positive(f"--{flag}", getattr(self, flag))
        if self.gpus < 0:
            raise RunError(f"--gpus is {self.gpus}; it must be 0 or more")
        if self.grace <= SPARE:
            raise RunError(f"--grace is {self.grace}; give more than {SPARE} seconds")

    @abstractmethod
    def text(self, arguments: Sequence[str]) -> str:
        """What the cluster reads; `arguments` are those of the command that wrote it."""

    @property
    def title(self) -> str:
        """A name that every cluster accepts."""
        name = re.sub(r"[^a-z0-9]+", "-", (self.name or self.run.name).lower()).strip("-")[:30]
        return name if name[:1].isalpha() else f"run-{name}".strip("-")

    @property
    def processes(self) -> int:
        """Of each node."""
        return max(1, self.gpus)

    @property
    def environment(self) -> dict[str, str]:
        return {
            # A launcher that returns after it was cut off would otherwise wait forever.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.grace - SPARE),
        }

    @property
    def training(self) -> list[str]:
        """The arguments of quintet: they start the run or resume it."""
        data = [self.data] if self.data else []
        fixed = ["--run", str(self.run), "--resume"]
        count = str(self.nodes * self.processes)
        return ["train", self.recipe, *data, *fixed, "--processes", count, *self.settings]

    @property
    def torchrun(self) -> list[str]:
        """Without the rendezvous, and without what it runs."""
        each = ["--nproc-per-node", str(self.processes), "--max-restarts", str(RESTARTS)]
        return ["torchrun", "--nnodes", str(self.nodes), *each, "--rdzv-backend", "c10d"]

    def script(self, endpoint: str, number: str) -> str:
        """The command of each node for a shell, which fills in endpoint and number."""
        rendezvous = f'--rdzv-endpoint "{endpoint}" --rdzv-id "{number}"'
        quintet = f"-m quintet -- {words(*self.training)}"
        return f"{words(*self.torchrun)} \\\n    {rendezvous} \\\n    {quintet}"


def header(arguments: Sequence[str], use: str) -> str:
    """The command that wrote a file, and what to do with it."""
    lines = [*command("launch", *arguments).splitlines(), "", use]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def mounts(volumes: Sequence[str], run: PurePosixPath) -> dict[str, str]:
    """Path by name of `NAME=/path`; the run must be in one of them, or it would be lost."""
    pairs = [volume.rpartition("=") for volume in volumes]
    for volume, (name, _, path) in zip(volumes, pairs):
        if not name or not path.startswith("/"):
            raise RunError(f"--volumes has {volume!r}; give NAME=/path")
    if not any(run.is_relative_to(path) for *_, path in pairs):
        raise RunError(
            f"--run is {run}, which no volume keeps when the job ends; give --volumes NAME=/path "
            "and a run under that path"
        )
    return {name: path for name, _, path in pairs}
