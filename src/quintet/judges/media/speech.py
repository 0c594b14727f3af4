"""Judges of speech: what an outside recogniser understands, whose voice it is, spectrum, pitch and
duration.

Words are recognised by PocketSphinx, whose package carries an English model, and errors counted by
jiwer (`quintet[judges]`): the number depends on the recogniser and compares only with itself. The
output's sound is judged against the reference's text.
"""

import hashlib
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quintet.engine.errors import RunError
from quintet.files import atomic_write, once
from quintet.judges import weights
from quintet.judges.base import Array, Judge, Options, PairJudge
from quintet.judges.receipt import set_digest
from quintet.media import pitch as yin
from quintet.media.audio import (
    SUFFIXES,
    Samples,
    read_audio,
    resampled,
    to_16_bits,
    write_wav,
)
from quintet.media.folder import METADATA, files, relative_name
from quintet.media.sidecars import REMEDY, read_beside
from quintet.mel import mel_filterbank
from quintet.shared.outputs import Sound

if TYPE_CHECKING:
    from quintet.judges.voice import VoiceEncoder
    from quintet.shared.transcripts import Transcripts

RATE = 16_000
"""Sample rate of the recogniser and of the voice encoder."""


class Recording(NamedTuple):
    wav: Samples
    rate: int
    text: str
    """The transcript as written, or empty."""
    path: Path
    speaker: str = ""
    """A name, or that of the folder where none is given."""


def read(path: Path | str, rate: int = RATE) -> Recording:
    path = Path(path)
    text, speaker = transcript(path)
    return Recording(read_audio(path, rate=rate), rate, text, path, speaker)


def sample_of(sound: Sound) -> Recording:
    """What `read` gives of the files that `write` writes."""
    wav = sound.wav.astype(np.float32) / np.float32(32768)
    wav = resampled(wav, sound.rate, RATE)
    return Recording(wav, RATE, sound.text, Path("held-out speech"), sound.speaker)


def write(stem: Path, sound: Sound) -> None:
    """The sound, and its transcript beside it."""
    write_wav(stem.with_suffix(".wav"), sound.wav, sound.rate)
    atomic_write(stem.with_suffix(".txt"), sound.text.encode())


def transcript(path: Path) -> tuple[str, str]:
    """Text and speaker, from `metadata.jsonl` or `metadata.csv` (also LJSpeech's), in the folder of
    the file or the one above, else from `a.txt` beside `a.wav`; without either, no text and the
    name of the folder."""
    for folder in (path.parent, path.parent.parent):
        if any((folder / name).is_file() for name in METADATA):
            texts = once(("transcripts", folder), lambda folder=folder: _transcripts(folder))
            name = relative_name(folder, path)
            if text := texts.rows.get(name):
                return text, texts.about(name).speaker or path.parent.name
    beside = path.with_suffix(".txt")
    text = read_beside(beside, "the transcript").strip() if beside.is_file() else ""
    return text, path.parent.name


def _transcripts(folder: Path) -> "Transcripts":
    from quintet.shared.transcripts import Transcripts

    names = [relative_name(folder, path) for path in files(folder, SUFFIXES)]
    return Transcripts(folder, names)


def preparation(rate: int = RATE) -> dict[str, str]:
    return {
        "rate": f"{rate} Hz, resampled by soxr",
        "channels": "mean of all",
        "length": "whole files",
    }


def _require_rate(recording: Recording, who: str) -> None:
    if recording.rate != RATE:
        raise RunError(f"{who} needs {RATE} Hz, and {recording.path} has another rate")


PACKAGES = ("pocketsphinx", "jiwer")
NORMALISATION = (
    "lower case; hyphens and dashes are spaces; other punctuation and symbols removed; digits left"
)


def normalised(text: str) -> str:
    kinds = [(c, unicodedata.category(c)) for c in unicodedata.normalize("NFC", text).lower()]
    spaced = (" " if kind == "Pd" else "" if kind[0] in "PS" else c for c, kind in kinds)
    return " ".join("".join(spaced).split())


class _Recogniser:
    """PocketSphinx, which listens to each recording once."""

    def __init__(self) -> None:
        import pocketsphinx  # pyright: ignore[reportMissingImports]

        self.decoder: Any = pocketsphinx.Decoder(samprate=RATE, loglevel="FATAL")
        self.model = set_digest(
            path for path in Path(pocketsphinx.get_model_path()).rglob("*") if path.is_file()
        )
        self.heard: dict[str, str] = {}

    def text(self, recording: Recording) -> str:
        _require_rate(recording, "the recogniser")
        content = to_16_bits(recording.wav).tobytes()
        key = hashlib.sha256(content).hexdigest()
        if key not in self.heard:
            # Or the mean of its features would follow earlier recordings, and so would its words.
            self.decoder.reinit_feat()
            self.decoder.start_utt()
            self.decoder.process_raw(content, full_utt=True)
            self.decoder.end_utt()
            best = self.decoder.hyp()
            self.heard[key] = best.hypstr if best else ""
        return self.heard[key]


_recogniser = cache(_Recogniser)


class _RecognitionJudge(PairJudge):
    medium, better = "speech", "lower"
    reads_text = True
    needs = "quintet[judges]"
    convention: str

    def problem(self) -> str | None:
        missing = " and ".join(name for name in PACKAGES if find_spec(name) is None)
        return f"needs {missing}: pip install 'quintet[judges]'" if missing else None

    def facts(self) -> dict[str, str]:
        return {
            "convention": self.convention,
            "recogniser": f"pocketsphinx {_version('pocketsphinx')}, each recording by itself",
            "model": _recogniser().model,
            "counting": f"jiwer {_version('jiwer')}",
            "text": NORMALISATION,
        }

    def rows(self, references: Sequence[Recording], outputs: Sequence[Recording]) -> Array:
        """(n, 2): errors, and words or characters of the reference."""
        pairs = zip(references, outputs, strict=True)
        counts = [
            self.count(_text_of(reference), normalised(_recogniser().text(output)))
            for reference, output in pairs
        ]
        return np.array(counts, np.float64)

    def mean(self, rows: Array) -> float:
        return float(rows[:, 0].sum() / rows[:, 1].sum())

    @abstractmethod
    def count(self, text: str, heard: str) -> tuple[int, int]: ...


def _text_of(reference: Recording) -> str:
    text = normalised(reference.text)
    if not text:
        raise RunError(f"{reference.path} has no text to compare with: {REMEDY}")
    return text


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


class WordErrors(_RecognitionJudge):
    name = "wer"
    about = "Word error rate of an external recogniser on the outputs."
    convention = "substitutions, deletions and insertions over words, of all recordings together"

    def count(self, text: str, heard: str) -> tuple[int, int]:
        import jiwer  # pyright: ignore[reportMissingImports]

        return _counted(jiwer.process_words(text, heard))


class CharacterErrors(_RecognitionJudge):
    name = "cer"
    about = "Character error rate of an external recogniser on the outputs."
    convention = (
        "substitutions, deletions and insertions over characters (spaces are some), of all "
        "recordings together"
    )

    def count(self, text: str, heard: str) -> tuple[int, int]:
        import jiwer  # pyright: ignore[reportMissingImports]

        return _counted(jiwer.process_characters(text, heard))


def _counted(result: Any) -> tuple[int, int]:
    wrong = result.substitutions + result.deletions
    return wrong + result.insertions, wrong + result.hits


WEIGHTS = "resemblyzer"
WEIGHTS_ARE = "the voice encoder of resemblyzer 0.1.4"


@cache
def _encoder() -> "tuple[VoiceEncoder, str]":
    from quintet.judges.networks import values_for
    from quintet.judges.voice import VoiceEncoder

    tensors, _ = weights.load(WEIGHTS, WEIGHTS_ARE)
    encoder = VoiceEncoder()
    named = {name.removeprefix("model_state/"): tensor for name, tensor in tensors.items()}
    used = values_for(encoder, named, str(weights.find(WEIGHTS)))
    encoder.load_state_dict(used)
    return encoder.eval().requires_grad_(False), weights.digest_of_tensors(used)


class Speaker(PairJudge):
    name, medium, better = "speaker", "speech", "higher"
    about = "Similarity of the voices of output and reference: cosine of their embeddings."
    needs = f"weights: {WEIGHTS_ARE} as {WEIGHTS}.pt"

    def problem(self) -> str | None:
        return weights.missing(WEIGHTS, WEIGHTS_ARE)

    def facts(self) -> dict[str, str]:
        return {
            "convention": "cosine of the mean embeddings of windows of 1.6 s",
            "encoder": "LSTM of Resemblyzer (GE2E), our own code; pauses are not cut out",
            "weights": _encoder()[1],
        }

    def rows(self, references: Sequence[Recording], outputs: Sequence[Recording]) -> Array:
        pairs = zip(references, outputs, strict=True)
        return np.array([self.embed(a) @ self.embed(b) for a, b in pairs], np.float64)

    def embed(self, recording: Recording) -> Array:
        import torch

        _require_rate(recording, "the encoder")
        with torch.no_grad():
            embedding = _encoder()[0](torch.from_numpy(recording.wav)).double().numpy()
        return embedding / np.linalg.norm(embedding)


class OwnVoice(Speaker):
    name = "own_voice"
    about = "Share of outputs that sound more like their own speaker than like any other."
    joint = reads_speaker = True

    def facts(self) -> dict[str, str]:
        voices = "a speaker is the mean of its references, without that of the output"
        return super().facts() | {"convention": f"largest cosine of embeddings; {voices}"}

    def rows(self, references: Sequence[Recording], outputs: Sequence[Recording]) -> Array:
        known = np.array([self.embed(reference) for reference in references])
        heard = np.array([self.embed(output) for output in outputs])
        names, speakers = np.unique([one.speaker for one in references], return_inverse=True)
        if len(names) < 2:
            raise RunError(
                "own_voice needs recordings of two speakers or more; name them in the metadata"
                " (speaker), or give each a folder"
            )
        belongs = (speakers == np.arange(len(names))[:, None]).astype(np.float64)
        voices = belongs @ known
        alike = heard @ voices.T / np.linalg.norm(voices, axis=1)
        alone = belongs.sum(1)[speakers] == 1  # then its reference is all there is of the speaker
        own = voices[speakers] - np.where(alone[:, None], 0.0, known)
        similar = (own * heard).sum(1) / np.linalg.norm(own, axis=1)
        alike[np.arange(len(known)), speakers] = similar
        return (alike.argmax(1) == speakers).astype(np.float64)


WINDOW = 1024
"""Samples, 64 ms."""
QUIET = 1e-5
"""The least magnitude; quieter ones are all alike."""


class MelError(PairJudge):
    name, medium, better = "mel", "speech", "lower"
    about = "Distance of the output's log-mels from the reference's; for copies of recordings."

    def facts(self) -> dict[str, str]:
        return {
            "convention": "mean absolute difference over bands and frames, mean over recordings",
            "alignment": "linear to the reference's length",
            "log-mels": f"natural logarithms of magnitudes, at least {QUIET:g}; windows of 64 ms "
            "every 16 ms; 80 bands of equal area to 8 kHz, on Slaney's scale",
        }

    def rows(self, references: Sequence[Recording], outputs: Sequence[Recording]) -> Array:
        pairs = zip(references, outputs, strict=True)
        return np.array([self.apart(*map(_log_mels, pair)) for pair in pairs], np.float64)

    def apart(self, reference: Array, output: Array) -> float:
        index = np.rint(np.linspace(0, len(output) - 1, len(reference))).astype(int)
        return float(np.abs(output[index] - reference).mean())


def _log_mels(recording: Recording) -> Array:
    """(frames, bands), in fp64."""
    _require_rate(recording, "the judge mel")
    samples = np.pad(recording.wav.astype(np.float64), WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[:: WINDOW // 4]
    magnitudes = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1]))
    return np.log(np.maximum(magnitudes @ mel_filterbank(RATE, WINDOW, 80).T, QUIET))


OCTAVE = 1200.0


class Pitch(PairJudge):
    name, medium, better, unit = "pitch", "speech", "lower", "cents"
    about = "Median distance of the output's pitch from the reference's."

    def facts(self) -> dict[str, str]:
        return {
            "convention": "median over frames voiced in both, mean over recordings; "
            f"{OCTAVE:g} if there is no such frame, 0 if neither has a voiced one",
            "alignment": "linear to the reference's length",
            **yin.FACTS,
        }

    def rows(self, references: Sequence[Recording], outputs: Sequence[Recording]) -> Array:
        courses = (
            [yin.pitch(one.wav, one.rate) for one in recordings]
            for recordings in (references, outputs)
        )
        apart = [yin.cents_apart(*pair) for pair in zip(*courses, strict=True)]
        return np.array([OCTAVE if cents is None else cents for cents in apart], np.float64)


class Duration(PairJudge):
    name, medium, better = "duration", "speech", "lower"
    about = "How much longer or shorter the output is, relative to the reference."

    def facts(self) -> dict[str, str]:
        return {"convention": "absolute difference over the reference's; pauses count"}

    def rows(self, references: Sequence[Recording], outputs: Sequence[Recording]) -> Array:
        first, second = (
            np.array([len(one.wav) / one.rate for one in recordings], np.float64)
            for recordings in (references, outputs)
        )
        return np.abs(second - first) / first


JUDGES: tuple[type[Judge], ...] = (
    WordErrors, CharacterErrors, Speaker, OwnVoice, MelError, Pitch, Duration,
)  # fmt: skip


def reader(options: Options) -> tuple[Callable[[Path], Recording], dict[str, str]]:
    rate = options.rate or RATE
    return partial(read, rate=rate), preparation(rate)
