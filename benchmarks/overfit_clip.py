"""Overfitting of one clip, the first sanity check of a video tokenizer.

    python benchmarks/overfit_clip.py          one GPU: 17 x 128 x 128, 35 dB in 180 seconds
    python benchmarks/overfit_clip.py --tiny   two CPU cores: 9 x 32 x 32, 25 dB in 180 seconds

Trains with VideoTokenizerTrainer on one built-in clip with the settings of the recipe,
discriminators included; only the number of steps differs. PSNR is of the EMA weights, through the
ids; the time includes compilation. The exit status is 1 if a floor is missed.
"""

import argparse
import json
import sys
import tempfile
import time

import torch

from quintet import VideoTokenizer, VideoTokenizerTrainer
from quintet.nn.similarity import psnr
from quintet.video import recipes
from quintet.video.motion import compose, draw

SECONDS = 180


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--number", type=int, default=0, help="which of the built-in clips")
    args = parser.parse_args()
    recipe = recipes.tokenizer_tiny() if args.tiny else recipes.tokenizer()
    steps, floor = (500, 25.0) if args.tiny else (1200, 35.0)
    begin = time.monotonic()
    frames = draw(compose(args.number), recipe.videos.frames, *recipe.videos.size)
    clip = torch.from_numpy(frames.transpose(3, 0, 1, 2).copy())
    optimiser, losses = recipe.optim, recipe.losses
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = VideoTokenizerTrainer(
            VideoTokenizer(recipe.model),
            dataset=[clip],
            size=recipe.videos.size,
            frames=recipe.videos.frames,
            steps=args.steps or steps,
            batch_size=1,
            workers=0,
            learning_rate=optimiser.learning_rate,
            warmup_steps=optimiser.warmup_steps,
            ema_decay=optimiser.ema_decay,
            perceptual=losses.perceptual,
            adversarial_from=losses.adversarial_from,
            valid_fraction=0.0,
            log_every=50,
            save_every=10**9,
            run=f"{folder}/run",
        )
        trainer.train()
        whole = clip[None].float() / 255
        reconstruction = trainer.reconstruct(whole).cpu()
    seconds = time.monotonic() - begin
    value, still = psnr(reconstruction, whole).item(), whole.mean(2, keepdim=True).expand_as(whole)
    row = {"psnr": value, "psnr_mean_frame": psnr(still, whole).item(), "seconds": seconds}
    missed = [n for n, bad in (("psnr", value < floor), ("seconds", seconds > SECONDS)) if bad]
    shape = tuple(clip.shape)
    print(json.dumps({"benchmark": "overfit_clip", "clip": shape, "missed": missed, **row}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
