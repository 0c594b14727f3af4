"""Train a generator of clips from a sentence: an autoencoder, a flow on its latents, and the same
in four steps.

python examples/video_flow.py --steps 300 --run runs/films
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import (
    VideoFlow,
    VideoFlowFewTrainer,
    VideoFlowTrainer,
    VideoTokenizer,
    VideoTokenizerTrainer,
)
from quintet.video import recipes

WAYS = {"left": -0.1, "right": 0.1}


class Balls(Dataset[dict[str, Any]]):
    """A white ball that flies to one side for five frames, and a caption that says to which."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> dict[str, Any]:
        way = list(WAYS)[index % 2]
        height = 0.3 + 0.4 * torch.rand(1, generator=torch.Generator().manual_seed(index)).item()
        line, time = torch.linspace(0, 1, 32), torch.arange(-2, 3)
        columns = (line[None, None, :] - 0.5 - WAYS[way] * time[:, None, None]).square()
        rows = (line[None, :, None] - height).square()
        clip = (rows + columns < 0.04).float().expand(3, 5, 32, 32)
        return {"video": clip, "text": f"a ball flies {way}"}


def flight(clip: Tensor) -> float:
    """How far the bright part moves to the right, in widths of the picture."""
    weights = clip.mean((0, 2))  # (frames, columns)
    places = (weights * torch.linspace(0, 1, clip.shape[-1])).sum(1) / weights.sum(1)
    return (places[-1] - places[0]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/films"), help="for all stages")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    shared: dict[str, Any] = {"size": 32, "frames": 5, "warmup_steps": 20, "workers": 0}

    layers = ("residual", "compress_time", "compress_time", "residual")
    tokenizer = VideoTokenizer(
        init_dim=32, max_dim=64, patch_size=8, layers=layers, quantiser="kl", latent_channels=8
    )
    first = VideoTokenizerTrainer(
        tokenizer,
        Balls(),
        recipe=recipes.autoencoder_tiny(),  # for small models; by default video/tokenizer
        steps=args.steps,
        run=args.run / "autoencoder",
        **shared,
    )
    first.train(resume=True)

    # The averaged weights are what the second stage learns the latents of.
    director = VideoFlow(
        first.averaged_model(), image_size=32, frames=5, dim=64, layers=2, heads=2, head_dim=32
    )
    second = VideoFlowTrainer(
        director,
        Balls(),
        recipe=recipes.flow_tiny(),
        steps=args.steps,
        run=args.run / "director",
        **shared,
    )
    second.train(resume=True)

    # Distillation: few steps, and guidance in the weights.
    third = VideoFlowFewTrainer(
        second.averaged_model(),
        Balls(),
        recipe=recipes.flow_few_tiny(),
        steps=max(1, args.steps // 4),
        run=args.run / "quick",
        **shared,
    )
    third.train(resume=True)

    texts = [f"a ball flies {way}" for way in WAYS]
    for text, clip in zip(texts, third.generate(texts, steps=4, seed=1).cpu()):
        print(f"{text}: {flight(clip):+.2f} to the right")


if __name__ == "__main__":
    main()
