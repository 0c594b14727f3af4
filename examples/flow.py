"""Train a generator of pictures from a sentence: an autoencoder, a flow on its latents, and the
same in four steps.

python examples/flow.py --steps 800 --run runs/painter
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from quintet import ImageFlow, ImageFlowFewTrainer, ImageFlowTrainer, VQGanVAE, VQGanVAETrainer
from quintet.image import recipes
from quintet.media.pixels import write_png

COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.8, 0.2), "blue": (0.1, 0.2, 0.9)}


class Discs(Dataset[dict[str, Any]]):
    """A disc on white, and a caption that says its colour."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = list(COLOURS)[index % 3]
        x, y = 0.3 + 0.4 * torch.rand(2, generator=torch.Generator().manual_seed(index))
        rows, columns = torch.meshgrid(*[torch.linspace(0, 1, 32)] * 2, indexing="ij")
        inside = (rows - y).square() + (columns - x).square() < 0.06
        picture = torch.where(
            inside, torch.tensor(COLOURS[name]).view(3, 1, 1), torch.ones(3, 1, 1)
        )
        return {"image": picture, "text": f"a {name} disc"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/painter"), help="for all stages")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", default="discs.png", help="the picture of what was generated")
    args = parser.parse_args()
    shared: dict[str, Any] = {"warmup_steps": 20, "workers": 0}

    vae = VQGanVAE(
        dim=32,
        patch_size=4,
        channel_multipliers=(1, 2),
        num_res_blocks=1,
        quantiser="kl",
        latent_channels=4,
    )
    first = VQGanVAETrainer(
        vae,
        Discs(),
        recipe=recipes.autoencoder_tiny(),  # for small models; by default image/vqgan
        size=32,
        steps=args.steps,
        run=args.run / "autoencoder",
        **shared,
    )
    first.train(resume=True)

    # The averaged weights are what the second stage learns the latents of.
    painter = ImageFlow(
        first.averaged_model(), image_size=32, dim=64, layers=2, heads=2, head_dim=32
    )
    second = ImageFlowTrainer(
        painter,
        Discs(),
        recipe=recipes.flow_tiny(),
        steps=args.steps,
        run=args.run / "painter",
        **shared,
    )
    second.train(resume=True)

    # Distillation: few steps, and guidance in the weights.
    third = ImageFlowFewTrainer(
        second.averaged_model(),
        Discs(),
        recipe=recipes.flow_few_tiny(),
        steps=max(1, args.steps // 4),
        run=args.run / "quick",
        **shared,
    )
    third.train(resume=True)

    texts = [f"a {name} disc" for name in COLOURS]
    pictures = third.generate(texts, steps=4, seed=1).cpu()
    write_png(args.out, (torch.cat(list(pictures), 2) * 255).byte().permute(1, 2, 0).numpy())
    for text, picture in zip(texts, pictures):
        red, green, blue = picture[:, 12:20, 12:20].mean((1, 2)).tolist()
        print(f"{text}: its middle is {red:.2f} red, {green:.2f} green, {blue:.2f} blue")


if __name__ == "__main__":
    main()
