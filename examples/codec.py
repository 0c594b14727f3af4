"""Train a codec on sounds of your own, and copy a sound through its latents.

python examples/codec.py --steps 100 --run runs/chimes
"""

import argparse
import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import Codec, CodecTrainer
from quintet.nn.spectral_errors import copy_errors, log_mels

RATE = 16_000


class Chimes(Dataset[Tensor]):
    """Three fading tones, 0.6 seconds."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Tensor:
        pitches = 200 + 600 * torch.rand(3, generator=torch.Generator().manual_seed(index))
        time = torch.arange(RATE * 6 // 10) / RATE
        tones = torch.sin(2 * math.pi * pitches[:, None] * time).mean(0)
        return 0.5 * tones * torch.exp(-3 * time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own sounds, instead of the chimes")
    parser.add_argument("--run", default="runs/chimes", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    codec = Codec(sample_rate=RATE, dim=16, strides=(8, 10, 10), latent_channels=8)
    trainer = CodecTrainer(
        codec,
        None if args.folder else Chimes(),
        data=args.folder,
        seconds=0.5,
        steps=args.steps,
        batch_size=8,
        adversarial="none",
        learning_rate=2e-3,
        warmup_steps=10,
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    chime = Chimes()[1000][None, None]  # not trained on; (sounds, channels, samples)
    model = trainer.averaged_model().cpu()
    latents = model.encode_latents(chime)
    copy = model.decode_latents(latents)[..., : chime.shape[-1]]
    error, _ = copy_errors(log_mels(RATE), chime[0], copy[0])
    print(
        f"a copy of {copy.shape[-1] / RATE:.2f} seconds by {latents.shape[2]} x {latents.shape[1]}"
        f" numbers, error of log-mels {error:.2f}"
    )


if __name__ == "__main__":
    main()
