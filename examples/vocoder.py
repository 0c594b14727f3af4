"""Train a vocoder on sounds of your own, and copy a sound through its mel spectrogram.

python examples/vocoder.py --steps 100 --run runs/chimes
"""

import argparse
import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import Vocoder, VocoderTrainer

RATE = 16_000


class Chimes(Dataset[Tensor]):
    """Three fading tones, one second."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Tensor:
        pitches = 200 + 600 * torch.rand(3, generator=torch.Generator().manual_seed(index))
        time = torch.arange(RATE) / RATE
        tones = torch.sin(2 * math.pi * pitches[:, None] * time).mean(0)
        return 0.5 * tones * torch.exp(-3 * time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own sounds, instead of the chimes")
    parser.add_argument("--run", default="runs/chimes", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    vocoder = Vocoder(sample_rate=RATE, n_mels=80, dim=64, depth=2)
    trainer = VocoderTrainer(
        vocoder,
        None if args.folder else Chimes(),
        data=args.folder,
        steps=args.steps,
        batch_size=4,
        warmup_steps=10,
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    chime = Chimes()[1000]  # not trained on
    copy = trainer.copy(chime).cpu()
    print(f"a copy of {len(copy) / RATE:.2f} seconds, loudness {copy.std() / chime.std():.2f}")


if __name__ == "__main__":
    main()
