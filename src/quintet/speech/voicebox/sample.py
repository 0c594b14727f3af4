"""`quintet sample` for speech: text to speech, voice cloning, and editing of a span."""

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quintet.engine.errors import RunError, Stopped
from quintet.shared.sampling import (
    Device,
    Input,
    Trained,
    check_positive,
    each_input,
    find_inputs,
    own_text,
    read_recording,
    say,
    say_clipping,
    stem_of,
    with_input,
    with_progress,
    write_sound,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quintet.speech.text.markup import Marked, Part
    from quintet.speech.voicebox.inference import Solver
    from quintet.speech.voicebox.model import VoiceBox

SENTENCE = 256
"""Bytes that an exported model is given at once; of a run, those that it was trained on."""
EXAMPLE = '--text "ba do ki" --voice me.wav --out spoken.wav'
QUICK = True
"""On a CPU speech for several takes as long at once as in turn, and the first sound would wait."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Speaks --text, or each line of --text-file, with --voice in the voice of a recording. With
    recordings or folders, --from and --to, --text replaces that span in each; a model without
    texts infills it."""

    text: tuple[str, ...] = ()
    """Text to speak; marks such as <break 400ms> (docs/speech.md) set pauses and rates."""
    text_file: Path | None = None
    """File of texts to speak, one on each line."""
    language: str = ""
    """Language of the texts for a model of phonemes, such as de; unset: that of the model."""
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
    rate: float = 1.0
    """Rate of speech, from 0.25 to 4."""
    duration_spread: float = 0.0
    """Spread of durations, drawn by the seed."""
    steps: int | None = None
    """Steps of the ODE solver. Defaults from here to --cond-scale: the run's evaluations."""
    method: Literal["euler", "midpoint", "adaptive"] | None = None
    """euler: one network evaluation per step; midpoint: two; adaptive: Dormand-Prince."""
    cond_scale: float | None = None
    """Classifier-free guidance; 1: none."""
    vocoder: Path | None = None
    """Run of a vocoder, or folder with Vocos weights; unset: Griffin-Lim."""
    seed: int = 0
    """Random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    if recipe.model.features == "mel" and recipe.model.text != "none":
        return ["--text", own_text(recipe, run, "ba do ki"), "--out", "spoken.wav"]
    if recipe.model.features != "mel":
        return []
    span = ["--from", "0.2", "--to", "0.4"]
    return with_input(recipe, run, (".wav",), *span, "--out", "infilled.wav")


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write a sound and a picture of its log-mels for each text, or NAME.edited.wav for each
    recording; `out` is a folder, or a .wav file for a single sound."""
    from quintet.media.audio import SUFFIXES
    from quintet.speech.text.markup import parse
    from quintet.speech.vocoder.loading import matching_vocoder

    flags = replace(flags, text=(*flags.text, *_lines(flags.text_file)))
    single = out.suffix.lower() == ".wav"
    files = find_inputs(inputs, (SUFFIXES,), "recordings (wav, flac, ogg, mp3)")
    _check(files, flags)
    with _refusals():
        plain = [parse(text).text for text in flags.text]
    count = len(files) or len(flags.text)
    if single and count > 1:
        raise RunError(f"{out} is one file, but there are {count} sounds; name a folder")
    model: VoiceBox = trained.model(flags.device)
    if model.features.mel is None:
        raise RunError(f"{trained.path} makes latents; use it from Python with your decoder")
    if model.config.text == "none" and (flags.text or not files):
        raise RunError(
            f"{trained.path} was trained without texts; give a recording, --from and --to alone"
        )
    if model.config.text != "none" and not flags.text:
        raise RunError('nothing to speak; give --text "…", or --text-file')
    solver, vocoder = solver_of(trained.path, flags), None
    if flags.vocoder is not None:
        vocoder = matching_vocoder(flags.vocoder, model.config).to(model.device)

    def edit(item: Input) -> list[Path]:
        with _refusals():
            sound = _edit(model, item.path, flags, solver, vocoder)
        return _write(model, sound, out if single else item.target(out, ".edited.wav"))

    (out.parent if single else out).mkdir(parents=True, exist_ok=True)
    if files:
        return each_input(files, edit)
    limit = SENTENCE if trained.recipe is None else trained.recipe.recordings.text_length
    names = [out] if single else [out / f"{stem_of(t, n)}.wav" for n, t in enumerate(plain)]
    return _speak_all(model, names, flags, solver, vocoder, limit)


def together(model: "VoiceBox", calls: Sequence[Mapping[str, Any]]) -> "list[list[Tensor]]":
    """What `model.sample` says for each of these keywords."""
    from quintet.speech.voicebox.inference import speak_together

    return speak_together(model, calls)


def solver_of(run: Path, flags: Flags) -> "Solver":
    """How to solve the flow: as the flags say where they are given, and else as in the evaluations
    of the run."""
    from quintet.engine.runs.folder import RunFolder
    from quintet.speech.voicebox.inference import Solver

    own = RunFolder.open(run).about.get("settings", {}).get("sampling", {})
    chosen = {name: value for name, value in own.items() if name in Solver._fields}
    asked = {name: getattr(flags, name) for name in ("steps", "method", "cond_scale")}
    return Solver(**chosen | {name: value for name, value in asked.items() if value is not None})


def _lines(path: Path | None) -> list[str]:
    from quintet.media.sidecars import read_beside

    if path is None:
        return []
    lines = read_beside(path, "one text on each line").splitlines()
    return [line.strip() for line in lines if line.strip()]


class Pace:
    """How fast speech is made, from the loaded model on."""

    def __init__(self) -> None:
        self.started, self.first, self.last, self.seconds = time.perf_counter(), 0.0, 0.0, 0.0
        self.parts = 0

    def heard(self, seconds: float) -> None:
        """A part is in its file."""
        self.last, self.seconds = time.perf_counter() - self.started, self.seconds + seconds
        self.parts += 1
        self.first = self.first or self.last

    def __str__(self) -> str:
        factor = self.last / max(self.seconds, 1e-9)
        return (
            f"{self.seconds:.1f} s of speech in {self.last:.1f} s, a real-time factor of "
            f"{factor:.2f}; the first sound after {self.first:.2f} s"
        )


@contextmanager
def _refusals() -> Generator[None]:
    """Turn the model's own refusals into those of the command."""
    from quintet.media.errors import BadFile

    try:
        yield
    except BadFile:
        raise
    except ValueError as error:
        raise RunError(str(error)) from None


def _check(files: Sequence[Input], flags: Flags) -> None:
    if not flags.text and not files:
        raise RunError('nothing to speak; give --text "…", or --text-file')
    if flags.steps is not None:
        check_positive(flags, "steps")
    if flags.seconds is not None and not 0 < flags.seconds <= 600:
        raise RunError(f"--seconds is {flags.seconds}; give more than 0, at most 600")
    if not 0.25 <= flags.rate <= 4:
        raise RunError(f"--rate is {flags.rate:g}; give 0.25 (slow) to 4 (fast)")
    if not 0 <= flags.duration_spread <= 0.5:
        raise RunError(f"--duration-spread is {flags.duration_spread:g}; give 0 to 0.5")
    if flags.cond_scale is not None and not math.isfinite(flags.cond_scale):
        raise RunError(f"--cond-scale is {flags.cond_scale}; give a finite number")
    edit = flags.from_ is not None or flags.to is not None
    if edit and (flags.from_ is None or flags.to is None or not files):
        raise RunError("to edit a span, give a recording, --from and --to, in seconds")
    if files and not edit:
        raise RunError(f"{files[0].path}: give --from and --to, or pass it as --voice")
    if files and len(flags.text) > 1:
        raise RunError("editing takes one --text, the same for all recordings")
    if files and flags.voice:
        raise RunError("an edited recording keeps its own voice; drop --voice")
    if flags.voice_text is not None and not (files or flags.voice):
        raise RunError("--voice-text is the transcript of a recording; give --voice as well")
    if flags.voice_text is not None and len(files) > 1:
        raise RunError("--voice-text is the transcript of one recording; edit them separately")


def _speak_all(
    model: "VoiceBox",
    paths: Sequence[Path],
    flags: Flags,
    solver: "Solver",
    vocoder: "nn.Module | None",
    limit: int,
) -> list[Path]:
    """Each text into its file, part by part: what was spoken before Ctrl-C stays."""
    rate = model.config.sample_rate
    with _refusals():
        texts = [_parts(text, flags, limit) for text in flags.text]
        voice = None if flags.voice is None else read_recording(flags.voice, rate)
    written: list[Path] = []
    pace, path = Pace(), paths[0]
    every = [part for parts in texts for part in parts]
    with closing(with_progress(every, what="speaking")) as turns:
        try:
            for number, (path, parts) in enumerate(zip(paths, texts)):
                sounds = _speak(model, number, parts, flags, solver, voice, vocoder)
                with _refusals():
                    sound = _record(path, zip(parts, turns, sounds), rate, pace)
                written += [path, _picture(model, sound, path)]
        except KeyboardInterrupt:
            if not pace.parts:
                raise
            done = f"{pace.parts} of {len(every)} parts, {pace.seconds:.1f} s of speech"
            raise Stopped(f"interrupted after {done}; the last are in {path}", 130) from None
    say(str(pace))
    return written


def _parts(text: str, flags: Flags, limit: int) -> list["Part"]:
    """Parts of a text that the model can hold, next to the reference of the voice."""
    from quintet.speech.text.markup import parse, parts_of

    marked = parse(text, flags.rate, flags.duration_spread)
    if flags.voice is not None:
        # The reference is part of what the model was trained to hold, but leaves half of it.
        limit = max(limit // 2, limit - len((flags.voice_text or "").encode()))
    parts = parts_of(marked, limit)
    if len(parts) > 1 and flags.voice is None:
        parts = parts_of(marked, max(1, limit // 2))
    return parts


def _speak(
    model: "VoiceBox",
    number: int,
    parts: Sequence["Part"],
    flags: Flags,
    solver: "Solver",
    voice: "Tensor | None",
    vocoder: "nn.Module | None",
) -> Iterator["Tensor"]:
    """The sound of each part of a text, in one voice: without --voice, that of the first part."""
    from quintet.speech.voicebox.control import frame_rate

    voice_text: Any = flags.voice_text
    spoken = 0.0
    for place, part in enumerate(parts):
        (sound,) = model.sample(
            cond=None if voice is None else [voice],
            texts=[part.marked],
            cond_texts=[voice_text],
            language=flags.language,
            seconds=_share(parts, place, flags, spoken, 1 / frame_rate(model.config)),
            seed=flags.seed + number,
            vocoder=vocoder,
            **solver._asdict(),
        )
        sound = sound.float().cpu()
        if voice is None:
            voice, voice_text = _as_reference(part, sound, model.config.sample_rate)
        spoken += len(sound) / model.config.sample_rate
        yield sound


def _as_reference(part: "Part", sound: "Tensor", rate: int) -> tuple["Tensor", "str | Marked"]:
    """The sound and the transcript of a part, for the voice of those after it."""
    from quintet.speech.voicebox.control import without_pauses

    marks = part.marked.marks
    if not marks:
        return sound, part.marked.text
    return without_pauses(sound, rate), part.marked


def _share(
    parts: Sequence["Part"], place: int, flags: Flags, spoken: float, frame: float
) -> float | None:
    """Seconds of a part, after `spoken` ones of those before it: its share by length. With marks or
    a rate the pauses between parts count, what is fixed is not shared, and a frame is added: sounds
    end at the centre of their last."""
    from quintet.speech.text.markup import fixed_seconds

    if flags.seconds is None:
        return None
    lengths = [len(part.marked.text) for part in parts]
    if flags.rate == 1 and not any(part.marked.marks for part in parts):
        return flags.seconds * (lengths[place] / sum(lengths))
    fixed = [fixed_seconds(part.marked) for part in parts]
    rest = flags.seconds - spoken - sum(part.pause for part in parts) - sum(fixed[place:])
    if rest <= 0:
        raise ValueError(
            f"--seconds {flags.seconds:g} is less than the breaks and lengths; give more"
        )
    return fixed[place] + rest * lengths[place] / sum(lengths[place:]) + frame


def _record(
    path: Path, spoken: Iterable[tuple["Part", Any, "Tensor"]], rate: int, pace: Pace
) -> "Tensor":
    """Write each part as it comes; returns all of them."""
    import torch

    from quintet.media.wav import WavWriter

    sounds: list[Tensor] = []
    with WavWriter(path, rate) as file:
        for part, _, sound in spoken:
            sounds += [sound, torch.zeros(round(part.pause * rate))]
            file.add(torch.cat(sounds[-2:]).numpy())
            pace.heard(len(sound) / rate)
    say_clipping(path, file.clipping)
    return torch.cat(sounds)


def _edit(
    model: "VoiceBox", path: Path, flags: Flags, solver: "Solver", vocoder: "nn.Module | None"
) -> "Tensor":
    from quintet.speech.text.markup import parse

    assert flags.from_ is not None
    assert flags.to is not None
    return model.edit(
        read_recording(path, model.config.sample_rate),
        flags.from_,
        flags.to,
        parse(flags.text[0], flags.rate, flags.duration_spread) if flags.text else None,
        flags.voice_text,
        language=flags.language,
        seconds=flags.seconds,
        solver=solver,
        seed=flags.seed,
        vocoder=vocoder,
    )


def _write(model: "VoiceBox", sound: "Tensor", path: Path) -> list[Path]:
    write_sound(path, sound.float().cpu().numpy(), model.config.sample_rate)
    return [path, _picture(model, sound, path)]


def _picture(model: "VoiceBox", sound: "Tensor", path: Path) -> Path:
    """The log-mels of a sound, next to it."""
    from quintet.media.pixels import write_png
    from quintet.shared.exhibits import stacked

    assert model.features.mel is not None
    mels = model.features.mel(sound.to(model.device)[None])[0]
    write_png(path.with_suffix(".png"), stacked([mels.cpu().numpy()]))
    return path.with_suffix(".png")
