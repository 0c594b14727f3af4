"""Train a model of your own: any module whose forward takes a batch and returns a loss.

python examples/own_model.py --steps 300 --run runs/own
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from quintet import Trainer


class Spirals(Dataset[dict[str, Tensor]]):
    """Points on one of two arms of a spiral, and which arm it is."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        along, *noise = torch.randn(3, generator=torch.Generator().manual_seed(index))
        along, arm = 0.5 + along.abs(), index % 2
        angle = 3 * along + torch.pi * arm
        point = torch.stack((angle.cos() * along, angle.sin() * along))
        return {"points": point + 0.02 * torch.stack(noise), "arms": torch.tensor(arm)}


class Classifier(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 2)
        )

    def forward(self, points: Tensor, arms: Tensor) -> dict[str, Tensor]:
        """`loss` is what is learned; any other number is reported beside it."""
        logits = self.layers(points)
        right = (logits.argmax(-1) == arms).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, arms), "accuracy": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/own", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    trainer = Trainer(
        Classifier(),
        Spirals(),
        steps=args.steps,
        batch_size=64,
        learning_rate=5e-3,
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    classifier = trainer.averaged_model()
    held_out = [Spirals()[index] for index in range(3000, 3500)]
    batch = {name: torch.stack([item[name] for item in held_out]) for name in held_out[0]}
    with torch.no_grad():
        print(f"{classifier(**batch)['accuracy']:.1%} of new points are told apart")


if __name__ == "__main__":
    main()
