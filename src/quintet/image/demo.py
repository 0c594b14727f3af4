"""Stage of the image room in `quintet demo`."""

from quintet.shared.demo import Stage

STAGES = (
    Stage(
        folder="image",
        recipe="image/vqgan_tiny",
        title="Images",
        description="A VQGAN tokenizer: encodes images as a grid of tokens and decodes them.",
        steps={"full": 500, "quick": 80},
        seconds={"full": 98, "quick": 16},
        quick_settings={"images.valid_limit": 128, "optim.warmup_steps": 20},
        minimal_settings={"images.valid_limit": 16},
        summarise=lambda metrics, _: (
            f"PSNR {metrics['psnr']:.1f} dB; baselines: mean colour of the image "
            f"{metrics['psnr_mean_colour']:.1f} dB, downsampling to one pixel per token "
            f"{metrics['psnr_bicubic']:.1f} dB"
        ),
        evaluate_halfway=True,
    ),
)
