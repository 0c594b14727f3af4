"""The machine: devices, processes, precision. The only file that imports accelerate.

Accelerate starts and wraps; it does not own the optimizer, the schedule or the data, because its
own versions of those step once per process and cannot be resumed exactly.
"""

import ctypes
import datetime
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Hashable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn

from quintet.engine.config import ConfigError, Recipe
from quintet.engine.errors import RunError
from quintet.engine.machine import fsdp, rendezvous
from quintet.engine.machine.regions import CompilesWhole, recompute, regions_of
from quintet.files import private_cache
from quintet.triton import has_compiler

T = TypeVar("T")
REGIONS = 64
"""Limit on shapes of compiled blocks; past the compiler's own limit of 8 it would silently run
uncompiled."""
ONE_CANDIDATE = {"triton.autotune_pointwise": False, "dynamic_scale_rblock": False}
"""For a network compiled whole: one candidate per pointwise kernel, and no second compilation of
a reduction with another block size."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


class World:
    def __init__(self, recipe: Recipe):
        wants_cpu = recipe.device == "cpu" or not torch.cuda.is_available()
        if recipe.device == "cuda" and wants_cpu:
            raise ConfigError("device is 'cuda', but torch sees no GPU; use --device cpu or auto")
        if PartialState._shared_state and not dist.is_initialized():
            AcceleratorState._reset_state(reset_partial_state=True)  # an earlier run's device
        options = DistributedDataParallelKwargs(
            broadcast_buffers=False, gradient_as_bucket_view=True
        )
        if rendezvous.is_needed():
            rendezvous.meet("gloo" if wants_cpu else "nccl")
        with quiet():
            self._accelerator = Accelerator(
                cpu=wants_cpu, mixed_precision="no", kwargs_handlers=[options]
            )
        self.device: torch.device = self._accelerator.device
        self.rank: int = self._accelerator.process_index
        self.size: int = self._accelerator.num_processes
        self.is_main: bool = self.rank == 0
        if recipe.processes not in (None, self.size):
            raise ConfigError(
                f"processes is {recipe.processes}, but {self.size} took part; "
                f"start with torchrun --nproc-per-node {recipe.processes} -m quintet -- train …"
            )
        on_gpu = self.device.type == "cuda"
        self.precision = _precision(recipe.precision, self.device)
        self.compiles: bool = recipe.compile == "on" or (
            recipe.compile == "auto" and on_gpu and has_compiler()
        )
        """Whether networks may be compiled; when, a run's Compiler decides."""
        if on_gpu or self.compiles:
            keep_compiled_code()
        self.captures = recipe.capture and on_gpu and self.size == 1
        """Whether steps of a task that allows it are captured as CUDA graphs."""
        self.deterministic = recipe.deterministic
        self.fsdp = recipe.fsdp
        self.recomputes = recipe.checkpoint_activations
        self._choose_kernels()
        self.use_precision(self.precision)
        # Signals travel over gloo, so that agreeing on them never waits for the GPU.
        self._side: Any = None
        if self.size > 1:
            self._side = dist.new_group(backend="gloo", timeout=datetime.timedelta(hours=2))
        self._pending: tuple[Any, Tensor] | None = None

    def _choose_kernels(self) -> None:
        # Setting it imports the compiler, which takes seconds.
        if self.deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(self.deterministic)
        torch.backends.cudnn.benchmark = not self.deterministic
        # Of its candidates, best guess first; trying all ten costs a network of many sizes half
        # a minute at the start, and steps with the best of four take no less time.
        torch.backends.cudnn.benchmark_limit = 2
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if self.device.type == "cpu":
            keep_freed_memory()

    def use_precision(self, precision: str) -> None:
        """Set both ways: an earlier run of this process may have allowed TF32."""
        self.precision = precision
        torch.set_float32_matmul_precision("high" if precision == "bf16" else "highest")

    def compile(self, network: nn.Module) -> int:
        """Only the blocks that the network names in `regions`, or whole if it names none; returns
        how many blocks.

        Blocks that are alike share one graph, where a graph of all of them takes minutes to
        compile. A network that `compiles_whole` is compiled by the block as well if it is sharded
        or recomputed, as there is work between the blocks.
        """
        torch._dynamo.config.recompile_limit = REGIONS
        whole = isinstance(network, CompilesWhole) and not (self.shards or self.recomputes)
        blocks = [] if whole else regions_of(network)
        for block in blocks:
            block.compile(dynamic=False)
        if not blocks:
            network.compile(dynamic=False, options=ONE_CANDIDATE)
        return len(blocks)

    @property
    def dtype(self) -> torch.dtype:
        """The type that parameters are kept in."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def place(self, tensor: Tensor) -> Tensor:
        """On the device; with fp64 floating ones are widened."""
        wide = self.precision == "fp64" and tensor.is_floating_point()
        return tensor.to(self.device, torch.float64 if wide else tensor.dtype, non_blocking=True)

    def place_module(self, module: nn.Module) -> nn.Module:
        return module.to(self.device, self.dtype if self.precision == "fp64" else None)

    @property
    def shards(self) -> bool:
        """Whether parts are sharded; a single process has nothing to share them with."""
        return self.fsdp and self.size > 1

    def recompute(self, network: nn.Module) -> None:
        if self.recomputes:
            recompute(network)

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.size == 1:
            return module
        if self.shards:
            return fsdp.shard(module, self.device, self.size)
        with quiet():
            return self._accelerator.prepare_model(module)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def seed(self, number: int) -> None:
        """Generators of the host and of this device. `torch.manual_seed` would, without a GPU,
        format a stack trace at every call: 112 microseconds instead of 2."""
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def generator_states(self) -> Hashable:
        """On a GPU: states of the generators that a step could draw from."""
        return (
            torch.cuda.default_generators[self.device.index or 0].get_offset(),
            torch.default_generator.get_state().numpy().tobytes(),
            random.getstate(),
            np.random.get_state()[1].tobytes(),  # type: ignore[index, union-attr]
        )

    def no_sync_but_last(
        self, wrapped: nn.Module, index: int, count: int
    ) -> AbstractContextManager[Any]:
        last = index == count - 1
        if self.shards:
            wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext() if last or self.shards else self._accelerator.no_sync(wrapped)

    def backward(self, loss: Tensor) -> None:
        # Wrapped gradients are averaged over processes; losses are shares, whose gradients add up.
        (loss * self.size if self.size > 1 else loss).backward()

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, on every process; the value itself is left alone."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: Tensor) -> Tensor:
        """Rows of all processes in order of rank (equal shapes), without gradients."""
        if self.size == 1:
            return value
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value.detach().contiguous())
        return torch.cat(parts)

    def gather_objects(self, value: Any) -> list[Any]:
        """Plain values of all processes in order of rank; for evaluation, never on the hot path."""
        if self.size == 1:
            return [value]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, value, group=self._side)
        return parts

    def from_main(self, value: Any) -> Any:
        """What the main process holds, on every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._side)
        return box[0]

    def on_main(self, work: Callable[[], T], expected: tuple[type[Exception], ...] = ()) -> T:
        """What the main process computes, on every process; where it fails, all fail alike.

        Of `expected` errors the sentence is enough: they become a RunError.
        """
        result = failure = None
        if self.is_main:
            try:
                result = work()
            except Exception as error:
                failure = RunError(str(error)) if isinstance(error, expected) else error
        message, result = self.from_main((failure and str(failure), result))
        if message is not None:
            raise failure or RunError(message)
        return result

    def agree(self, code: int) -> int:
        """The largest code that any process gave one call ago: nobody waits for the slowest."""
        if self.size == 1:
            return code
        agreed = self.settle()
        mine = torch.tensor([code])
        work = dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=self._side, async_op=True)
        self._pending = (work, mine)
        return agreed

    def settle(self) -> int:
        """The outcome of the exchange under way, if there is one; at the end none may be left."""
        if self._pending is None:
            return 0
        work, value = self._pending
        self._pending = None
        work.wait()
        return int(value)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self._side)


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Accelerate advises on threads that a launcher has set, and on a setting that it renamed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def shut_down() -> None:
    """At the end of a program: take the process group down without a warning."""
    if dist.is_available() and dist.is_initialized():
        with quiet():
            dist.destroy_process_group()
        PartialState._reset_state()
        AcceleratorState._reset_state()
        GradientState._reset_state()


def _precision(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return asked
    # Tiles multiply bf16 two to three times as fast as fp32; other CPUs only emulate it.
    tiles = device.type == "cpu" and torch.cpu._is_amx_tile_supported()
    return "bf16" if device.type == "cuda" or tiles else "fp32"


def keep_compiled_code() -> None:
    """Have Inductor and Triton keep their code in the user's cache, unless the environment names
    another folder. Inductor's default is under /tmp, which containers and restarts lose. Both write
    files under partial names, so several processes may share the folders."""
    # Once imported, Inductor puts its default into the environment.
    default = os.path.join(tempfile.gettempdir(), "torchinductor_")
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        named = os.environ.get(variable, default)
        folder = private_cache(f"compiled/{name}") if named.startswith(default) else None
        if folder is not None:
            os.environ[variable] = str(folder)


def keep_freed_memory() -> None:
    """Have glibc keep what a step frees for the next step, instead of handing it to the system.

    Otherwise every step faults the same pages in again: 1,300 to 3,600 faults and 5 to 8 ms of a
    step of 90 ms, measured on 2 cores. Buffers past 32 MiB, glibc's limit, still come and go.
    """
    if sys.platform == "linux":
        trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # musl has none
            libc.mallopt(trim_threshold, 1 << 30)
            libc.mallopt(mmap_threshold, 32 << 20)
