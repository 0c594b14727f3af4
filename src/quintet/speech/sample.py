"""What `quintet sample` does for speech: speak a text, in a voice of choice, or mend a span."""

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


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Give --text to have it spoken, with --voice to have it spoken by somebody. Give a recording
    with --from and --to, in seconds, to have it say --text there instead."""

    text: tuple[str, ...] = ()
    """What to say."""
    voice: Path | None = None
    """A recording of the voice that is to say it."""
    voice_text: str | None = None
    """What is said in that recording, or in the one that is mended; it is spoken better with it."""
    from_: float | None = None
    """The second at which new speech begins, in a recording."""
    to: float | None = None
    """The second at which the recording goes on."""
    seconds: float | None = None
    """How long what is new lasts; left out: as long as it takes."""
    steps: int = 16
    """Steps of the solver."""
    method: Literal["euler", "midpoint", "adaptive"] = "midpoint"
    """Euler looks at the field once a step, midpoint twice; adaptive chooses its steps."""
    cond_scale: float = 1.3
    """How far text and voice are followed beyond what they ask for; 1 is as learned."""
    vocoder: Path | None = None
    """Folder with the weights of Vocos; left out: Griffin-Lim."""
    seed: int = 0
    """The same number gives the same speech."""
    device: Device = "auto"
    """Where to compute; auto takes the GPU where there is one."""


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Writes a sound for each text, and a picture of its log-mels; where `out` ends in .wav, it is
    the sound itself."""
    _check(inputs, out, flags)
    model: VoiceBox = loaded(run, flags.device)
    if model.frames.mel is None:
        raise RunError(f"{run} is a model of latents; use it from Python, with your own decoder")
    vocoder = _vocoder(model, flags)
    try:
        sounds = _mend(model, inputs[0], flags, vocoder) if inputs else _say(model, flags, vocoder)
    except ValueError as error:
        raise RunError(str(error)) from None
    return _write(model, sounds, out, flags.text)


def _check(inputs: Sequence[Path], out: Path, flags: Flags) -> None:
    if not flags.text:
        raise RunError('say what to speak: --text "…"')
    check_positive(flags, "steps")
    if flags.seconds is not None and not 0 < flags.seconds <= 600:
        raise RunError(f"--seconds is {flags.seconds}; give more than 0, at most 600")
    span = flags.from_ is not None or flags.to is not None
    if span and (flags.from_ is None or flags.to is None or not inputs):
        raise RunError("to mend a span give a recording, --from and --to, in seconds")
    if inputs and not span:
        raise RunError(f"{inputs[0]}: give --from and --to, or a voice to speak with as --voice")
    if len(inputs) > 1 or (inputs and len(flags.text) > 1):
        raise RunError("a span is mended in one recording, with one --text")
    if inputs and flags.voice:
        raise RunError("a mended recording keeps its own voice; leave --voice away")
    if flags.voice_text is not None and not (inputs or flags.voice):
        raise RunError("--voice-text is what a recording says; give --voice as well")
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


def _say(model: "VoiceBox", flags: Flags, vocoder: "nn.Module | None") -> list["Tensor"]:
    cond = None
    count = len(flags.text)
    if flags.voice is not None:
        cond = [_read(flags.voice, model.config.rate)] * count
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


def _mend(
    model: "VoiceBox", path: Path, flags: Flags, vocoder: "nn.Module | None"
) -> list["Tensor"]:
    from quintet.speech.speaking import Solver

    assert flags.from_ is not None
    assert flags.to is not None
    sound = model.edit(
        _read(path, model.config.rate),
        flags.from_,
        flags.to,
        flags.text[0],
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

    assert model.frames.mel is not None
    single = out.suffix.lower() in SOUND
    (out.parent if single else out).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, (sound, text) in enumerate(zip(sounds, texts)):
        path = out if single else out / f"{stem_of(text, number)}.wav"
        write_wav(path, sound.float().cpu().numpy(), model.config.rate)
        picture = path.with_suffix(".png")
        write_png(picture, side_by_side([model.frames.mel(sound[None])[0].cpu().numpy()]))
        written += [path, picture]
    return written
