"""Exact resume of a loop in plain PyTorch. Kill it whenever you like, start it again, also with
another number of processes or workers: the weights at the end have the same bits.

python examples/exact_resume/plain_loop.py --run runs/exact
torchrun --nproc-per-node 2 examples/exact_resume/plain_loop.py --run runs/exact
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from quintet.data import KeyedLoader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--run", type=Path, default="runs/exact")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--kill-at", type=int, help="die at this step, as if the power had failed")


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Points with noise from torch's global generator, as augmentation usually is."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return point + 0.1 * torch.randn(8), point.square().sum()[None]


args = parser.parse_args()
rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if processes > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
trained = DistributedDataParallel(model) if processes > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
# Two processes take 16 samples each; one takes twice as many, in two micro-batches.
loader = KeyedLoader(Noisy(), 16, accumulate=2 // processes, workers=args.workers)
parts = {"model": model, "optimizer": optimizer, "loader": loader}

saved = args.run / "state.pt"
if saved.exists():
    for name, state in torch.load(saved).items():
        parts[name].load_state_dict(state)
for batches in loader.steps(until=args.steps):
    for points, targets in batches:
        loss = nn.functional.mse_loss(trained(points), targets) / len(batches)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loader.step % 10 == 0 and rank == 0:
        args.run.mkdir(parents=True, exist_ok=True)
        partial = saved.with_suffix(".partial")
        torch.save({name: part.state_dict() for name, part in parts.items()}, partial)
        partial.replace(saved)  # complete or absent
    if loader.step == args.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
if processes > 1:
    dist.destroy_process_group()
