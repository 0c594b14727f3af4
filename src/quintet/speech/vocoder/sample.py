"""`quintet sample` for a vocoder: copies of recordings through log-mels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    Device,
    Input,
    Trained,
    each_input,
    find_inputs,
    read_recording,
    with_input,
    write_sound,
)

if TYPE_CHECKING:
    from quintet.speech.vocoder.model import Vocoder

EXAMPLE = "recording.wav --out copy.wav"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Copies recordings, or folders of them, through log-mels."""

    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    return with_input(recipe, run, (".wav",), "--out", "copy.wav")


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """NAME.copy.wav of each recording, and a picture of both; `out` is a folder, or a .wav file
    for a single recording."""
    from quintet.media.audio import SUFFIXES

    single = out.suffix.lower() == ".wav"
    files = find_inputs(inputs, (SUFFIXES,), "recordings (wav, flac, ogg, mp3)")
    if not files:
        raise RunError(f"{trained.path} is a vocoder: give recordings to copy, or folders of them")
    if single and len(files) > 1:
        raise RunError(f"{out} is one file, but there are {len(files)} sounds; name a folder")
    model: Vocoder = trained.model(flags.device)
    (out.parent if single else out).mkdir(parents=True, exist_ok=True)
    return each_input(
        files, lambda item: _copy(model, item, out if single else item.target(out, ".copy.wav"))
    )


def _copy(model: "Vocoder", item: Input, path: Path) -> list[Path]:
    from quintet.media.pixels import write_png
    from quintet.shared.exhibits import stacked

    sound = read_recording(item.path, model.config.sample_rate).to(model.spread.device)
    copy = model.copy(sound)
    write_sound(path, copy.float().cpu().numpy(), model.config.sample_rate)
    picture = path.with_suffix(".png")
    log_mels = [model.mel(x[None])[0].cpu().numpy() for x in (sound, copy)]
    write_png(picture, stacked(log_mels))
    return [path, picture]
