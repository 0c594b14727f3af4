"""The contract: what a room says to the engine (parts, updates, data, measures, exhibits), and what
it may ask of it (a World, a StepContext). Imports nothing of the machine."""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from quintet.engine.config import OptimizerConfig
from quintet.engine.data.plans import Plan
from quintet.engine.keys import fold, keyed_normal, normal
from quintet.engine.when import ALWAYS, When

Loss = tuple[Tensor, Mapping[str, Tensor]]
T = TypeVar("T")


class World(Protocol):
    """The device and the processes, as tasks and losses see them."""

    @property
    def device(self) -> torch.device: ...

    rank: int
    size: int
    is_main: bool
    compiles: bool
    """Whether networks may be compiled."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, on every process."""
        ...

    def gather(self, value: Tensor) -> Tensor:
        """Rows of all processes in order of rank (equal shapes), without gradients."""
        ...

    def gather_objects(self, value: Any) -> list[Any]:
        """Plain values of all processes in order of rank; never on the hot path."""
        ...

    def on_main(self, work: Callable[[], T], expected: tuple[type[Exception], ...] = ()) -> T:
        """What the main process computes, on every process; where it fails, all fail alike."""
        ...

    def barrier(self) -> None: ...

    def seed(self, number: int) -> None:
        """Seed the generators of the host and of this device."""

    def generator_states(self) -> Hashable:
        """States of the generators that a step could draw from."""
        ...


Monitor = Callable[[Mapping[str, float]], str | None]
"""A sentence that names the cause, or None; called with every report and evaluation."""


@dataclass
class Batch:
    """One micro-batch of one process, on the device."""

    data: Any
    """What the task's `collate` made of the samples."""
    ids: list[int]
    """Which samples of the data set these are."""
    keys: Tensor
    """One 63-bit key per sample: (seed, epoch, sample); for `keys.uniform` and `keys.normal`."""

    @property
    def size(self) -> int:
        return len(self.ids)


def shapes(data: Any) -> Hashable:
    """Shapes of tensors, and other values as they are; texts do not count: no loss reads them."""
    if isinstance(data, Tensor):
        return tuple(data.shape), data.dtype, data.stride()
    if isinstance(data, dict):
        return tuple((name, shapes(value)) for name, value in data.items())
    if isinstance(data, (list, tuple)):
        return tuple(shapes(value) for value in data)
    return None if isinstance(data, str) else data


class StepScalars:
    """Numbers that follow from the step, as tensors on the device."""

    def __init__(self, device: torch.device):
        self.device = device
        self.values: dict[str, Tensor] = {}
        self.functions: dict[str, Callable[[int], float | int]] = {}

    def set(self, step: int) -> None:
        for name, function in self.functions.items():
            self.values[name].fill_(function(step))

    def get(self, name: str, function: Callable[[int], float | int], step: int) -> Tensor:
        """The tensor of a name; its function is the same at every step."""
        if name not in self.values:
            value = function(step)
            dtype = torch.int64 if isinstance(value, int) else torch.float32
            self.values[name] = torch.full((), value, dtype=dtype, device=self.device)
        self.functions[name] = function
        return self.values[name]


@dataclass
class StepContext:
    """Where the run stands while one step is taken."""

    step: int
    seed: int
    samples: int
    """Samples in this step's batch over all micro-batches and processes."""
    world: World
    skipped: Tensor
    """1 on the device if the update just applied was not finite and was dropped, else 0."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """Detached tensors that one update leaves for a later one; new at every step."""
    update_index: int = 0
    """Which update of the step this is; two updates of one part draw different dropout."""
    step_scalars: StepScalars | None = None
    """On a GPU: what follows from the step enters as tensors, so that the step can be captured."""
    whens: dict[When, None] = field(default_factory=dict)
    """Cadences that were asked for, here and in earlier steps."""
    watched: bool = False
    """Whether to find out if the step draws from generators, as dropout does: `drew`."""
    drew: bool = False

    @contextmanager
    def keyed(self, index: int) -> Generator[None, None, None]:
        """Dropout inside networks follows from where it happens, not from what ran before."""
        if self.step_scalars is not None and torch.cuda.is_current_stream_capturing():
            yield  # only steps that draw nothing are captured
            return
        self.world.seed(fold(self.seed, self.step, self.update_index, index, self.world.rank))
        before = self.world.generator_states() if self.watched else None
        yield
        self.drew = self.drew or (self.watched and before != self.world.generator_states())

    def due(self, when: When) -> bool:
        """Whether a cadence is due; steps with other answers are captured apart."""
        self.whens.setdefault(when)
        return when.due(self.step)

    def step_scalar(self, name: str, function: Callable[[int], float]) -> Any:
        """A number that follows from the step: a float, or a tensor on a GPU. The name stands for
        the function, which is the same at every step."""
        if self.step_scalars is None:
            return function(self.step)
        return self.step_scalars.get(name, function, self.step)

    def noise(self, like: Tensor, name: str) -> Tensor:
        """Normal noise of the shape of a tensor, the same on every process."""
        seed, update_index = self.seed, self.update_index
        key = lambda step: fold(seed, step, update_index, name)
        if self.step_scalars is None:
            return keyed_normal(like, key(self.step))
        value = self.step_scalars.get(f"{update_index}/{name}", key, self.step)
        return normal(value[None], name, tuple(like.shape))[0].to(like.dtype)

    def sum(self, value: Tensor) -> Tensor:
        return self.world.sum(value)

    def gather(self, value: Tensor) -> Tensor:
        return self.world.gather(value)


@dataclass
class Part:
    """One named network. Without an optimizer it is a frozen helper that is never saved."""

    network: nn.Module
    optimizer: OptimizerConfig | None = None
    compiles: bool = True
    """Whether compiling it pays; a small network runs for less time than its compiling takes."""
    compiles_captured: bool = True
    """Whether compiling it pays although steps are captured as CUDA graphs."""
    extra_state: nn.Module | None = None
    """Statistics of training that are saved with the part but are not of the network."""


Losses = Callable[[Any, Sequence[Batch], StepContext], Iterator[Loss]]


@dataclass(frozen=True)
class Update:
    """One optimizer step of one part. `losses` yields one loss per micro-batch; together they
    are this process's share of the step's loss. No context may be held across a yield."""

    part: str
    losses: Losses
    when: When = ALWAYS


def each(loss: Callable[[Any, Any, StepContext], Loss]) -> Losses:
    """Lift a function of one batch, returning its mean over samples, to a share of the step."""

    def losses(nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        for batch in batches:
            value, metrics = loss(nets, batch, context)
            yield value * (batch.size / context.samples), metrics

    return losses


@dataclass(frozen=True)
class Tally:
    """A sum and what to divide it by; added up over batches and processes."""

    total: Tensor
    count: Tensor | int


@dataclass(frozen=True)
class Rows:
    """One row per sample; they reach `summarise` in the order of the data, each once."""

    values: Tensor


Measured = Mapping[str, Tally | Rows]


class Exhibit(Protocol):
    """Something for a person to look at or listen to; it writes itself."""

    name: str

    def write(self, folder: Path) -> list[Path]: ...


class Task(Protocol):
    parts: dict[str, Part]
    updates: list[Update]
    main: str
    """The part that users know as the model: what `load` and `export` give."""
    capturable: bool = False
    """Whether steps may be captured as CUDA graphs: the losses compute with the tensors of a batch
    alone, never read one on the host, and ask for cadences by `StepContext.due`."""
    best: tuple[str, str] | None = None
    """The measure that picks the best checkpoint, and whether `max` or `min` is better."""
    monitors: Sequence[Monitor] = ()

    def prepare(self, world: World) -> None:
        """Compute, once and on all processes together, what the data is made of; networks are on
        the device by then."""

    def data(self, split: str) -> Any:
        """The `train` or `valid` data set, or None where there is none to validate on."""
        ...

    def collate(self, items: list[Any]) -> Any: ...

    def plan(self, source: Any) -> Plan | None:
        """Another plan for batches, by length say; None for batches of batch_size samples."""
        return None

    def kind(self, batch: Batch) -> Hashable:
        """What of a batch decides which kernels run; for captured steps."""
        return shapes(batch.data)

    def check(self, data: Any) -> None:
        """Raise ValueError with the remedy if the first batch cannot be what the model expects."""

    def measure(self, nets: Any, batch: Batch) -> Measured:
        return {}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        return {name: values.double().mean().item() for name, values in rows.items()}

    def exhibit(self, nets: Any, batch: Batch) -> list[Exhibit]:
        return []
