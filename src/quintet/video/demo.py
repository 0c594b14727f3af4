"""The video room in `quintet demo`."""

from pathlib import Path

from quintet.shared.demo import Figure, RoomDemo, Row, Sample, Stage, one_for_each
from quintet.shared.sampling import Trained

CAPTIONS = (
    "an orange star moves quickly downwards on black",
    "a red ring moves quickly to the right on white",
    "a green square moves quickly downwards on black",
    "a blue circle moves quickly downwards on white",
    "a yellow cross moves quickly to the left on white",
    "a purple star moves quickly to the left on black",
)


def generate(trained: Trained, out: Path) -> list[Sample]:
    from quintet.media.clips.writer import write_gif
    from quintet.shared.tokenizer.pixels import displayed, enlarged, to_bytes
    from quintet.video.exhibits import FPS

    write = lambda path, clip: write_gif(path, enlarged(displayed(to_bytes(clip))), FPS)
    return one_for_each(CAPTIONS, trained, out, ".gif", write)


TOKENIZER = Row(
    title="Video tokenizer",
    description="A causal tokenizer: tokens of a frame do not depend on later frames.",
    figure=lambda metrics, _: Figure(
        value=f"{metrics['psnr']:.1f} dB",
        meaning="PSNR of reconstructions",
        baseline=f"mean frame: {metrics['psnr_mean_frame']:.1f} dB; "
        f"mean colour: {metrics['psnr_mean_colour']:.1f} dB",
    ),
)
GENERATOR = Row(
    title="Text to video",
    description="A transformer generates latents from a caption by flow matching.",
    figure=lambda metrics, _: Figure(
        value=f"{metrics['agrees']:.0%}",
        meaning="of generated clips show all that the caption names",
        baseline=f"real clips through the autoencoder: {metrics['agrees_tokenizer']:.0%}",
    ),
    draw=generate,
    arguments='--text "a red ring moves quickly to the right on white" --out clips',
)
STAGES = (
    Stage(
        folder="video",
        recipe="video/tokenizer_tiny",
        row=TOKENIZER,
        steps=330,
        seconds=80,
        minimal_settings={"videos.valid_limit": 4},
        evaluations=2,
    ),
)
DEMO = RoomDemo(position=2, stages=STAGES, ready="video", row=GENERATOR)
