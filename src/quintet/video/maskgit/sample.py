"""`quintet sample` for a generator of clips: from captions, or from the start of a clip."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.shared.generation.sampling import settings_of, write_samples
from quintet.shared.maskgit.sampling import MaskedFlags
from quintet.shared.sampling import Trained, check_positive, own_text, refuse_inputs
from quintet.video.tokenizer.sample import FPS, check_fps

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.video.maskgit.model import VideoMaskGit

EXAMPLE = '--text "a red star moves quickly upwards on white" --out out'


@dataclass(frozen=True, kw_only=True)
class Flags(MaskedFlags):
    """Generates clips of --text, and continues --clip."""

    clip: Path | None = None
    """Video or image to continue; resized and cropped to the size of the model."""
    frames: int | None = None
    """Length in frames, --clip included; default: that of training."""
    fps: float | None = None
    """Frames per second of clips that are written; unset: those of --clip, 16 where there is
    none."""


def example(recipe: Any, run: Path) -> list[str]:
    text = own_text(recipe, run, "a red star moves quickly upwards on white")
    captioned = [] if recipe.model.text == "none" else ["--text", text]
    return [*captioned, "--count", "4", "--out", "out"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write CAPTION-000.mp4 and so on, and a sheet of all."""
    from quintet.media.clips.reader import SUFFIXES, probe
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.pixels import displayed, to_bytes
    from quintet.video.exhibits import CaptionedClips

    check_positive(flags, "count")
    check_fps(flags.fps, "--fps")
    refuse_inputs(inputs, trained, "--text or --clip")
    model: VideoMaskGit = trained.model(flags.device)
    start = None if flags.clip is None else _read_start(model, flags.clip)
    moving = flags.clip is not None and flags.clip.suffix.lower() in SUFFIXES
    fps = flags.fps or (probe(flags.clip).rate if flags.clip and moving else FPS)
    draw = partial(model.generate, clip=start, frames=flags.frames)
    write = lambda path, clip: write_mp4(path, displayed(to_bytes(clip)), fps)
    settings = settings_of(trained.path, flags)
    paths, sheet = write_samples(model, out, flags, settings, draw, write, ".mp4")
    return [*paths, *CaptionedClips(**sheet).write(out)]


def _read_start(model: "VideoMaskGit", path: Path) -> "Tensor":
    """(c, t, h, w) in 0..1 of a video or an image, at the size of the model."""
    import numpy as np
    import torch

    from quintet.media.clips.reader import SUFFIXES, frames_of
    from quintet.media.pixels import read_image, resize_crop
    from quintet.shared.tokenizer.pixels import in_channels

    _, height, width = model.clip_shape
    moving = path.suffix.lower() in SUFFIXES
    frames = frames_of(path) if moving else iter([read_image(path)])
    array = np.stack([resize_crop(frame, (height, width)) for frame in frames])
    array = in_channels(array, model.tokenizer.config.channels)
    return torch.from_numpy(array).permute(3, 0, 1, 2).float() / 255
