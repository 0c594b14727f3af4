"""`quintet sample` for an adopted codec: copies of sounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import Input, each_input, find_inputs, write_sound

if TYPE_CHECKING:
    from quintet.music.adopt.model import AdoptedCodec


def copy_sounds(
    model: "AdoptedCodec", run: Path, inputs: Sequence[Path], out: Path, flags: Any
) -> list[Path]:
    """NAME.copy.wav of the middle --seconds of each file, and NAME.original.wav, as the codec was
    given it."""
    from quintet.media.audio import SUFFIXES

    if flags.text or flags.captions:
        raise RunError(f"{run} holds a codec: it copies sounds; drop --text and --captions")
    if not inputs:
        raise RunError(f"{run} holds a codec: give audio files to copy, or folders of them")
    files = find_inputs(inputs, (SUFFIXES,), "audio files", out)
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
