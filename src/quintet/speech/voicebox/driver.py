"""Speech with the graphs of a VoiceBox; without torch, see `shared/export/run.py`."""

import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from quintet.shared.export.run import Model, fold, normal, solve
from quintet.speech.text.characters import UNKNOWN
from quintet.speech.text.markup import parse, parts_of
from quintet.speech.text.spelling import ids_of
from quintet.speech.text.timing import PAUSE_ID, Pause, Timing, timed, units_of
from quintet.speech.voicebox.sound import FLOOR, Sounds

SPECTRA = ("sample_rate", "n_fft", "hop_length", "n_mels")


def generate(
    model: Model,
    text: str | None,
    *,
    seed: int,
    steps: int,
    method: str,
    cond_scale: float,
    language: str,
    seconds: float | None,
    rate: float,
    vocoder: str | None,
) -> list[Any]:
    """One sound (n,)."""
    about = model.about
    try:
        ids, timing = read(about, text, language, rate)
        frame_ids, pauses = laid_out(model, ids, timing, seconds)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    frames = infilled(model, frame_ids, seed, steps, method, cond_scale)
    log_mels = frames * np.float32(about["std"]) + np.float32(about["mean"])
    for start, solved, count in reversed(pauses):
        silence = np.full((count, about["n_mels"]), np.log(FLOOR), np.float32)
        log_mels = np.concatenate((log_mels[:start], silence, log_mels[start + solved :]))
    sounds = Sounds(*(about[name] for name in SPECTRA))
    if vocoder is None:
        return [sounds.griffin_lim(log_mels)]
    network = Model(Path(vocoder))
    for name in SPECTRA:
        if network.about.get(name) != about[name]:
            theirs = network.about.get(name)
            raise SystemExit(f"--vocoder {vocoder} has {name} = {theirs}, the model {about[name]}")
    offsets = lambda rows: network("offsets", frames=rows[None])[0][0]
    rounds = network.about["retrievals"], network.about["corrections"]
    return [sounds.vocoded(log_mels, offsets, *rounds)]


def read(
    about: dict[str, Any], text: str | None, language: str, rate: float
) -> tuple[Any, Timing | None]:
    """Ids, and what marks and the rate ask of their durations."""
    if text is None:
        raise ValueError('nothing to speak; give --text "…"')
    (part, *more) = parts_of(parse(text, rate), about["limit"])
    if more:
        raise ValueError(f"a text has more than {about['limit']} bytes; give it in parts")
    config = SimpleNamespace(**about)
    if part.marked.is_plain:
        return np.array(ids_of(part.marked.text, config, language)), None
    ids, timing = units_of(part.marked, config, language)
    return np.array(ids), timing._replace(rates=tuple(rate * own for own in timing.rates))


def laid_out(
    model: Model, ids: Any, timing: Timing | None, seconds: float | None
) -> tuple[Any, tuple[Pause, ...]]:
    """(t,): the id of each frame, and the pauses."""
    frame_rate = model.about["sample_rate"] / model.about["hop_length"]
    (frames,) = model("durations", ids=ids[None])
    predicted = np.maximum(frames[0], 1).astype(np.float64)
    ends, total = predicted.cumsum(), None
    if seconds is not None:
        total = max(1, round(seconds * model.about["sample_rate"] / model.about["hop_length"]))
        ends *= total / ends[-1] if timing is None else 1
    counts = np.diff(np.floor(ends + 0.5).astype(np.int64), prepend=0)
    if timing is None:
        return np.repeat(ids, counts), ()
    units, durations, pauses = timed(predicted.tolist(), counts.tolist(), timing, frame_rate, total)
    return np.repeat([PAUSE_ID if unit < 0 else ids[unit] for unit in units], durations), pauses


def infilled(
    model: Model, frame_ids: Any, seed: int, steps: int, method: str, cond_scale: float
) -> Any:
    """(t, c): frames of speech."""
    about, frame_ids = model.about, frame_ids[None]
    shape = (len(frame_ids[0]), about["n_mels"])
    if cond_scale != 1:
        frame_ids = np.concatenate((frame_ids, np.full_like(frame_ids, UNKNOWN)))
    everywhere = np.ones(frame_ids.shape, bool)
    rows = len(frame_ids)

    def velocity(x: Any, time: Any, _: Any) -> Any:
        (out,) = model(
            "velocity",
            x=np.repeat(x, rows, 0),
            time=np.full(rows, time, np.float32),
            context=np.zeros((rows, *shape), np.float32),
            infill_mask=everywhere,
            frame_ids=frame_ids,
            mask=everywhere,
        )
        return out[1:] + np.float32(cond_scale) * (out[:1] - out[1:]) if rows > 1 else out

    times = np.linspace(0, 1, steps + 1)
    times = times + about["sway"] * (np.cos(np.pi / 2 * times) - 1 + times)
    x = normal(np.array([fold("speak", seed, 0)], np.uint64), "noise", shape)
    return solve(velocity, x, times.astype(np.float32), method)[0]


def write(path: Path, sound: Any, about: dict[str, Any]) -> Path:
    """A WAV of 16 bits."""
    path = path.with_suffix(".wav")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, about["sample_rate"], 0, "NONE", ""))
        file.writeframes(np.rint(np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
    return path
