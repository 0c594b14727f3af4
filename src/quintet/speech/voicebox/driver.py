"""Speech with the graphs of a VoiceBox; without torch, see `shared/export/run.py`."""

import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from quintet.shared.export.run import Model, fold, normal, solve
from quintet.speech.text.characters import UNKNOWN
from quintet.speech.text.spelling import ids_of, passages
from quintet.speech.voicebox.sound import Sounds

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
    vocoder: str | None,
) -> list[Any]:
    """One sound (n,)."""
    ids = read(model.about, text, language)
    frames = infilled(model, ids, seed, steps, method, cond_scale, seconds)
    about = model.about
    log_mels = frames * np.float32(about["std"]) + np.float32(about["mean"])
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


def read(about: dict[str, Any], text: str | None, language: str) -> Any:
    if text is None:
        raise SystemExit('nothing to speak; give --text "…"')
    (part, *more) = passages(text, about["limit"])
    if more:
        raise SystemExit(f"a text has more than {about['limit']} bytes; give it in parts")
    return np.array(ids_of(part.text, SimpleNamespace(**about), language))


def infilled(
    model: Model,
    ids: Any,
    seed: int,
    steps: int,
    method: str,
    cond_scale: float,
    seconds: float | None,
) -> Any:
    """(t, c): frames of speech."""
    about = model.about
    (frames,) = model("durations", ids=ids[None])
    ends = np.maximum(frames[0], 1).astype(np.float64).cumsum()
    if seconds is not None:
        total = max(1, round(seconds * about["sample_rate"] / about["hop_length"]))
        ends *= total / ends[-1]
    ends = np.floor(ends + 0.5).astype(np.int64)
    frame_ids = np.repeat(ids, np.diff(ends, prepend=0))[None]
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
