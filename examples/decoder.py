"""Fine-tune the decoder of an autoencoder from elsewhere: latents stay, pictures get better.

python examples/decoder.py --steps 300 --run runs/decoder
python examples/decoder.py --folder photos --run runs/photos
"""

import argparse

import torch
from torch import Tensor, nn

from quintet import ImageDecoderTrainer, LatentModule


class Elsewhere(nn.Module):
    """In place of a published model: any module with `encoder` and `decoder`, or methods `encode`
    and `decode`."""

    def __init__(self, channels: int = 12, dim: int = 32):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.PixelUnshuffle(4), nn.Conv2d(48, channels, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(channels, dim, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(dim, 48, 3, padding=1),
            nn.PixelShuffle(4),
        )


def error(model: nn.Module, pictures: Tensor) -> float:
    with torch.no_grad():
        return (model.decoder(model.encoder(pictures)) - pictures).abs().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own pictures, instead of the built-in figures")
    parser.add_argument("--run", default="runs/decoder", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    published = Elsewhere()
    trainer = ImageDecoderTrainer(
        LatentModule(published, pixels="0..1"),
        data=args.folder,
        size=32,
        steps=args.steps,
        batch_size=16,
        warmup_steps=args.steps // 10,
        learning_rate=2e-3,
        adversarial="none",  # a discriminator pays off in longer runs
        valid_limit=32,
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    tuned = trainer.averaged_model().network
    pictures = torch.rand(8, 3, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    latents = published.encoder(pictures)
    print(f"latents are {'equal' if tuned.encoder(pictures).equal(latents) else 'others'}")
    before, after = error(Elsewhere(), pictures), error(tuned, pictures)
    print(f"mean error of a pixel: {before:.3f} before, {after:.3f} after")


if __name__ == "__main__":
    main()
