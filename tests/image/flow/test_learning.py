"""A minute part of a training run already follows its captions."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from quintet import ImageFlow, ImageFlowTrainer, LatentModule
from quintet.image import recipes

COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.8, 0.2), "blue": (0.1, 0.2, 0.9)}


class Squares(nn.Module):
    """Latents that are the pixels of squares of 4 x 4: nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def encode(self, pixels: Tensor) -> Tensor:
        return F.pixel_unshuffle(pixels, 4) * self.scale

    def decode(self, latents: Tensor) -> Tensor:
        return F.pixel_shuffle(latents / self.scale, 4)


class Grounds(Dataset[dict[str, Any]]):
    """A picture of one colour, a little lighter or darker, and a caption that says which."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = list(COLOURS)[index % 3]
        light = 0.8 + 0.2 * torch.rand(1, generator=torch.Generator().manual_seed(index))
        picture = (light * torch.tensor(COLOURS[name])).view(3, 1, 1).expand(3, 16, 16)
        return {"image": picture.clone(), "text": f"a {name} wall"}


def test_colours_follow_the_captions(tmp_path: Path) -> None:
    torch.manual_seed(0)  # for the first weights
    model = ImageFlow(
        LatentModule(Squares(), pixels="0..1"),
        image_size=16,
        dim=32,
        layers=2,
        heads=1,
        head_dim=32,
        text_length=4,
        text_layers=1,
        shift=1.0,
    )
    few: dict[str, Any] = {"steps": 200, "batch_size": 16, "workers": 0, "trackers": ()}
    trainer = ImageFlowTrainer(
        model,
        Grounds(),
        recipe=recipes.flow_tiny(),
        evaluate_every=0,
        save_every=0,
        valid_fraction=0.0,
        known_share=0.0,
        run=tmp_path / "run",
        **few,
    )
    trainer.train()
    texts = [f"a {name} wall" for name in COLOURS] * 4
    images = trainer.generate(texts, steps=10, seed=3).cpu()
    colours = torch.tensor([*COLOURS.values()])
    nearest = torch.cdist(images.mean((2, 3)), colours).argmin(1)
    assert nearest.tolist() == [0, 1, 2] * 4
    noise = trainer.generate(texts, steps=1, cond_scale=0.0, seed=3)
    assert images.std((2, 3)).mean() < 0.8 * noise.std((2, 3)).mean()
    without = trainer.generate(count=12, steps=10, seed=3).cpu()
    assert len(set(torch.cdist(without.mean((2, 3)), colours).argmin(1).tolist())) > 1
