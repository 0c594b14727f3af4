"""Stage of the video room in `quintet demo`."""

from quintet.shared.demo import Stage

STAGES = (
    Stage(
        folder="video",
        recipe="video/tokenizer_tiny",
        title="Video",
        description="A causal video tokenizer: tokens of a frame do not depend on later frames.",
        steps={"full": 330, "quick": 70},
        seconds={"full": 80, "quick": 16},
        quick_settings={"videos.valid_limit": 32, "optim.warmup_steps": 20},
        minimal_settings={"videos.valid_limit": 4},
        summarise=lambda metrics, _: (
            f"PSNR {metrics['psnr']:.1f} dB; baselines: mean colour of the clip "
            f"{metrics['psnr_mean_colour']:.1f} dB, mean frame {metrics['psnr_mean_frame']:.1f} dB"
        ),
        evaluate_halfway=True,
    ),
)
