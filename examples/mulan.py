"""Train a joint space of sounds and sentences on a data set of your own, and search it.

python examples/mulan.py --steps 150 --run runs/tones
"""

import argparse
import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import MuLaN, MuLaNTrainer

RATE = 8000
PITCHES = {"low": 150.0, "middle": 450.0, "high": 1350.0}
KINDS = ("steady", "fading", "beating")
CAPTIONS = [f"a {kind} {pitch} tone" for kind in KINDS for pitch in PITCHES]


class Tones(Dataset[tuple[Tensor, str]]):
    """A second of sound in -1..1, and a caption that says what it is."""

    def __len__(self) -> int:
        return 900

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        caption = CAPTIONS[index % len(CAPTIONS)]
        _, kind, pitch, _ = caption.split()
        bend, phase = torch.rand(2, generator=torch.Generator().manual_seed(index)).tolist()
        time = torch.arange(RATE) / RATE
        tone = torch.sin(2 * math.pi * (PITCHES[pitch] * (0.9 + 0.2 * bend) * time + phase))
        shapes = {"steady": 1 + 0 * time, "fading": (-4 * time).exp()}
        shape = shapes.get(kind, (2 * math.pi * 5 * time).sin().square())
        return 0.5 * tone * shape, caption


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/tones", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    mulan = MuLaN(
        sample_rate=RATE,
        n_fft=512,
        hop_length=128,
        n_mels=64,
        patch_size=(16, 8),
        dim=64,
        layers=2,
        heads=1,
        text_length=32,
        text_dim=64,
        text_layers=2,
        text_heads=1,
    )
    trainer = MuLaNTrainer(
        mulan,
        Tones(),
        seconds=1.0,
        steps=args.steps,
        batch_size=32,
        learning_rate=1e-3,
        warmup_steps=args.steps // 10,
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    sounds, said = zip(*(Tones()[index] for index in range(1800, 1809)))  # one of each
    found = trainer.embed_text(CAPTIONS) @ trainer.embed_audio(torch.stack(sounds)).T
    for caption, row in zip(CAPTIONS, found):
        print(f"{caption!r} finds {said[int(row.argmax())]!r} at {row.max():.2f}")


if __name__ == "__main__":
    main()
