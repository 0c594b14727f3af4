"""Train a tokenizer of pictures on a data set of your own, and turn a picture into ids and back.

python examples/vqgan.py --steps 300 --run runs/discs
python examples/vqgan.py --folder photos --run runs/photos
"""

import argparse

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import VQGanVAE, VQGanVAETrainer
from quintet.image.recipes import vqgan_tiny


class Discs(Dataset[Tensor]):
    """A disc of one colour on a ground of another: (3, size, size) in 0..1."""

    def __init__(self, size: int = 32):
        self.size = size

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Tensor:
        x, y, radius, *colours = torch.rand(9, generator=torch.Generator().manual_seed(index))
        rows, columns = torch.meshgrid(*[torch.linspace(0, 1, self.size)] * 2, indexing="ij")
        inside = (rows - y).square() + (columns - x).square() < (0.1 + 0.3 * radius) ** 2
        disc, ground = torch.stack(colours).view(2, 3, 1, 1)
        return torch.where(inside, disc, ground)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own pictures, instead of the discs")
    parser.add_argument("--run", default="runs/discs", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    vae = VQGanVAE(
        dim=32, patch_size=4, channel_multipliers=(1, 2), num_res_blocks=1, levels=(8, 8, 5)
    )
    trainer = VQGanVAETrainer(
        vae,
        dataset=None if args.folder else Discs(),
        data=args.folder,
        recipe=vqgan_tiny(),  # for small models; by default image/vqgan
        size=32,
        steps=args.steps,
        warmup_steps=args.steps // 10,
        adversarial="none",  # a discriminator pays off in longer runs
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    pictures = torch.stack([Discs()[index] for index in range(2000, 2016)])  # not trained on
    ids = trainer.tokenize(pictures)
    print(f"a picture is {ids[0].numel()} ids below {vae.codebook_size}: {ids[0, 0].tolist()} …")
    error = (vae.decode_from_ids(ids).cpu() - pictures).abs().mean()
    plain = (pictures - pictures.mean((2, 3), keepdim=True)).abs().mean()
    print(f"mean error of a pixel: {error:.3f}; of the picture's mean colour: {plain:.3f}")


if __name__ == "__main__":
    main()
