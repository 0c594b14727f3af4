"""`quintet sample` for a vocoder: copies of recordings through log-mels."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import Input, each_input, loaded

if TYPE_CHECKING:
    from quintet.speech.vocoder.model import Vocoder

SPEAKING = ("text", "voice", "voice_text", "from_", "to", "seconds", "vocoder")
"""Flags of the room that a vocoder has no use for."""


def is_vocoder(run: Path) -> bool:
    """Whether a run or an export is a vocoder, by its config.json."""
    from quintet.engine.runs.folder import read_json, split_step

    about = read_json(split_step(run)[0] / "config.json")
    return "speech/Vocoder" in (about.get("model"), (about.get("main") or {}).get("model"))


def copy_files(run: Path, files: Sequence[Input], out: Path, flags: Any) -> list[Path]:
    """NAME.copy.wav of each recording, and a picture of both; `out` is a folder, or a .wav file
    for a single recording."""
    given = next((name for name in SPEAKING if getattr(flags, name)), None)
    if given is not None:
        name = given.rstrip("_").replace("_", "-")
        raise RunError(f"{run} is a vocoder: it copies recordings; drop --{name}")
    if not files:
        raise RunError(f"{run} is a vocoder: give recordings to copy, or folders of them")
    single = out.suffix.lower() == ".wav"
    if single and len(files) > 1:
        raise RunError(f"{out} is one file, but there are {len(files)} sounds; name a folder")
    model: Vocoder = loaded(run, flags.device)
    (out.parent if single else out).mkdir(parents=True, exist_ok=True)
    return each_input(
        files, lambda item: _copy(model, item, out if single else item.target(out, ".copy.wav"))
    )


def _copy(model: "Vocoder", item: Input, path: Path) -> list[Path]:
    from quintet.media.pixels import write_png
    from quintet.shared.exhibits import stacked
    from quintet.shared.sampling import write_sound
    from quintet.speech.sample import read_recording

    sound = read_recording(item.path, model.config.sample_rate).to(model.spread.device)
    copy = model.copy(sound)
    write_sound(path, copy.float().cpu().numpy(), model.config.sample_rate)
    picture = path.with_suffix(".png")
    log_mels = [model.mel(x[None])[0].cpu().numpy() for x in (sound, copy)]
    write_png(picture, stacked(log_mels))
    return [path, picture]
