"""`quintet sample` for an adopted codec: copies of sounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    Device,
    Input,
    Trained,
    check_positive,
    each_input,
    find_inputs,
    with_input,
    write_sound,
)

if TYPE_CHECKING:
    from quintet.music.adopt.model import AdoptedCodec

EXAMPLE = "songs --out copies"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Copies audio files, or folders of them, through the codec."""

    seconds: float = 10.0
    """Length of the centre crop of each file."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    return with_input(recipe, run, (".wav",), "--out", "out")


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """NAME.copy.wav of the middle --seconds of each file, and NAME.original.wav, as the codec was
    given it."""
    from quintet.media.audio import SUFFIXES

    check_positive(flags, "seconds")
    if not inputs:
        raise RunError(f"{trained.path} holds a codec: give audio files to copy, or folders")
    files = find_inputs(inputs, (SUFFIXES,), "audio files")
    model: AdoptedCodec = trained.model(flags.device)
    out.mkdir(parents=True, exist_ok=True)
    return each_input(files, lambda item: _copy(model, item, out, flags.seconds))


def _copy(model: "AdoptedCodec", item: Input, out: Path, seconds: float) -> list[Path]:
    import torch

    from quintet.media.audio import read_audio

    rate, channels = model.sample_rate, model.channels
    wav = read_audio(item.path, rate=rate, seconds=seconds, channels=channels)
    sound = torch.from_numpy(wav).view(len(wav), channels).T[None]
    copy = model.reconstruct(sound.to(next(model.parameters()).device))
    pair = {"original": sound, "copy": copy}
    paths = [item.target(out, f".{name}.wav") for name in pair]
    for path, values in zip(paths, pair.values()):
        write_sound(path, values[0].T.float().cpu().numpy(), rate)
    return paths
