"""Exact resume for any training loop: the engine's stream of keyed samples, as a data loader."""

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import default_collate

from quintet.engine.data.plans import CountPlan, order_of
from quintet.engine.data.source import as_source
from quintet.engine.data.stream import Stream
from quintet.engine.data.workers import TIMEOUT
from quintet.engine.errors import RunError
from quintet.engine.keys import preserved_generators
from quintet.suggest import in_python

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """The seat of a loader outside of a run."""

    rank: int
    size: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    def place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


class KeyedLoader:
    """Batches of a map-style data set in a shuffled order that resumes exactly.

    The order, and the seeds of Python, numpy and torch while a sample is read, are functions of
    `seed`, the epoch and the sample. The state is therefore one number, the samples that all
    processes have consumed, and does not depend on the number of workers or processes.

    A step consumes `batch_size` x `accumulate` samples on each process, and this global batch has
    to stay the same when a state is loaded. Epochs are concatenated, so that no batch is short.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        accumulate: int = 1,
        workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        device: str | torch.device = "cpu",
        rank: int | None = None,
        processes: int | None = None,
        data_timeout: float = TIMEOUT,
    ):
        """`rank` and `processes` are those of torch.distributed, or of the launcher. Batches are
        copied to `device` while the last step still computes."""
        source, seat = as_source(dataset), _seat(rank, processes, torch.device(device))
        self.dataset, self.batch_size, self.accumulate = dataset, batch_size, accumulate
        self.seed, self.size = seed, len(source)
        self._made_of = f"batch_size {batch_size} x accumulate {accumulate} x {seat.size} processes"
        self.global_batch = batch_size * accumulate * seat.size
        if not 0 < self.global_batch <= self.size:
            raise RunError(
                f"the data has {self.size} samples, but a step takes {self.global_batch} "
                f"({self._made_of}); set batch_size so that a step takes 1 to {self.size}"
            )
        self._stream = Stream(
            source,
            collate_fn,
            CountPlan(self.size, seed, batch_size, order_of(source, seed)),
            seat,
            seed=seed,
            accumulate=accumulate,
            workers=workers,
            timeout=data_timeout,
        )
        # Workers ignore the signal that Python sends them at its end, and then waits for.
        weakref.finalize(self, self._stream.close)

    @property
    def step(self) -> int:
        """Steps that were handed out, since the beginning of the training."""
        return self._stream.position // self.global_batch

    def seek(self, step: int) -> None:
        self._stream.seek(step * self.global_batch)

    def steps(self, until: int) -> Iterator[list[Any]]:
        """This process's micro-batches of each step, from here to step `until`."""
        while self.step < until:
            yield self._take()

    def __len__(self) -> int:
        """Micro-batches of a pass."""
        return self.size // self.global_batch * self.accumulate

    def __iter__(self) -> Iterator[Any]:
        """The micro-batches from here to the end of a pass, as long as an epoch without its last
        short batch; the next pass begins with those samples."""
        steps_of_pass = self.size // self.global_batch
        passes = self.step // steps_of_pass
        for batches in self.steps(steps_of_pass * (passes + 1)):
            yield from batches

    def samples(self, step: int) -> list[int]:
        """Indices of the samples of a step, over all processes; no data is read."""
        requests = self._stream.requests_at(step * self.global_batch)
        return [request.sample for request in requests]

    def state_dict(self) -> dict[str, int]:
        return {"samples": self._stream.position, **self._fixed()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the last step that was handed out when the state was taken."""
        for name, value in self._fixed().items():
            if state[name] != value:
                made_of = f" ({self._made_of})" if name == "global_batch" else ""
                raise RunError(
                    f"the state of the data has {name} {state[name]}, this loader {value}{made_of}:"
                    f" the order would be another one; make a loader whose {name} is {state[name]}"
                )
        self._stream.seek(state["samples"])

    def close(self) -> None:
        """Stop the workers; they start again when needed."""
        self._stream.close()

    def _fixed(self) -> dict[str, int]:
        return {"global_batch": self.global_batch, "size": self.size, "seed": self.seed}

    def _take(self) -> list[Any]:
        try:
            with preserved_generators():  # without workers, samples are read in this process
                batches = self._stream.take(self.accumulate)
        except RunError as error:
            raise RunError(in_python(str(error))) from None
        for damaged in self._stream.damaged:
            log.warning("%s was replaced by another one: %s", damaged.name, damaged.reason)
        self._stream.damaged.clear()
        return [batch.data for batch in batches]


def _seat(rank: int | None, processes: int | None, device: torch.device) -> Process:
    if (rank is None) != (processes is None):
        raise RunError("give both rank and processes, or neither")
    if rank is None or processes is None:
        if dist.is_available() and dist.is_initialized():
            rank, processes = dist.get_rank(), dist.get_world_size()
        else:
            rank = int(os.environ.get("RANK", 0))
            processes = int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < processes:
        raise RunError(f"rank is {rank} of {processes} processes; give 0 to {processes - 1}")
    return Process(rank, processes, device)
