"""Training on several GPUs: how fast, and how much the processes send each other.

    python benchmarks/scaling.py table                        # on a machine with several GPUs
    python benchmarks/scaling.py traffic image/vqgan --fsdp   # anywhere: processes on the CPU

`table` trains each recipe with 1, 2, 4, … processes for `--seconds` each (ten minutes in all on
eight GPUs) and prints a Markdown table: samples per second, and the share of that many times one
GPU. The batch of a process stays that of the recipe; with `--same-batch` the global batch does.

`traffic` takes steps of a recipe with a small batch and prints one JSON line: the collectives of a
step, their bytes, and which share of their time a process was computing in.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from provenance import commit

from quintet import rooms
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import each_setting

RECIPES = {
    "image/vqgan": (),
    "image/flow": ("--tokenizer", "pixels"),
    "video/tokenizer": (),
    "mesh/autoencoder": (),
    "music/mulan": (),
}
"""Those of the table, with what they need to start from nothing."""
WARM_UP, PROFILED = 3, 2
Span = tuple[float, float]


# -- speed ------------------------------------------------------------------------------------


def torchrun(processes: int) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", str(processes)]


def speed(name: str, processes: int, asked: argparse.Namespace, place: Path) -> float:
    """Samples per second: the median of the second half of the reports."""
    run = place / f"{name.replace('/', '-')}-{processes}"
    words = ["train", name, *RECIPES.get(name, ()), "--run", str(run), "--evaluate-every", "0"]
    words += ["--save-every", "0", "--steps", "1000000", "--minutes", str(asked.seconds / 60)]
    words += ["--trackers"]
    if asked.same_batch:
        batch = rooms.recipe_function(name)().batch_size
        words += ["--batch-size", str(max(1, batch // processes))]
    if asked.fsdp:
        words += ["--fsdp"]
    command = [*torchrun(processes), "-m", "quintet", "--", *words, *asked.flags.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{name} on {processes}: {(ended.stdout + ended.stderr)[-2000:]}")
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    speeds = [report["samples_per_second"] for report in reports if "samples_per_second" in report]
    if len(speeds) < 4:
        raise SystemExit(f"{name} on {processes}: {len(speeds)} reports; give more --seconds")
    return median(speeds[len(speeds) // 2 :])


def table(asked: argparse.Namespace) -> int:
    most = torch.cuda.device_count() or (2 if asked.cpu else 0)
    if not most:
        raise SystemExit("there is no GPU here: `traffic` runs on a CPU, and --cpu tries this one")
    counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{kind}, torch {torch.__version__}, commit {asked.commit}, {asked.seconds} s each\n")
    print("| recipe | " + " | ".join(f"{count} processes" for count in counts) + " |")
    print("|---|" + "---|" * len(counts), flush=True)
    with tempfile.TemporaryDirectory() as place:
        for name in asked.recipes or RECIPES:
            speeds = [speed(name, count, asked, Path(place)) for count in counts]
            cells = [
                f"{value:,.1f} ({value / speeds[0] / count:.0%})"
                for value, count in zip(speeds, counts)
            ]
            print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
    return 0


# -- traffic ----------------------------------------------------------------------------------


def worker(asked: argparse.Namespace) -> int:
    """One process of `traffic`."""
    changes = {"adversarial_from": 0.0, "builtin_count": 64, "valid_limit": 2, "text": "bytes"}
    recipe = rooms.recipe_function(asked.recipe)()
    recipe = each_setting(recipe, lambda f, value: changes.get(f.name, value))
    own = {"tokenizer": "pixels"} if "--tokenizer" in RECIPES.get(asked.recipe, ()) else {}
    recipe = replace(
        recipe,
        device="cpu",
        precision="fp32",
        compile="off",
        workers=0,
        trackers=(),
        batch_size=asked.batch_size,
        accumulate=asked.accumulate,
        fsdp=asked.fsdp,
        **own,
    )
    world = World(recipe)
    folder = RunFolder.create(asked.out / f"process-{world.rank}", {"settings": {}})
    run = Run(rooms.build(recipe), recipe, world, folder)
    for _ in range(WARM_UP):
        take_step(run)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for _ in range(PROFILED):
            take_step(run)
    if world.is_main:
        parameters = {
            name: sum(p.numel() for p in part.parameters.values())
            for name, part in run.parts.items()
        }
        found = traffic_of(profiled.events(), world.size)
        (asked.out / "traffic.json").write_text(json.dumps({"parameters": parameters, **found}))
    run.close()
    return 0


def traffic_of(events: Iterable[Any], processes: int) -> dict[str, Any]:
    """Collectives of a step: how many, the bytes of their tensors, and the overlap."""
    counts: dict[str, int] = defaultdict(int)
    elements: dict[str, int] = defaultdict(int)
    sending: list[Span] = []
    working: list[Span] = []
    for event in events:
        span = event.time_range.start, event.time_range.end
        if event.name.startswith("gloo:"):
            name = event.name.removeprefix("gloo:")
            counts[name] += 1
            sizes = [torch.Size(shape).numel() for shape in event.input_shapes if shape]
            elements[name] += max(sizes, default=0)
            if max(sizes, default=0) > 1024:  # others are counters and losses
                sending.append(span)
        elif event.name.startswith("aten::") and event.cpu_parent is not None:
            working.append(span)
    total = sum(end - begin for begin, end in sending)
    return {
        "processes": processes,
        "collectives": {name: count / PROFILED for name, count in counts.items()},
        "megabytes": {name: round(n * 4 / PROFILED / 1e6, 3) for name, n in elements.items()},
        "overlap": round(shared(sending, union(working)) / total, 2) if total else None,
    }


def union(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans that cover the same times, in order."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def shared(spans: Sequence[Span], disjoint: Sequence[Span]) -> float:
    """Time of the spans that also lies in the others."""
    return sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in spans
        for other_begin, other_end in disjoint
    )


def traffic(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        words = ["worker", asked.recipe, "--out", place, "--batch-size", str(asked.batch_size)]
        words += ["--accumulate", str(asked.accumulate), *(["--fsdp"] if asked.fsdp else [])]
        command = [*torchrun(asked.processes), __file__, *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
        found = json.loads((Path(place) / "traffic.json").read_text(encoding="utf-8"))
    way = "fsdp" if asked.fsdp else "ddp"
    print(json.dumps({"recipe": asked.recipe, "way": way, "accumulate": asked.accumulate, **found}))
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    speeds = verbs.add_parser("table", help="speed with 1, 2, 4, … processes")
    speeds.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"by default {[*RECIPES]}")
    speeds.add_argument("--seconds", type=float, default=25, help="of each run, from its start")
    speeds.add_argument("--same-batch", action="store_true", help="divide the recipe's batch")
    speeds.add_argument("--flags", default="", help="further settings of all runs")
    speeds.add_argument("--cpu", action="store_true", help="without a GPU, one and two processes")
    speeds.add_argument("--commit", default=commit(), help="of a copy without git's history")
    speeds.set_defaults(run=table)
    for verb in (traffic, worker):
        counting = verbs.add_parser(verb.__name__)
        counting.add_argument("recipe")
        counting.add_argument("--batch-size", type=int, default=2, help="of a process")
        counting.add_argument("--accumulate", type=int, default=1)
        counting.add_argument("--processes", type=int, default=2)
        counting.add_argument("--out", type=Path)
        counting.set_defaults(run=verb)
    for verb in verbs.choices.values():
        verb.add_argument("--fsdp", action="store_true", help="shard the weights")
    asked = parser.parse_args()
    sys.exit(asked.run(asked))


if __name__ == "__main__":
    main()
