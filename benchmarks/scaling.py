"""Scaling model: predicted step time and efficiency for 1 to 1,024 GPUs.

    python benchmarks/scaling.py [--gpus 1 8 64 256 1024] [--nvlink 450] [--network 50] [--json]

Nothing is run. Compute is measured on one H200 (docs/performance.md), parameters are counted on the
meta device, bandwidths are arguments: GB per second and GPU, within a node of 8 and between nodes.
The batch per GPU is constant, so the step of one GPU is the ideal. Stragglers, storage and other
network traffic are ignored: these are upper bounds.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import music_speed
import speech_speed
import torch
from torch import nn

from quintet import rooms
from quintet.engine.machine.regions import regions_of
from quintet.mesh.transformer.config import MeshTransformerConfig
from quintet.mesh.transformer.model import MeshTransformer

BUCKET = 25e6
"""Bytes per DDP bucket; all but the last are reduced during the backward pass."""
FORWARD, BACKWARD = 1 / 3, 2 / 3
"""Fractions of the compute of a step."""
KEPT = 20
"""Bytes per parameter: weight, gradient, two moments and average in fp32."""


class Measured(NamedTuple):
    """A trainer on one H200, in bf16 and compiled."""

    networks: Callable[[], list[nn.Module]]
    batch: int
    per_second: float
    kilobytes: float
    """Stored size of a sample."""
    core: float | None
    """Samples that one core of a CPU reads and decodes in a second, where that was measured."""


def of_recipe(name: str, recipe: Any = None) -> list[nn.Module]:
    parts = rooms.build(recipe or rooms.recipe_function(name)()).parts.values()
    return [part.network for part in parts if part.optimizer is not None]


def transformer() -> list[nn.Module]:
    return [MeshTransformer(dataclasses.replace(MeshTransformerConfig(), text="none"))]


def speech() -> list[nn.Module]:
    recipe = speech_speed.with_aligner(speech_speed.recipe_of("peer"))
    return of_recipe("speech/voicebox", recipe)


TRAINERS = {
    "mesh/autoencoder": Measured(lambda: of_recipe("mesh/autoencoder"), 256, 5781, 15, None),
    "mesh/transformer": Measured(transformer, 32, 400, 15, None),
    "video/tokenizer": Measured(lambda: of_recipe("video/tokenizer"), 8, 162, 100, 1 / 0.058),
    "image/vqgan": Measured(lambda: of_recipe("image/vqgan"), 64, 1450, 40, 489 / 2),
    "music/mulan": Measured(
        lambda: of_recipe("music/mulan", music_speed.recipe_of("peer")), 256, 936, 320, None
    ),
    "speech/voicebox": Measured(speech, 64, 259, 512, None),
}


NOT_MEASURED = {
    "image/maskgit",
    "video/maskgit",
    "mesh/autoencoder_compact",
    "speech/vocoder",
    "speech/voicebox_medium",
}
"""Recipes whose step is still to be timed on one GPU (benchmarks/maskgit_speed.py,
benchmarks/steps.py, and for the vocoder benchmarks/learning.py)."""


class Sizes(NamedTuple):
    """Parameters of a trainer: all of them, those in blocks, and how many blocks there are."""

    parameters: int
    in_blocks: int
    blocks: int


@cache
def sizes_of(measured: Measured) -> Sizes:
    with torch.device("meta"):
        networks = measured.networks()
    blocks = [block for network in networks for block in regions_of(network)]
    return Sizes(_count(networks), _count(blocks), len(blocks))


def _count(modules: list[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters() if p.requires_grad)


class Network(NamedTuple):
    """GB per second and GPU, GPUs of a node, and seconds that a message takes at the least."""

    nvlink: float
    between: float
    node: int
    latency: float

    def exchange(self, size: float, gpus: int) -> float:
        """Seconds to gather so many bytes on all GPUs, or to sum and scatter them: first within
        nodes, then between them, where every GPU moves its own share."""
        inside = min(gpus, self.node)
        nodes = math.ceil(gpus / self.node)
        seconds = (inside - 1) / inside * size / (self.nvlink * 1e9)
        seconds += (nodes - 1) / nodes * size / inside / (self.between * 1e9)
        return seconds + self.latency * (math.log2(inside) + math.log2(nodes))


def copies(sizes: Sizes, compute: float, gpus: int, network: Network) -> float:
    """DDP: seconds of a step. Gradients are reduced during the backward pass, except for
    the last bucket."""
    size = 4 * sizes.parameters
    buckets = math.ceil(size / BUCKET)
    each = 2 * network.exchange(size / buckets, gpus)
    return compute + each + max(0.0, (buckets - 1) * each - BACKWARD * compute)


def shards(sizes: Sizes, compute: float, gpus: int, network: Network) -> float:
    """FSDP2: what is in no block is gathered before the forward and scattered after the backward,
    with nothing to hide behind; blocks are gathered in both and scattered meanwhile."""
    rest = 2 * network.exchange(4 * (sizes.parameters - sizes.in_blocks), gpus)
    if not sizes.blocks:
        return compute + rest
    each = network.exchange(4 * sizes.in_blocks / sizes.blocks, gpus)
    hidden = sizes.blocks - 1
    forward = each + max(0.0, hidden * each - FORWARD * compute)
    backward = each + max(0.0, 2 * hidden * each - BACKWARD * compute)
    return compute + rest + forward + backward


def state(sizes: Sizes, gpus: int) -> float:
    """GB of a GPU with shards: its share, what is in no block, and two blocks gathered."""
    block = sizes.in_blocks / sizes.blocks if sizes.blocks else 0
    whole = 4 * (sizes.parameters - sizes.in_blocks + 2 * block)
    return (KEPT * sizes.parameters / gpus + whole) / 1e9


def predicted(name: str, gpus: int, network: Network) -> dict[str, Any]:
    """One trainer on so many GPUs, by DDP and in shards."""
    measured, sizes = TRAINERS[name], sizes_of(TRAINERS[name])
    compute = measured.batch / measured.per_second
    ways = {"ddp": copies, "shard": shards}
    seconds = {
        way: predict(sizes, compute, gpus, network) if gpus > 1 else compute
        for way, predict in ways.items()
    }
    rate = gpus * measured.batch / seconds["ddp"]
    return {
        "trainer": name,
        "gpus": gpus,
        "parameters_m": round(sizes.parameters / 1e6, 1),
        "in_blocks": round(sizes.in_blocks / sizes.parameters, 3),
        **{f"{way}_ms": round(1e3 * value, 2) for way, value in seconds.items()},
        **{f"{way}_efficiency": round(compute / value, 4) for way, value in seconds.items()},
        "ddp_state_gb": round(KEPT * sizes.parameters / 1e9, 2),
        "shard_state_gb": round(state(sizes, gpus), 2),
        "samples_per_second": round(rate),
        "data_gb_per_second": round(rate * measured.kilobytes / 1e6, 2),
        "cores_per_gpu": round(rate / gpus / measured.core, 1) if measured.core else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As docs/scaling.md has it: a line for each trainer."""
    counts = [gpus for gpus in dict.fromkeys(row["gpus"] for row in rows) if gpus > 1]
    head = ["trainer", "parameters", "ms on one"]
    head += [f"{gpus}: DDP, shards" for gpus in counts]
    head += ["state, GB: DDP, shards", f"data at {counts[-1]}", "cores for each GPU"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in TRAINERS:
        mine = {row["gpus"]: row for row in rows if row["trainer"] == name}
        last = mine[counts[-1]]
        cells = [f"`{name}`", f"{last['parameters_m']} M"]
        cells.append(f"{1e3 * TRAINERS[name].batch / TRAINERS[name].per_second:.0f}")
        cells += [
            f"{mine[g]['ddp_efficiency']:.1%}, {mine[g]['shard_efficiency']:.1%}" for g in counts
        ]
        cells.append(f"{last['ddp_state_gb']}, {last['shard_state_gb']}")
        cells.append(f"{last['data_gb_per_second']:.0f} GB/s")
        cores = last["cores_per_gpu"]
        cells.append("not measured" if cores is None else f"{cores}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64, 256, 1024])
    parser.add_argument("--nvlink", type=float, default=450.0)
    parser.add_argument("--network", type=float, default=50.0)
    parser.add_argument("--node", type=int, default=8)
    parser.add_argument("--latency", type=float, default=10e-6)
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the table")
    options = parser.parse_args()
    network = Network(options.nvlink, options.network, options.node, options.latency)
    counts = sorted({*options.gpus, 1})
    rows = [predicted(name, gpus, network) for name in TRAINERS for gpus in counts]
    print("\n".join(map(json.dumps, rows)) if options.json else table(rows))


if __name__ == "__main__":
    main()
