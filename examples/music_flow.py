"""Train a generator of sounds from a sentence: a codec, and a flow on its latents.

python examples/music_flow.py --steps 300 --run runs/tones
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import Codec, CodecTrainer, MusicFlow, MusicFlowTrainer
from quintet.music import recipes

RATE = 4000
TONES = {"low": 220.0, "high": 880.0}


class Tones(Dataset[dict[str, Any]]):
    """A second of a tone, and a caption that says whether it is low or high."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = list(TONES)[index % 2]
        random = torch.Generator().manual_seed(index)
        turns = torch.arange(RATE) / RATE * TONES[name] + torch.rand(1, generator=random)
        return {"audio": 0.5 * torch.sin(2 * torch.pi * turns), "text": f"a {name} tone"}


def pitch(sound: Tensor) -> float:
    """Hertz at which a sound (c, n) is loudest."""
    spectrum = torch.fft.rfft(sound.mean(0)).abs()
    return spectrum.argmax().item() * RATE / sound.shape[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/tones"), help="for both stages")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    shared: dict[str, Any] = {"warmup_steps": 20, "workers": 0}

    codec = Codec(sample_rate=RATE, dim=16, strides=(10, 10), latent_channels=8)
    first = CodecTrainer(
        codec,
        Tones(),
        recipe=recipes.codec_tiny(),  # for small models; by default music/codec
        steps=args.steps,
        run=args.run / "codec",
        seconds=0.6,
        valid_seconds=1.0,
        **shared,
    )
    first.train(resume=True)

    # The averaged weights are what the second stage learns the latents of.
    composer = MusicFlow(
        first.averaged_model(), seconds=1.0, dim=64, layers=2, heads=2, head_dim=32
    )
    second = MusicFlowTrainer(
        composer,
        Tones(),
        recipe=recipes.flow_tiny(),
        steps=args.steps,
        run=args.run / "composer",
        **shared,
    )
    second.train(resume=True)

    texts = [f"a {name} tone" for name in TONES]
    for text, sound in zip(texts, second.generate(texts, seconds=2.0, seed=1).cpu()):
        print(f"{text}: {pitch(sound):.0f} Hz for {sound.shape[-1] / RATE:.1f} s")


if __name__ == "__main__":
    main()
