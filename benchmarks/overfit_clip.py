"""One clip, learned by heart: the first thing that anyone tries with a video tokenizer.

    python benchmarks/overfit_clip.py          one GPU: 17 x 128 x 128, 35 dB in 180 seconds
    python benchmarks/overfit_clip.py --tiny   two CPU cores: 9 x 32 x 32, 25 dB in 180 seconds

Trains through VideoTokenizerTrainer on a data set of one built-in clip with the settings of the
recipe, critics and all; only the number of steps is chosen. The PSNR is of the averaged weights,
through the ids; the clock includes compiling. Exits with 1 where the floor is missed.
"""

import argparse
import json
import sys
import tempfile
import time

import torch

from quintet import VideoTokenizer, VideoTokenizerTrainer
from quintet.media.motion import compose, draw
from quintet.nn.similarity import psnr
from quintet.video import recipes

SECONDS = 180


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--number", type=int, default=0, help="which of the built-in clips")
    asked = parser.parse_args()
    recipe = recipes.tokenizer_tiny() if asked.tiny else recipes.tokenizer()
    steps, floor = (500, 25.0) if asked.tiny else (1200, 35.0)
    begin = time.monotonic()
    frames = draw(compose(asked.number), recipe.videos.frames, *recipe.videos.size)
    clip = torch.from_numpy(frames.transpose(3, 0, 1, 2).copy())
    optimiser, losses = recipe.tokenizer, recipe.losses
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        trainer = VideoTokenizerTrainer(
            VideoTokenizer(recipe.model),
            dataset=[clip],
            image_size=recipe.videos.size,
            num_frames=recipe.videos.frames,
            num_train_steps=asked.steps or steps,
            batch_size=1,
            num_workers=0,
            learning_rate=optimiser.rate,
            warmup_steps=optimiser.warmup,
            ema_decay=optimiser.average,
            perceptual=losses.perceptual,
            adversarial_from=losses.adversarial_from,
            valid_frac=0.0,
            log_every=50,
            checkpoint_every=10**9,
            results_folder=f"{place}/run",
        )
        trainer.train()
        whole = clip[None].float() / 255
        made = trainer.reconstruct(whole).cpu()
    seconds = time.monotonic() - begin
    found, still = psnr(made, whole).item(), whole.mean(2, keepdim=True).expand_as(whole)
    row = {"psnr": found, "psnr_mean_frame": psnr(still, whole).item(), "seconds": seconds}
    missed = [n for n, bad in (("psnr", found < floor), ("seconds", seconds > SECONDS)) if bad]
    shape = tuple(clip.shape)
    print(json.dumps({"benchmark": "overfit_clip", "clip": shape, "missed": missed, **row}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
