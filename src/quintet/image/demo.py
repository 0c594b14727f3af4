"""Stages of the image room in `quintet demo`."""

from pathlib import Path

from quintet.shared.demo import Sample, Stage
from quintet.shared.sampling import Trained


def generated(trained: Trained, _: Path) -> list[Sample]:
    """The last exhibit: its captions are held out of training."""
    sheets = sorted((trained.path / "exhibits").glob("step-*/generated.png"))
    note = (
        "for captions that training has not seen: the real picture, the training picture nearest to"
        " the first generated one, and three generated ones"
    )
    return [Sample(prompt="", file=file, note=note) for file in sheets[-1:]]


STAGES = (
    Stage(
        folder="image",
        recipe="image/vqgan_tiny",
        title="Images",
        description="A VQGAN tokenizer: encodes images as a grid of tokens and decodes them.",
        steps={"full": 500, "quick": 80},
        seconds={"full": 98, "quick": 16},
        # What the next stage learns from: pictures fully described by their captions, and few
        # tokens.
        settings={
            "images.builtin": "figure",
            "model.levels": [4, 4, 4, 4],
            "losses.adversarial": "none",
            "optim.optimizer": "muon",
        },
        quick_settings={"images.valid_limit": 128, "optim.warmup_steps": 20},
        minimal_settings={"images.valid_limit": 16},
        summarise=lambda metrics, _: (
            f"PSNR {metrics['psnr']:.1f} dB; baselines: mean colour of the image "
            f"{metrics['psnr_mean_colour']:.1f} dB, downsampling to one pixel per token "
            f"{metrics['psnr_bicubic']:.1f} dB"
        ),
        evaluate_halfway=True,
    ),
    Stage(
        folder="pictures",
        recipe="image/maskgit_tiny",
        title="Text to image",
        description="A masked transformer over those tokens: generates images from captions.",
        steps={"full": 900, "quick": 120},
        seconds={"full": 190, "quick": 32},
        quick_settings={
            "images.builtin_count": 1000,
            "images.valid_limit": 32,
            "generation.count": 16,
            "generation.reference_count": 128,
            "optim.warmup_steps": 20,
        },
        minimal_settings={
            "images.builtin_count": 32,
            "images.valid_limit": 4,
            "generation.count": 2,
            "generation.reference_count": 8,
        },
        summarise=lambda metrics, _: (
            f"{metrics['agrees']:.0%} of generated images show all that their caption names; real "
            f"images through the tokenizer {metrics['agrees_tokenizer']:.0%}; cross-entropy "
            f"{metrics['loss']:.2f} nats per token, without the caption "
            f"{metrics['loss_without_text']:.2f}"
        ),
        depends_on={"tokenizer": "image"},
        draw=generated,
        next_arguments='--text "a large yellow ring in the middle on purple" --out pictures',
    ),
)
