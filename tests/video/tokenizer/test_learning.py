"""Short proofs that it learns; the floors of the whole recipes are in benchmarks/."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quintet
from campaign.subjects import replaced
from quintet.nn.similarity import psnr
from quintet.video import recipes
from quintet.video.motion import compose, draw

SMALLER = {"size": (16, 16), "frames": 5, "init_dim": 32, "max_dim": 64}


def one_clip(frames: int, size: tuple[int, int]) -> Tensor:
    return torch.from_numpy(draw(compose(0), frames, *size).transpose(3, 0, 1, 2).copy())


def overfitted(steps: int, run: Path, **smaller: Any) -> tuple[float, float]:
    """PSNR through the ids, and of the clip's mean frame; discriminators start on the way."""
    recipe = replaced(recipes.tokenizer_tiny(), smaller)
    clip = one_clip(recipe.videos.frames, recipe.videos.size)
    torch.manual_seed(0)
    trainer = quintet.VideoTokenizerTrainer(
        quintet.VideoTokenizer(recipe.model),
        dataset=[clip],
        recipe=recipe,
        steps=steps,
        batch_size=1,
        workers=0,
        warmup_steps=10,
        ema_decay=0.9,
        valid_fraction=0.0,
        save_every=10**9,
        device="cpu",
        compile=False,
        trackers=(),
        progress=False,
        run=run,
    )
    trainer.train()
    whole = clip[None].float() / 255
    still = whole.mean(2, keepdim=True).expand_as(whole)
    return psnr(trainer.reconstruct(whole), whole).item(), psnr(still, whole).item()


@pytest.mark.slow  # test_model.py overfits a clip
def test_one_clip_is_learned_past_its_mean_frame_in_sixty_steps(tmp_path: Path) -> None:
    output, frame = overfitted(60, tmp_path / "run", **SMALLER)
    assert output > frame + 1


@pytest.mark.slow
def test_one_clip_is_overfitted_in_three_hundred_steps(tmp_path: Path) -> None:
    output, frame = overfitted(300, tmp_path / "run")
    assert output > frame + 8
    assert output > 27


@pytest.mark.slow
def test_the_tiny_recipe_reaches_its_floors() -> None:
    learning = Path(__file__).parents[2] / "benchmarks/learning.py"
    subprocess.run([sys.executable, str(learning), "video/tokenizer_tiny"], check=True)
