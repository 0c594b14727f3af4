"""The image room in `quintet demo`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quintet.shared.demo import Figure, Live, RoomDemo, Row, Sample, Stage, one_for_each
from quintet.shared.sampling import Trained

if TYPE_CHECKING:
    from quintet.media.pixels import Pixels

CAPTIONS = (
    "a large red triangle on the left on purple",
    "a large black star at the top right on orange",
    "a large green ring in the middle on red",
    "a large blue square at the top on orange",
    "a large orange cross at the bottom right on green",
    "a large white star on the left on orange",
)
ROWS = 4
"""Pictures of the sheet that are followed through training."""


def generate(trained: Trained, out: Path) -> list[Sample]:
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.pixels import to_bytes

    write = lambda path, picture: write_png(path, to_bytes(picture))
    return one_for_each(CAPTIONS, trained, out, ".png", write)


def strip(sheet: Path) -> "tuple[Pixels, Pixels]":
    """Columns of originals and reconstructions, cut from a sheet of both and their difference."""
    import numpy as np

    from quintet.media.pixels import read_image

    gap, columns, small = 4, 3, 64
    picture = read_image(sheet)
    side = (picture.shape[1] - gap) // columns - gap
    rows = (picture.shape[0] - gap) // (side + gap)
    title = picture.shape[0] - gap - rows * (side + gap)
    tops = [title + gap + row * (side + gap) for row in range(min(rows, ROWS))]
    every = max(1, side // small)  # sheets are enlarged
    originals, outputs = (
        [picture[top : top + side : every, left : left + side : every] for top in tops]
        for left in (gap, 2 * gap + side)
    )
    return np.concatenate(originals), np.concatenate(outputs)


TOKENIZER = Row(
    title="Image tokenizer",
    description="A VQGAN encodes images as a grid of tokens and decodes them.",
    figure=lambda metrics, _: Figure(
        value=f"{metrics['psnr']:.1f} dB",
        meaning="PSNR of reconstructions",
        baseline=f"bicubic, one pixel per 8 × 8: {metrics['psnr_bicubic']:.1f} dB; "
        f"mean colour: {metrics['psnr_mean_colour']:.1f} dB",
    ),
)
AUTOENCODER = replace(
    TOKENIZER,
    title="Image autoencoder",
    description="An autoencoder encodes images as a grid of latents and decodes them.",
)
GENERATOR = Row(
    title="Text to image",
    description="A transformer generates latents from a caption by flow matching.",
    figure=lambda metrics, _: Figure(
        value=f"{metrics['agrees']:.0%}",
        meaning="of generated images show all that the caption names",
        baseline=f"real images through the autoencoder: {metrics['agrees_tokenizer']:.0%}",
    ),
    draw=generate,
    arguments='--text "a large green ring in the middle on red" --out pictures',
)
LIVE = Live(
    stage=Stage(
        folder="training",
        recipe="image/vqgan_tiny",
        row=TOKENIZER,
        steps=400,
        seconds=80,
        # Reports divide the intervals of evaluations and checkpoints, so that those of a resumed
        # run cover the same steps.
        settings={
            "images.builtin": "figure",
            "model.levels": [4, 4, 4, 4],
            "losses.adversarial": "none",
            "optim.optimizer": "muon",
            "images.valid_limit": 32,
            "log_every": 2,
        },
        minimal_settings={"images.valid_limit": 16},
        evaluations=10,
    ),
    strip=strip,
    metric="psnr",
    unit="dB",
)
STAGES = (
    Stage(
        folder="image",
        recipe="image/autoencoder_tiny",
        row=AUTOENCODER,
        steps=500,
        seconds=98,
        settings={"images.builtin": "figure"},
        minimal_settings={"images.valid_limit": 16},
        evaluations=2,
    ),
    Stage(
        folder="pictures",
        recipe="image/flow_tiny",
        row=GENERATOR,
        steps=1300,
        seconds=195,
        minimal_settings={
            "images.builtin_count": 32,
            "images.valid_limit": 4,
            "generation.count": 2,
            "generation.reference_count": 8,
        },
        depends_on={"tokenizer": "image"},
    ),
)
DEMO = RoomDemo(position=1, stages=STAGES, ready="image", row=GENERATOR, live=LIVE)
