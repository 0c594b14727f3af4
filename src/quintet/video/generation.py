"""What `quintet sample` does for every generator of clips."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from quintet.media.clips.writer import write_mp4
from quintet.shared.generation.sampling import settings_of, write_samples
from quintet.shared.sampling import Trained, check_positive, refuse_inputs
from quintet.shared.tokenizer.pixels import displayed, to_bytes
from quintet.video.continuing import rate_of, read_start
from quintet.video.exhibits import CaptionedClips
from quintet.video.tokenizer.sample import FPS, check_fps


def generate_clips(
    trained: Trained, inputs: Sequence[Path], out: Path, flags: Any, **files: Path | None
) -> list[Path]:
    """Write CAPTION-000.mp4 and so on, and a sheet of all. `files` are further keywords of the
    model's `generate`, which takes what they show."""
    check_positive(flags, "count")
    check_fps(flags.fps, "--fps")
    refuse_inputs(inputs, trained, "--text or --clip")
    model = trained.model(flags.device)
    size, channels = model.clip_shape[1:], model.tokenizer.config.channels
    asked = {"clip": flags.clip, **files}
    frames = {name: read_start(path, size, channels) for name, path in asked.items() if path}
    fps = rate_of(flags.clip, flags.fps, FPS)
    draw = partial(model.generate, frames=flags.frames, **frames)
    settings = settings_of(trained.path, flags)
    write = lambda path, clip: write_mp4(path, displayed(to_bytes(clip)), fps)
    paths, sheet = write_samples(model, out, flags, settings, draw, write, ".mp4")
    return [*paths, *CaptionedClips(**sheet).write(out)]
