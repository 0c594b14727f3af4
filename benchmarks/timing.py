"""Shared code of the speed benchmarks: timed engine steps, and comparison with another package."""

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run


def matrix_rate(device: torch.device, size: int) -> float:
    """Floating-point operations per second of a bf16 product of random matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
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


def timed_steps(run: Run, steps: int, warm_up: int, what: str) -> dict[str, Any]:
    """Speed, memory and waiting of a run's own steps; `what` is what its samples are called."""
    device, batch = run.world.device, run.recipe.batch_size
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(warm_up):
        take_step(run)
    synchronise(device)
    warmed = time.perf_counter() - begin
    run.stream.waited = 0.0
    seconds = measured(lambda: take_step(run), steps, device)
    row: dict[str, Any] = {
        "precision": run.world.precision,
        "compiled": run.world.compiles,
        "batch": batch,
        f"{what}_per_second": batch / seconds,
        "ms_per_step": seconds * 1e3,
        "warm_up_s": warmed,
        "waiting": run.stream.waited / (seconds * steps),
        "parameters_m": {
            n: round(sum(p.numel() for p in part.parameters.values()) / 1e6, 1)
            for n, part in run.parts.items()
        },
    }
    if device.type == "cuda":
        row["gib"] = torch.cuda.max_memory_allocated() / 2**30
    run.close()
    return row


def last_json(command: list[str]) -> dict[str, Any]:
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


class Sides:
    """Compiled bf16 and eager fp32 of one task, and another package where it is asked for."""

    def __init__(self, name: str, what: str, batch_size: int, floor: float):
        self.name, self.what, self.floor = name, what, floor
        parser = argparse.ArgumentParser()
        parser.add_argument("--size", default="peer", choices=("peer", "recipe", "tiny"))
        parser.add_argument("--batch-size", type=int, default=batch_size)
        parser.add_argument("--steps", type=int, default=16)
        parser.add_argument("--workers", type=int, default=8)
        parser.add_argument("--no-eager", action="store_true")
        parser.add_argument("--peer", help="the other package's benchmark command")
        self.options = parser.parse_args()
        # First, because what this process holds of the device would not be there for the other.
        self.peer = last_json(shlex.split(self.options.peer)) if self.options.peer else None

    def run(
        self,
        recipe: Any,
        operations: Callable[[Any], Mapping[str, float]],
        speed: Callable[[Any, int], dict[str, Any]],
    ) -> None:
        """Prints a JSON line for each side. `operations` counts `step`, those of a sample, and may
        time more; exits with 1 where the other package is less than `floor` times slower."""
        options = self.options
        changes = {"batch_size": options.batch_size, "workers": options.workers, "steps": 10**6}
        base = dataclasses.replace(recipe, trackers=(), **changes)
        world = World(base)
        rate = matrix_rate(world.device, 8192 if world.device.type == "cuda" else 1024)
        counted = dict(operations(base))
        step = counted.pop("step")
        sides = [base]
        if not options.no_eager:
            sides.append(dataclasses.replace(base, precision="fp32", compile="off"))
        found: list[float] = []
        for side in sides:
            row = speed(side, options.steps)
            found.append(row[f"{self.what}_per_second"])
            row |= {"step_gflop": step / 1e9, "matrix_tflops": rate / 1e12, **counted}
            row["share_of_matrix_rate"] = found[-1] * step / rate
            print(json.dumps({"benchmark": self.name, "size": options.size, **row}), flush=True)
        if self.peer is not None:
            ratio = found[0] / self.peer["samples_per_s"]
            print(json.dumps({"benchmark": self.name, "peer": self.peer, "ratio": ratio}))
            sys.exit(1 if ratio < self.floor else 0)
