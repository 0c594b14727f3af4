"""Speech: recordings in many languages, and English sentences read by four voices of flite."""

import ctypes
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from naming import Sample, as_words, found, in_letters

PACKAGES = (
    *("festvox-ru", "klettres-data", "gcin-voice", "hedgewars-data"),
    *("libflite1", "libasound2", "dict-devil"),
)
FIRST_RATE, RATE = 24_000, 16_000
"""Highest rates of what is kept, and of the files in the end."""
SENTENCES = 450
VOICES = ("rms", "slt", "awb", "kal16")
FLITE = "BSD-like (flite voice); text public domain"


@dataclass(frozen=True)
class Saying:
    package: str
    license: str
    path: Path
    text: str
    language: str
    speaker: str
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def samples(raw: Path, scratch: Path) -> Iterator[Sample]:
    count = 0
    for saying in sayings(raw, scratch):
        try:
            sound, rate = read(saying.path, FIRST_RATE)
        except soundfile.LibsndfileError:
            continue
        seconds = len(sound) / rate
        if not 0.15 < seconds < 25 or np.abs(sound).max() < 0.01:
            continue
        stem = f"{count:05d}-{in_letters(saying.text, 40)}".rstrip("-")
        about = {
            "source": saying.package,
            "license": saying.license,
            "language": saying.language,
            "speaker": saying.speaker,
            "seconds": round(seconds, 3),
            "synthetic": False,
            **saying.more,
        }
        name = f"{saying.package}/{saying.speaker}/{stem}.ogg"
        group = f"{saying.package}/{saying.text.lower()}"
        yield Sample(name, saying.text, group, about, saying.path)
        count += 1


def sayings(raw: Path, scratch: Path) -> Iterator[Saying]:
    yield from russian(raw / "festvox-ru/usr/share/festival/voices/russian/msu_ru_nsh_clunits")
    yield from letters(raw / "klettres-data/usr/share/klettres")
    yield from mandarin(raw / "gcin-voice")
    yield from shouts(raw / "hedgewars-data")
    yield from read_aloud(raw, scratch)


def read(path: Path, highest: int) -> tuple[Any, int]:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    sound = samples.mean(1)
    return (soxr.resample(sound, rate, highest), highest) if rate > highest else (sound, rate)


def write(sample: Sample, path: Path) -> None:
    # Encoded twice, as the files of the published results were made.
    sound, rate = read(sample.path, FIRST_RATE)
    soundfile.write(path, sound, rate, format="OGG", subtype="VORBIS")
    write_vorbis(path, *read(path, RATE))


def write_vorbis(path: Path, sound: Any, rate: int) -> None:
    how: dict[str, Any] = {"format": "OGG", "subtype": "VORBIS", "compression_level": 0.7}
    with soundfile.SoundFile(path, "w", rate, 1, **how) as file:
        for start in range(0, len(sound), rate):  # libsndfile fails on long blocks
            file.write(np.clip(sound[start : start + rate], -1, 1))


# -- recordings -----------------------------------------------------------------------------


def russian(voice: Path) -> Iterator[Saying]:
    table = (voice / "etc/txt.done.data").read_text(encoding="utf-8")
    for name, text in re.findall(r'\(\s*(\S+)\s+"(.*?)"\s*\)', table):
        path = voice / f"wav/{name}.wav"
        if path.exists():
            plain = " ".join(text.replace("+", "").split())  # marks of stress
            yield Saying("festvox-ru", "BSD-like", path, plain, "ru", "nsh", {"unit": "sentence"})


def letters(folder: Path) -> Iterator[Saying]:
    """Letters and syllables, of which tables in XML say what they are."""
    more = {"unit": "letter or syllable"}
    for table in found(folder, (".xml",)):
        language = table.parent.name
        content = table.read_text(encoding="utf-8", errors="replace")
        for text, file in re.findall(r'<sound\s+name="(.+?)"\s+file="(.+?)"', content):
            path = folder / file
            if path.exists():
                text = text.lower()
                yield Saying("klettres-data", "GPL-2+", path, text, language, language, more)


def mandarin(folder: Path) -> Iterator[Saying]:
    """A folder for each syllable in zhuyin with a digit for the tone, a file for each speaker."""
    more = {"unit": "syllable, zhuyin with tone digit"}
    for path in found(folder, (".ogg",)):
        license = "GPL-3 or LGPL-3" if path.stem == "3" else "CC-BY-3.0"
        yield Saying("gcin-voice", license, path, path.parent.name, "zh", path.stem, more)


ENGLISH = {
    *("British", "Classic", "Default", "HillBilly", "Mobster"),
    *("Pirate", "Robot", "Russian", "Surfer"),
}
NO_WORDS = re.compile(
    r"(Jump|Ow|Ooff|Ouch|Firepunch|Laugh|Poison|Hmm|Nooo|Whoo|Fire$|Hurry$)", re.IGNORECASE
)
RUN_TOGETHER = {
    words.replace(" ", "").replace("'", "").capitalize(): words
    for words in (
        *("gonna get you", "enemy down", "fly away", "I'll get you", "watch it", "oh dear"),
        *("come on then", "first blood", "watch this", "yes sir", "you'll regret that"),
        *("cut it out", "what the", "run away", "just you wait", "leave me alone", "bye bye"),
        *("same team", "this one is mine", "take cover", "so long", "uh-oh"),
    )
}
"""File names, and the words that they are made of."""


def shouts(folder: Path) -> Iterator[Saying]:
    """Of a game; the texts are the names of files, which actors may have said otherwise."""
    more = {"unit": "shout", "approximate": True}
    for path in found(folder, (".ogg",)):
        speaker = path.parent.name
        if "voices" in path.parts and speaker in ENGLISH and not NO_WORDS.match(path.stem):
            text = RUN_TOGETHER.get(path.stem, as_words(path.stem).lower())
            yield Saying("hedgewars-data", "GPL-2", path, text, "en", speaker, more)


# -- sentences read by flite ----------------------------------------------------------------


def read_aloud(raw: Path, scratch: Path) -> Iterator[Saying]:
    """Each sentence by two of the voices."""
    flite, more = Flite(raw), {"unit": "sentence", "synthetic": True}
    for index, text in enumerate(sentences(raw)):
        for voice in (VOICES[index % 4], VOICES[(index + 1 + index // 4 % 3) % 4]):
            path = scratch / f"{index}-{voice}.wav"
            flite.speak(text, voice, path)
            yield Saying("flite", FLITE, path, text, "en", voice, more)


def sentences(raw: Path) -> list[str]:
    """Of Ambrose Bierce's dictionary (1911): prose of 5 to 24 words, without other characters."""
    (path,) = (raw / "dict-devil").rglob("*.dz")
    kept: dict[str, None] = {}
    for entry in re.split(r"\n\s*\n", gzip.decompress(path.read_bytes()).decode("latin-1")):
        if not re.match(r"[A-Z'-]+, (?:n|v\.t|v\.i|adj|adv)\.", entry):
            continue
        prose = " ".join(entry.split(".", 1)[1].split())
        for sentence in re.split(r"(?<=[a-z][.!?])\s+(?=[A-Z])", prose):
            sentence = re.sub(r"^(?:t\.|i\.|pp\.|n\.)\s*", "", sentence).replace("--", ", ")
            short = 5 <= len(sentence.split()) <= 24
            if short and re.fullmatch(r"[A-Za-z ,;:'.!?-]+", sentence):
                kept[" ".join(sentence.split())] = None
    return list(kept)[:SENTENCES]


class Wave(ctypes.Structure):
    """flite's cst_wave."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("rate", ctypes.c_int),
        ("count", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class Flite:
    """Its library, from the unpacked packages."""

    def __init__(self, raw: Path) -> None:
        self.folders = (raw / "libflite1", raw / "libasound2")
        self.open("libasound")
        self.library = self.open("libflite")
        for name in ("libflite_cmulex", "libflite_usenglish"):
            self.open(name)
        self.library.flite_init()
        self.library.flite_text_to_wave.restype = ctypes.POINTER(Wave)
        self.voices = {voice: self.registered(voice) for voice in VOICES}

    def open(self, name: str) -> ctypes.CDLL:
        paths = [path for folder in self.folders for path in folder.rglob(f"{name}.so.*")]
        return ctypes.CDLL(str(min(paths, key=lambda path: len(path.name))), ctypes.RTLD_GLOBAL)

    def registered(self, voice: str) -> ctypes.c_void_p:
        register = getattr(self.open(f"libflite_cmu_us_{voice}"), f"register_cmu_us_{voice}")
        register.restype = ctypes.c_void_p
        return ctypes.c_void_p(register(None))

    def speak(self, text: str, voice: str, path: Path) -> None:
        wave = self.library.flite_text_to_wave(text.encode("ascii"), self.voices[voice])
        about = wave.contents
        soundfile.write(path, np.ctypeslib.as_array(about.samples, (about.count,)), about.rate)
        self.library.delete_wave(wave)
