"""Time that a checkpoint blocks the loop: about 1 GB of state, written in the background.

    python benchmarks/checkpoint_pause.py [--megabytes 1000]

The pause is the duration of `save` in the loop; step times during background writing are compared
with those before. Exits with 1 if a pause reaches one second.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from quintet.engine.config import OptimizerConfig
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.trainer import AnyRecipe, AnyTask


class Wide(nn.Module):
    def __init__(self, parameters: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(parameters // 1024**2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


class Rows:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1024,), index / 1000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    model = Wide(asked.megabytes * 10**6 // 16)  # weights, average and two moments, 4 bytes each
    recipe = AnyRecipe(
        steps=10**6, batch_size=64, workers=0, device=asked.device, optim=OptimizerConfig()
    )
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", {})
        task = AnyTask(model, {"train": Rows(), "valid": None}, recipe.optim)
        run = Run(task, recipe, World(recipe), folder)
        before = [timed(lambda: take_step(run)) for _ in range(12)][2:]
        pauses, during, writing = [], [], []
        for _ in range(3):
            begin = time.perf_counter()
            pauses.append(timed(run.save))
            while run.saver.writer.busy:
                during.append(timed(lambda: take_step(run)))
            writing.append(time.perf_counter() - begin)
        path = next(folder.checkpoints.glob("step-*"))
        size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
        run.close()
    row = {
        "benchmark": "checkpoint_pause",
        "megabytes": round(size),
        "pause_s": statistics.median(pauses),
        "longest_pause_s": max(pauses),
        "pauses_s": [round(pause, 3) for pause in pauses],
        "step_before_s": statistics.median(before),
        "step_while_writing_s": statistics.median(during) if during else None,
        "writing_s": statistics.median(writing),
    }
    for name, value in row.items():
        print(f"{name:22} {value}")
    print(json.dumps(row))
    sys.exit(1 if row["longest_pause_s"] >= 1.0 else 0)


def timed(call) -> float:
    begin = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
