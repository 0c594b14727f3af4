"""A run and an encoding on a cluster of three nodes, whose workers and nodes are killed.

python tests/ray/losses.py FOLDER: FOLDER/pictures and FOLDER/model are there.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

import quintet.ray
from quintet.engine.errors import RunError

RECIPE = "image/vqgan_tiny"
FEW: dict[str, Any] = {
    "batch_size": 2,
    "device": "cpu",
    "precision": "fp32",
    "trackers": (),
    "readers": 0,
    "steps": 60,
    "save_every": 2,
    "log_every": 1,
    "evaluate_every": 60,
}
SETTINGS: dict[str, Any] = {
    "images.size": (32, 32),
    "images.valid_limit": 8,
    "losses.adversarial_from": 0.5,
    "model.dim": 16,
    "discriminator.dim": 8,
}
ENCODED: dict[str, Any] = {"size": (16, 16), "variants": 2, "shard_samples": 4, "device": "cpu"}


def kill_a_process(name: str) -> None:
    """One of those that Ray calls so."""
    every = psutil.process_iter(["pid", "cmdline"])
    pids = [p.pid for p in every if (p.info["cmdline"] or [""])[0].startswith(f"ray::{name}")]
    if pids:
        os.kill(random.choice(pids), signal.SIGKILL)
        print("killed a process", name, flush=True)


def when(number: Callable[[], int], *blows: tuple[int, Callable[[], None]]) -> None:
    """Strike when so much is there, and a random moment later."""

    def watch() -> None:
        for threshold, strike in blows:
            while number() < threshold:
                time.sleep(0.01)
            time.sleep(random.random())
            strike()

    threading.Thread(target=watch, daemon=True).start()


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address)

    def lose_a_node() -> None:
        node = nodes.pop(random.randrange(len(nodes)))
        cluster.remove_node(node, allow_graceful=False)
        print("killed a node", flush=True)

    def shards() -> int:
        return len(list((folder / "coded").glob("*.index")))

    def step() -> int:
        saved = (folder / "run" / "checkpoints").glob("step-*")
        return max((int(path.name[5:]) for path in saved), default=0)

    when(shards, (2, lambda: kill_a_process("placed")), (10, lose_a_node))
    data, out = folder / "pictures", folder / "coded"
    quintet.ray.encode(folder / "model", data, out, workers=3, **ENCODED)
    nodes.append(cluster.add_node(num_cpus=1))
    run = folder / "run"
    when(step, (4, lambda: kill_a_process("RayTrainWorker")))
    try:
        quintet.ray.train(RECIPE, run=run, workers=2, restarts=0, settings=SETTINGS, **FEW)
        print("it was not killed", flush=True)
    except RunError as error:
        print(error, flush=True)
    # Two of three train, as three do not divide the batch of two; in the end there is one.
    blow = (step() + 6, lambda: kill_a_process("RayTrainWorker"))
    when(step, blow, (24, lose_a_node), (36, lose_a_node))
    metrics = quintet.ray.train(RECIPE, run=run, workers=(1, 3), settings=SETTINGS, **FEW)
    print("at step", metrics["step"], flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
