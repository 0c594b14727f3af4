"""Shared code of the speed benchmarks: timed engine steps, and comparison with another package.

Every row has the milliseconds and kernels of a step, the share of the time in which the GPU is
busy, and the seconds to the tenth step, counted from an empty run, after imports.
"""

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from goals import missed
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run

WARM_UP = 20
"""Further steps: every kind of step, with and without penalties, has been captured."""


def matrix_rate(device: torch.device, size: int) -> float:
    """Floating-point operations per second of a product of random matrices: in bf16 on a GPU, and
    in fp32 on a CPU, which may have no bf16 and take seconds for each."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        a @ b
    seconds = measured(lambda: a @ b, 10, device)
    return 2 * size**3 / seconds


def measured(call: Any, times: int, device: torch.device) -> float:
    synchronise(device)
    begin = time.perf_counter()
    for _ in range(times):
        call()
    synchronise(device)
    return (time.perf_counter() - begin) / times


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed_steps(make: Callable[[], Run], steps: int, what: str) -> dict[str, Any]:
    """Speed, memory and waiting of a run's own steps; `what` is what its samples are called."""
    begin = time.perf_counter()
    run = make()
    device, batch = run.world.device, run.recipe.batch_size
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(10 if on_gpu else 2):
        take_step(run)
    synchronise(device)
    warmed = time.perf_counter() - begin
    for _ in range(WARM_UP if on_gpu else 0):
        take_step(run)
    synchronise(device)
    run.stream.waited = 0.0
    seconds = measured(lambda: take_step(run), steps, device)
    row: dict[str, Any] = {
        "precision": run.world.precision,
        "compiled": run.world.compiles,
        "batch": batch,
        f"{what}_per_second": batch / seconds,
        "ms_per_step": seconds * 1e3,
        "seconds_to_tenth_step": round(warmed, 1),
        "waiting": run.stream.waited / (seconds * steps),
        "parameters_m": {
            n: round(sum(p.numel() for p in part.parameters.values()) / 1e6, 1)
            for n, part in run.parts.items()
        },
    }
    if on_gpu:
        row["gib"] = torch.cuda.max_memory_allocated() / 2**30
        row |= busy(run, seconds * 1e3, longest=8)
    run.close()
    return row


def busy(run: Run, ms: float, longest: int = 0, steps: int = 8) -> dict[str, Any]:
    """Kernels of a step, their share of its time, and the `longest`: milliseconds a step, count and
    name."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            take_step(run)
        torch.cuda.synchronize()
    kernels = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    times: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        times[event.name].append(event.device_time)
    totals = sorted(((sum(found), len(found), name) for name, found in times.items()), reverse=True)
    first = [
        [round(us / 1e3 / steps, 3), n / steps, name[:120]] for us, n, name in totals[:longest]
    ]
    gpu_ms = sum(e.device_time for e in kernels) / 1e3 / steps
    return {
        "gpu_ms": round(gpu_ms, 2),
        "busy": round(gpu_ms / ms, 3),
        "kernels": len(kernels) // steps,
        **({"longest": first} if first else {}),
    }


def counted_flops(run: Run, steps: int, attention: bool = True) -> float:
    """Floating-point operations of a step and sample, counted by torch, averaged over these steps:
    penalties are due at some of them only."""
    with FlopCounterMode(display=False) as counter:
        for _ in range(steps):
            take_step(run)
    counts = counter.get_flop_counts().get("Global", {}).items()
    total = sum(n for operation, n in counts if attention or "attention" not in str(operation))
    return total / steps / run.recipe.batch_size


def last_json(command: list[str]) -> dict[str, Any]:
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


class Sides:
    """A task at several sizes, in bf16 and eager fp32, and another package where asked for."""

    def __init__(self, name: str, what: str, batch_size: int, floor: float):
        self.name, self.what, self.floor = name, what, floor
        parser = argparse.ArgumentParser()
        sizes = ("peer", "layers", "recipe", "tiny")
        parser.add_argument("--size", nargs="+", default=["peer", "recipe"], choices=sizes)
        parser.add_argument("--batch-size", type=int, default=batch_size, help="at the peer's size")
        parser.add_argument("--steps", type=int, default=16)
        parser.add_argument("--workers", type=int, default=8)
        parser.add_argument(
            "--eager", action="store_true", help="also fp32, neither compiled nor captured"
        )
        parser.add_argument("--peer", help="the other package's benchmark command")
        self.options = parser.parse_args()
        # First, because what this process holds of the device would not be there for the other.
        self.peer = last_json(shlex.split(self.options.peer)) if self.options.peer else None

    def run(
        self,
        recipe_of: Callable[[str], Any],
        operations: Callable[[Any], Mapping[str, float]],
        speed: Callable[[Any, int], dict[str, Any]],
    ) -> None:
        """Prints a JSON line for each size. `operations` counts `step`, those of a sample, and may
        time more; exits with 1 where the other package is less than `floor` times slower,
        or a goal is missed."""
        rate, ours, lacking = None, 0.0, False
        for size in self.options.size:
            recipe = self.sized(recipe_of(size), size)
            device = World(recipe).device
            rate = rate or matrix_rate(device, 8192 if device.type == "cuda" else 1024)
            counted = dict(operations(recipe))
            step = counted.pop("step")
            eager = {"precision": "fp32", "compile": "off", "capture": False}
            sides = [recipe, dataclasses.replace(recipe, **eager)]
            for side in sides[: 1 + self.options.eager]:
                row = speed(side, self.options.steps)
                found = row[f"{self.what}_per_second"]
                ours = found if side is recipe and size in ("peer", "tiny") else ours
                row |= {"step_gflop": step / 1e9, "matrix_tflops": rate / 1e12, **counted}
                row["share_of_matrix_rate"] = found * step / rate
                if side is recipe and device.type == "cuda" and size in ("peer", "layers"):
                    row["missed"] = missed(self.name, row)
                    lacking = lacking or bool(row["missed"])
                print(json.dumps({"benchmark": self.name, "size": size, **row}), flush=True)
        if self.peer is not None:
            ratio = ours / self.peer["samples_per_s"]
            print(json.dumps({"benchmark": self.name, "peer": self.peer, "ratio": ratio}))
            lacking = lacking or ratio < self.floor
        sys.exit(1 if lacking else 0)

    def sized(self, recipe: Any, size: str) -> Any:
        """The recipe's own batch at its own size."""
        options = self.options
        batch = recipe.batch_size if size == "recipe" else options.batch_size
        changes = {"batch_size": batch, "workers": options.workers, "steps": 10**6}
        return dataclasses.replace(recipe, trackers=(), **changes)
