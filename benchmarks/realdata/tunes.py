"""Music: two pieces of each track of the music of games."""

import configparser
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr
from naming import Sample, as_words, found, in_letters, untaken
from voices import write_vorbis

RATE = 24_000
SECONDS, SHORTEST, PIECES = 30.0, 10.0, 2
"""Length of a piece, the least of one, and how many of a track."""
SMALLEST = 150_000
"""Bytes; smaller files are effects."""


class Album(NamedTuple):
    package: str
    inside: str
    """Part of the path."""
    genre: str
    license: str


METAL = "instrumental metal with electric guitars and drums"
ALBUMS = (
    Album("supertux-data", "/music/", "cheerful platform game music", "GPL-3+ / CC-BY-SA-4.0"),
    Album("nexuiz-music", "", "electronic and rock music of a shooter", "GPL-2+"),
    Album("colobot-common-sounds", "/music/", "calm music of a game in space", "GPL-3+"),
    Album("drascula-music", "", "spooky comic adventure music", "Drascula licence (BSD-like)"),
    Album("extremetuxracer-data", "/music/", "winter sports game music", "GPL-2+ / CC0 (per file)"),
    Album("frozen-bubble-data", "", "puzzle game music", "GPL-2"),
    Album("zaz-data", "", "fantasy puzzle game music", "CC-BY-SA-3.0"),
    Album("pushover-data", "", "puzzle game music", "GPL-3+"),
    Album("trackballs-data", "/music/", "marble game music", "Ethymonics Free Music / GPL-2+"),
    Album("hedgewars-data", "/Music/", "humorous artillery game music", "GPL-2"),
    Album("fretsonfire-songs-muldjord", "", METAL, "CC-BY-SA (see package)"),
    Album("fretsonfire-songs-sectoid", "", METAL, "GPL"),
)
PACKAGES = tuple(album.package for album in ALBUMS)


class Track(NamedTuple):
    title: str
    artist: str
    path: Path
    """A file, or a folder of files that play together."""


def samples(raw: Path, scratch: Path) -> Iterator[Sample]:
    taken: set[str] = set()
    for album in ALBUMS:
        for track in tracks(raw, album, scratch):
            by = f" by {track.artist}" if track.artist else ""
            text = f'"{track.title}"{by}, {album.genre}'
            about = {"source": album.package, "license": album.license}
            for start in starts(track):
                if is_silent(track.path, start):
                    continue
                name = f"{album.package}/{in_letters(track.title)}-{start:.0f}s"
                unique, group = untaken(name, taken), f"{album.package}/{track.title}"
                yield Sample(f"{unique}.ogg", text, group, about, track.path, start=start)


def tracks(raw: Path, album: Album, scratch: Path) -> Iterator[Track]:
    folder = raw / album.package
    for path in found(folder, (".ini",)):
        if path.name == "song.ini":
            yield song(path)
    if album.package.startswith("fretsonfire"):
        return
    for path in found(folder, (".pk3",)):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(name for name in archive.namelist() if name.endswith(".ogg")):
                yield Track(as_words(Path(name).stem), "", Path(archive.extract(name, scratch)))
    for path in found(folder, (".ogg", ".mp3")):
        place = f"/{path.relative_to(folder).as_posix()}"
        speech = "/speech/" in place
        if album.inside in place and not speech and path.stat().st_size > SMALLEST:
            with soundfile.SoundFile(path) as file:
                yield Track(file.title or as_words(path.stem), file.artist, path)


def song(path: Path) -> Track:
    """Of Frets on Fire: a file for each instrument."""
    about = configparser.ConfigParser(interpolation=None, strict=False)
    about.read(path, encoding="utf-8")
    artist = about.get("song", "artist", fallback="").removeprefix("Composed and performed by ")
    title = about.get("song", "name", fallback=path.parent.name)
    return Track(title, artist.split(" - ")[0], path.parent)


def files(path: Path) -> list[Path]:
    return found(path, (".ogg",)) if path.is_dir() else [path]


def starts(track: Track) -> list[float]:
    """Seconds at which its pieces begin, from the beginning to the end."""
    length = min(soundfile.info(file).duration for file in files(track.path))
    count = min(PIECES, max(1, int(length / (SECONDS + 5))))
    if length < SHORTEST:
        return []
    return [n * (length - SECONDS) / max(1, count - 1) for n in range(count)]


def stems(path: Path, start: float) -> Iterator[tuple[Any, int]]:
    """What plays together from there on, mono, each with its rate."""
    for file in files(path):
        with soundfile.SoundFile(file) as opened:
            rate = opened.samplerate
            opened.seek(int(start * rate))
            sound = opened.read(int(SECONDS * rate), dtype="float32", always_2d=True)
            yield sound.mean(1), rate


def is_silent(path: Path, start: float) -> bool:
    return all(np.abs(sound).max(initial=0) < 0.02 for sound, _ in stems(path, start))


def write(sample: Sample, path: Path) -> None:
    parts = [soxr.resample(*stem, RATE) for stem in stems(sample.path, sample.start)]
    sound = np.sum(parts, axis=0)
    write_vorbis(path, sound * min(1.0, 0.95 / np.abs(sound).max()), RATE)
