"""`quintet sample` for a generator of clips: from captions, or from the start of a clip."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.shared.generation.sampling import together
from quintet.shared.maskgit.sampling import MaskedFlags
from quintet.shared.sampling import Trained, own_text

if TYPE_CHECKING:
    pass

__all__ = ["EXAMPLE", "Flags", "example", "sample", "together"]
EXAMPLE = '--text "a red star moves quickly upwards on white" --out out'


@dataclass(frozen=True, kw_only=True)
class Flags(MaskedFlags):
    """Generates clips of --text, and continues --clip."""

    clip: Path | None = None
    """Video or image to continue; resized and cropped to the size of the model."""
    frames: int | None = None
    """Length in frames, --clip included; default: that of training, or a chunk more than a --clip
    that is as long."""
    fps: float | None = None
    """Frames per second of clips that are written; unset: those of --clip, 16 where there is
    none."""


def example(recipe: Any, run: Path) -> list[str]:
    text = own_text(recipe, run, "a red star moves quickly upwards on white")
    captioned = [] if recipe.model.text == "none" else ["--text", text]
    return [*captioned, "--count", "4", "--out", "out"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write CAPTION-000.mp4 and so on, and a sheet of all."""
    from quintet.video.generation import generate_clips

    return generate_clips(trained, inputs, out, flags)
