"""`quintet sample` for a flow generator of music: from captions, like a song, on from its end, into
a span of it, or as a loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.flow.sampling import FlowFlags
from quintet.shared.generation.sampling import (
    reads_captions,
    settings_of,
    together,
    write_samples,
)
from quintet.shared.sampling import Trained, check_positive, own_text, refuse_inputs, write_sound

if TYPE_CHECKING:
    from quintet.music.flow.model import MusicFlow

__all__ = ["EXAMPLE", "Flags", "example", "sample", "together"]
EXAMPLE = '--text "flute in C major at 96 bpm, even notes" --out out'


@dataclass(frozen=True, kw_only=True)
class Flags(FlowFlags):
    """Makes music of --text; changes (--like), continues or in-paints (--infill) a song."""

    seconds: float | None = None
    """Length, --continue included; unset: that of training."""
    like: Path | None = None
    """Song to begin from."""
    strength: float = 0.6
    """How far --like is changed: 0.3 a little, 0.9 nearly all."""
    continue_: Path | None = None
    """Song to go on with."""
    infill: Path | None = None
    """Song whose --span is replaced."""
    span: tuple[float, float] | None = None
    """Start and end of that part in seconds."""
    loop: bool = False
    """The end leads to the start."""


def example(recipe: Any, run: Path) -> list[str]:
    text = own_text(recipe, run, "flute in C major at 96 bpm, even notes")
    captioned = ["--text", text] if reads_captions(run) else []
    return [*captioned, "--count", "4", "--out", "out"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write CAPTION-000.wav and so on, and a sheet of all."""
    from functools import partial

    from quintet.music.flow.sheets import SongSheet

    check_positive(flags, "count")
    refuse_inputs(inputs, trained, "--text, --like, --continue or --infill")
    begun = _begun(flags)
    model: MusicFlow = trained.model(flags.device)
    rate = model.tokenizer.sample_rate
    if "sound" in begun:
        begun["sound"] = read_song(begun["sound"], rate, model.tokenizer.channels)
    draw = partial(model.generate, seconds=flags.seconds, loop=flags.loop, **begun)
    settings = settings_of(trained.path, flags)
    write = lambda path, sound: write_sound(path, sound.float().cpu().numpy().T, rate)
    paths, sheet = write_samples(model, out, flags, settings, draw, write, ".wav")
    return [*paths, *SongSheet(**sheet, rate=rate).write(out)]


def _begun(flags: Flags) -> dict[str, Any]:
    """Keywords of `MusicFlow.generate` for a song; its file, until it is read."""
    files = {"--like": flags.like, "--continue": flags.continue_, "--infill": flags.infill}
    named = [name for name, path in files.items() if path is not None]
    if len(named) > 1:
        raise RunError(f"{' and '.join(named)} are different tasks; give one of them")
    if (flags.infill is None) != (flags.span is None):
        raise RunError("in-painting takes --infill and --span FROM TO in seconds; give both")
    if flags.like is not None:
        return {"sound": flags.like, "strength": flags.strength}
    if flags.infill is not None:
        return {"sound": flags.infill, "span": flags.span}
    return {} if flags.continue_ is None else {"sound": flags.continue_}


def read_song(path: Path, rate: int, channels: int) -> Any:
    """(channels, n) of a song of at most ten minutes."""
    import torch

    from quintet.media.audio import AudioCaps, read_audio

    if not path.is_file():
        raise RunError(f"{path} is not a file; give a song (wav, flac, ogg, mp3)")
    song = read_audio(path, rate=rate, channels=channels, caps=AudioCaps(max_seconds=600))
    return torch.from_numpy(song).reshape(-1, channels).T.contiguous()
