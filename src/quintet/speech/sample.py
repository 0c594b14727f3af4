"""`quintet sample` for speech: text to speech, voice cloning, and editing of a span."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from quintet.engine.errors import RunError
from quintet.shared.sampling import Device, check_positive, loaded, stem_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quintet.speech.model import VoiceBox

SOUND = (".wav",)


EXAMPLE = '--text "ba do ki" --voice me.wav --out spoken.wav'


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Speaks --text, with --voice in the voice of a recording. With a recording, --from and --to,
    --text replaces that span; a model without texts infills it."""

    text: tuple[str, ...] = ()
    """Text to speak; may be repeated."""
    voice: Path | None = None
    """Reference recording of the voice."""
    voice_text: str | None = None
    """Transcript of the reference, or of the recording to edit; improves the result."""
    from_: float | None = None
    """Start of the span to replace, in seconds."""
    to: float | None = None
    """End of the span to replace, in seconds."""
    seconds: float | None = None
    """Duration of the new speech; unset: predicted."""
    steps: int = 16
    """Steps of the ODE solver."""
    method: Literal["euler", "midpoint", "adaptive"] = "midpoint"
    """euler: one network evaluation per step; midpoint: two; adaptive: Dormand-Prince."""
    cond_scale: float = 1.3
    """Scale of classifier-free guidance; 1: none."""
    vocoder: Path | None = None
    """Folder with Vocos weights; unset: Griffin-Lim."""
    seed: int = 0
    """Random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write a sound and a picture of its log-mels for each text; `out` is a folder, or a .wav file
    for a single text."""
    _check(inputs, out, flags)
    model: VoiceBox = loaded(run, flags.device)
    if model.features.mel is None:
        raise RunError(f"{run} is a model of latents; use it from Python with your decoder")
    if model.config.text == "none" and (flags.text or not inputs):
        raise RunError(f"{run} was trained without texts; give a recording, --from and --to alone")
    if model.config.text != "none" and not flags.text:
        raise RunError('nothing to speak; give --text "…"')
    vocoder = _vocoder(model, flags)
    try:
        sounds = (
            _edit(model, inputs[0], flags, vocoder) if inputs else _speak(model, flags, vocoder)
        )
    except ValueError as error:
        raise RunError(str(error)) from None
    return _write(model, sounds, out, flags.text or [inputs[0].stem])


def _check(inputs: Sequence[Path], out: Path, flags: Flags) -> None:
    if not flags.text and not inputs:
        raise RunError('nothing to speak; give --text "…"')
    check_positive(flags, "steps")
    if flags.seconds is not None and not 0 < flags.seconds <= 600:
        raise RunError(f"--seconds is {flags.seconds}; give more than 0, at most 600")
    edit = flags.from_ is not None or flags.to is not None
    if edit and (flags.from_ is None or flags.to is None or not inputs):
        raise RunError("to edit a span, give a recording, --from and --to, in seconds")
    if inputs and not edit:
        raise RunError(f"{inputs[0]}: give --from and --to, or pass it as --voice")
    if len(inputs) > 1 or (inputs and len(flags.text) > 1):
        raise RunError("editing takes one recording and one --text")
    if inputs and flags.voice:
        raise RunError("an edited recording keeps its own voice; drop --voice")
    if flags.voice_text is not None and not (inputs or flags.voice):
        raise RunError("--voice-text is the transcript of a recording; give --voice as well")
    if out.suffix.lower() in SOUND and len(flags.text) > 1:
        raise RunError(f"{out} is one file, but there are {len(flags.text)} texts; name a folder")


def _vocoder(model: "VoiceBox", flags: Flags) -> "nn.Module | None":
    from quintet.speech.vocoders import matching_vocoder

    if flags.vocoder is None:
        return None
    return matching_vocoder(flags.vocoder, model.config).to(model.device)


def _read(path: Path, rate: int) -> "Tensor":
    import torch

    from quintet.media.audio import AudioCaps, read_audio

    if not path.is_file():
        raise RunError(f"{path} is not a file; give a recording (wav, flac, ogg, mp3)")
    return torch.from_numpy(read_audio(path, rate=rate, caps=AudioCaps(max_seconds=600)))


def _speak(model: "VoiceBox", flags: Flags, vocoder: "nn.Module | None") -> list["Tensor"]:
    cond = None
    count = len(flags.text)
    if flags.voice is not None:
        cond = [_read(flags.voice, model.config.sample_rate)] * count
    return model.sample(
        cond=cond,
        texts=flags.text,
        cond_texts=[flags.voice_text] * count,
        seconds=flags.seconds,
        steps=flags.steps,
        cond_scale=flags.cond_scale,
        method=flags.method,
        seed=flags.seed,
        vocoder=vocoder,
    )


def _edit(
    model: "VoiceBox", path: Path, flags: Flags, vocoder: "nn.Module | None"
) -> list["Tensor"]:
    from quintet.speech.inference import Solver

    assert flags.from_ is not None
    assert flags.to is not None
    sound = model.edit(
        _read(path, model.config.sample_rate),
        flags.from_,
        flags.to,
        flags.text[0] if flags.text else None,
        flags.voice_text,
        seconds=flags.seconds,
        solver=Solver(flags.steps, flags.method, cond_scale=flags.cond_scale),
        seed=flags.seed,
        vocoder=vocoder,
    )
    return [sound]


def _write(
    model: "VoiceBox", sounds: Sequence["Tensor"], out: Path, texts: Sequence[str]
) -> list[Path]:
    from quintet.media.audio import write_wav
    from quintet.media.pixels import write_png
    from quintet.speech.exhibits import side_by_side

    assert model.features.mel is not None
    single = out.suffix.lower() in SOUND
    (out.parent if single else out).mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for number, (sound, text) in enumerate(zip(sounds, texts)):
        path = out if single else out / f"{stem_of(text, number)}.wav"
        write_wav(path, sound.float().cpu().numpy(), model.config.sample_rate)
        picture = path.with_suffix(".png")
        write_png(picture, side_by_side([model.features.mel(sound[None])[0].cpu().numpy()]))
        paths += [path, picture]
    return paths
