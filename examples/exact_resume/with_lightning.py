"""Exact resume with Lightning. Kill it whenever you like and start it again: the weights at the end
have the same bits.

python examples/exact_resume/with_lightning.py --run runs/exact
"""

import argparse
import os
import signal
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
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


class Learner(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> KeyedLoader:
        return KeyedLoader(Noisy(), 16, workers=args.workers)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if self.global_step == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])


if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(0)
    keep = ModelCheckpoint(args.run, every_n_train_steps=10, save_last=True)
    trainer = Trainer(max_steps=args.steps, callbacks=[keep], logger=False)
    # Checkpoints of Lightning contain the state of a loader that has one.
    trainer.fit(Learner(), ckpt_path="last")
