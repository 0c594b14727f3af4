"""Exact resume with Accelerate. Kill it whenever you like and start it again: the weights at the
end have the same bits.

python examples/exact_resume/with_accelerate.py --run runs/exact
"""

import argparse
import os
import signal
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
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
accelerator = Accelerator()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
# The loader splits the data by itself: it is registered, not prepared.
model, optimizer = accelerator.prepare(model, optimizer)
loader = KeyedLoader(Noisy(), 16, workers=args.workers, device=accelerator.device)
accelerator.register_for_checkpointing(loader)

if checkpoints := sorted(args.run.glob("step-*")):
    accelerator.load_state(str(checkpoints[-1]))
for batches in loader.steps(until=args.steps):
    for points, targets in batches:
        accelerator.backward(nn.functional.mse_loss(model(points), targets))
    optimizer.step()
    optimizer.zero_grad()
    if loader.step % 10 == 0:
        accelerator.save_state(str(args.run / "partial"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:  # complete or absent
            (args.run / "partial").rename(args.run / f"step-{loader.step:06}")
    if loader.step == args.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
