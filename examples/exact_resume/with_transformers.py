"""Exact resume with the Trainer of transformers. Kill it whenever you like and start it again: the
weights at the end have the same bits.

python examples/exact_resume/with_transformers.py --run runs/exact
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from quintet.data import KeyedLoader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--run", type=Path, default="runs/exact")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--kill-at", type=int, help="die at this step, as if the power had failed")


class Noisy(Dataset[dict[str, Tensor]]):
    """Points with noise from torch's global generator, as augmentation usually is."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        point = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"points": point + 0.1 * torch.randn(8), "labels": point.square().sum()[None]}


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(8, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 1)
        self.layers = nn.Sequential(*layers)

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(points), labels)}


class Exact(TrainerCallback):
    """The place in the data is a function of the step: nothing more is saved."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader.seek(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == flags.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class ExactTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return loader


flags = parser.parse_args()
arguments = TrainingArguments(
    str(flags.run),
    max_steps=flags.steps,
    save_steps=10,
    learning_rate=1e-2,
    ignore_data_skip=True,  # the loader seeks instead
    report_to=[],
    seed=0,
)
torch.manual_seed(0)
loader = KeyedLoader(Noisy(), 16, workers=flags.workers)
trainer = ExactTrainer(Learner(), arguments, callbacks=[Exact()])
flags.run.mkdir(parents=True, exist_ok=True)
trainer.train(resume_from_checkpoint=get_last_checkpoint(str(flags.run)))
