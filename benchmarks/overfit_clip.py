"""Overfitting of one clip, the first sanity check of a video tokenizer, and of sets of clips.

    python benchmarks/overfit_clip.py          one GPU: 17 x 128 x 128, 35 dB in 180 seconds
    python benchmarks/overfit_clip.py --tiny   two CPU cores: 9 x 32 x 32, 25 dB in 180 seconds
    python benchmarks/overfit_clip.py --clips 1 8 64 [--folder CLIPS]

Trains with VideoTokenizerTrainer on built-in clips, or on the middle of each clip of a folder, with
the settings of the recipe, discriminators included; only the number of steps differs. PSNR is of
the EMA weights, through the ids; the time includes compilation. For one clip the exit status is 1
if a floor is missed. With --clips a Markdown table of each number of clips: where the error is, by
frame, and relative to the original in space and time (benchmarks/clip_errors.py).
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace

import torch
from clip_errors import clips, summary
from torch import Tensor

from quintet import VideoTokenizer, VideoTokenizerTrainer
from quintet.video import recipes
from quintet.video.motion import compose, draw
from quintet.video.tokenizer.config import VideoRecipe

SECONDS = 180


def builtin(recipe: VideoRecipe, first: int, count: int) -> Tensor:
    drawn = [
        draw(compose(number), recipe.videos.frames, *recipe.videos.size)
        for number in range(first, first + count)
    ]
    return torch.stack([torch.from_numpy(x.transpose(3, 0, 1, 2).copy()) for x in drawn])


def overfitted(real: Tensor, recipe: VideoRecipe, steps: int) -> Tensor:
    """What averaged weights make of clips (b, c, t, h, w) after so many steps on these alone."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = VideoTokenizerTrainer(
            VideoTokenizer(recipe.model),
            dataset=list(real),
            recipe=replace(
                recipe,
                steps=steps,
                batch_size=min(len(real), recipe.batch_size),
                workers=0,
                log_every=50,
                save_every=10**9,
                videos=replace(recipe.videos, valid_fraction=0.0),
            ),
            run=f"{folder}/run",
        )
        trainer.train()
        parts = (real.float() / 255).split(8)
        return torch.cat([trainer.reconstruct(part).cpu() for part in parts])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--number", type=int, default=0, help="the first of the built-in clips")
    parser.add_argument("--clips", type=int, nargs="+", help="a table of sets of so many")
    parser.add_argument("--folder", help="of clips, instead of built-in ones")
    args = parser.parse_args()
    recipe = recipes.tokenizer_tiny() if args.tiny else recipes.tokenizer()
    steps, floor = (500, 25.0) if args.tiny else (1200, 35.0)
    for number, count in enumerate(args.clips or [1]):
        begin = time.monotonic()
        if args.folder:
            size = recipe.videos.size[0]
            real = (clips(args.folder, count, recipe.videos.frames, size) * 255).to(torch.uint8)
        else:
            real = builtin(recipe, args.number, count)
        output = overfitted(real, recipe, args.steps or steps)
        row = summary(output, real.float() / 255)
        row |= {"steps": args.steps or steps, "seconds": time.monotonic() - begin}
        if not args.clips:
            low = ["psnr"] if row["psnr"] < floor else []
            missed = low + (["seconds"] if row["seconds"] > SECONDS else [])
            shape = tuple(real.shape[1:])
            print(json.dumps({"benchmark": "overfit_clip", "clip": shape, "missed": missed, **row}))
            sys.exit(1 if missed else 0)
        if number == 0:
            header = ["clips", *(name.replace("_", " ") for name in row)]
            print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
        print(f"| {len(real)} | {' | '.join(f'{v:.4g}' for v in row.values())} |", flush=True)


if __name__ == "__main__":
    main()
