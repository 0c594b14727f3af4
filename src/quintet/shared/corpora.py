"""Layouts of published speech corpora, read as they are unpacked.

LJSpeech      metadata.csv with lines `id|raw text|normalised text`, wavs/
LibriTTS      SPEAKER/CHAPTER/NAME.wav and NAME.normalized.txt
VCTK          wav48…/SPEAKER/NAME.wav or NAME_mic1.flac, txt/SPEAKER/NAME.txt
Common Voice  clips/, and validated.tsv (or train, dev and test.tsv) beside it

and any folder with metadata.jsonl, metadata.csv, or a text file beside each recording.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from quintet.media.errors import BadFile
from quintet.media.folder import (
    METADATA_MAX_BYTES,
    files,
    read_metadata,
    relative_name,
    table_rows,
)
from quintet.media.sidecars import texts_beside

SPEAKER_KEYS = ("speaker", "speaker_id", "client_id")
LANGUAGE_KEYS = ("language", "locale", "lang")
LJSPEECH, LIBRITTS, VCTK, COMMON_VOICE = "LJSpeech", "LibriTTS", "VCTK", "Common Voice"


class Row(NamedTuple):
    """What is known of a recording; empty for what is not."""

    text: str = ""
    speaker: str = ""
    language: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Row":
        """From a row of metadata, whose values may be numbers."""
        first = lambda keys: next((row[key] for key in keys if row.get(key) not in (None, "")), "")
        values = (row.get("text") or "", first(SPEAKER_KEYS), first(LANGUAGE_KEYS))
        return cls(*(str(value).strip() for value in values))


class Corpus(NamedTuple):
    layout: str
    """The name of a published layout, or where the texts are."""
    rows: Mapping[str, Row]
    """Rows by the name of the recording."""
    text_files: Mapping[str, str]
    """The file with the text of a recording that has none in its row."""
    unlisted: frozenset[str] = frozenset()
    """Recordings that the layout leaves out: clips that nobody validated, second microphones."""

    @property
    def published(self) -> bool:
        return self.layout in (LJSPEECH, LIBRITTS, VCTK, COMMON_VOICE)


def read_corpus(folder: Path, names: Sequence[str]) -> Corpus:
    """The texts and speakers of the recordings `names` of a folder."""
    if (folder / "metadata.jsonl").exists():
        return _described(folder, names)
    readers = (_ljspeech, _common_voice, _vctk, _libritts)
    corpora = (corpus for read in readers if (corpus := read(folder, names)))
    return next(corpora, None) or _described(folder, names)


def _described(folder: Path, names: Sequence[str]) -> Corpus:
    rows = {name: Row.of(row) for name, row in read_metadata(folder).items()}
    layout = "metadata" if rows else "text files"
    return Corpus(layout, rows, texts_beside(folder, names))


TABLE = "metadata.csv"


def _ljspeech(folder: Path, names: Sequence[str]) -> Corpus | None:
    """None without a table with bars, or with one that has a header."""
    source = folder / TABLE
    if not source.is_file() or source.is_symlink():
        return None
    lines = _read(source).splitlines()
    if not lines or "|" not in lines[0] or lines[0].startswith("file_name"):
        return None
    known, by_stem = set(names), _by_stem(names)
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, *texts = line.split("|")
        if not texts:
            reason = f"line {number} has no '|', as the first line has"
            raise BadFile(source, reason, "write lines `id|text`, or a header with `file_name`")
        # Only names found in the folder: an id with a path outside of it matches none.
        name = key if key in known else by_stem.get(Path(key).stem if "." in key else key)
        if name is not None and texts[-1].strip():
            rows.setdefault(name, Row(texts[-1].strip()))
    return Corpus(LJSPEECH, rows, texts_beside(folder, names))


def _libritts(folder: Path, names: Sequence[str]) -> Corpus | None:
    normalised = lambda name: f"{name.rpartition('.')[0]}.normalized.txt"
    text_files = texts_beside(folder, names, normalised)
    if not text_files:
        return None
    # NAME is SPEAKER_CHAPTER_PARAGRAPH_SENTENCE, wherever the folder of a chapter was moved.
    speaker = lambda name: PurePosixPath(name).name.partition("_")[0]
    rows = {name: Row("", speaker(name), "en") for name in text_files}
    return Corpus(LIBRITTS, rows, texts_beside(folder, names) | text_files)


_VCTK = re.compile(
    r"(?P<root>(?:.*/)?)wav48[^/]*/(?P<speaker>[^/]+)/(?P<id>[^/]+?)(?P<mic>_mic\d)?\.\w+"
)


def _vctk(folder: Path, names: Sequence[str]) -> Corpus | None:
    matches = {name: match for name in names if (match := _VCTK.fullmatch(name))}
    if not matches:
        return None

    def text_file(name: str) -> str:
        match = matches.get(name)
        return "{root}txt/{speaker}/{id}.txt".format(**match.groupdict()) if match else ""

    text_files = texts_beside(folder, names, text_file)
    if not text_files:
        return None
    # Two microphones recorded each sentence: one in either split would flatter validation.
    first: dict[str, str] = {}
    for name in sorted(text_files):
        first.setdefault(text_files[name], name)
    unlisted = {name for name, text in text_files.items() if first[text] != name}
    rows = {name: Row("", matches[name]["speaker"], "en") for name in text_files}
    return Corpus(VCTK, rows, text_files, frozenset(unlisted))


CLIPS = "clips/"
VALIDATED = ("validated.tsv",)
PARTS = ("train.tsv", "dev.tsv", "test.tsv")


def _common_voice(folder: Path, names: Sequence[str]) -> Corpus | None:
    """One language, or a folder of languages."""
    roots: dict[str, list[str]] = {}
    for name in names:
        root, clips, _ = name.rpartition(CLIPS)
        if clips and (not root or root.endswith("/")):
            roots.setdefault(root, []).append(name)
    rows: dict[str, Row] = {}
    unlisted: set[str] = set()
    for root, clips in roots.items():
        tables = _tables(folder / root)
        if not tables:
            continue
        by_stem = _by_stem(clips)
        for table in tables:
            for row in _tsv(table, ("path", "sentence")):
                name = by_stem.get(PurePosixPath(row["path"]).stem)
                if name is not None:
                    rows.setdefault(name, Row.of({**row, "text": row["sentence"]}))
        unlisted.update(name for name in clips if name not in rows)
    if not rows:
        return None
    return Corpus(COMMON_VOICE, rows, {}, frozenset(unlisted))


def _tables(root: Path) -> list[Path]:
    for group in (VALIDATED, PARTS):
        present = [path for name in group if (path := root / name).is_file()]
        if present:
            return [path for path in present if not path.is_symlink()]
    return []


class Cut(NamedTuple):
    """A segment of a recording, in seconds."""

    file: str
    start: float
    end: float
    row: Row

    @property
    def name(self) -> str:
        return f"{self.file}#{self.start:.3f}-{self.end:.3f}"


def segment_tables(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The table `a/b.tsv` or `a/b.jsonl` beside each recording `a/b.wav` that has one."""
    present = {relative_name(folder, path) for path in files(folder, (".tsv", ".jsonl"))}
    pairs = (
        (name, f"{name.rpartition('.')[0]}{suffix}")
        for name in names
        for suffix in (".jsonl", ".tsv")
    )
    return {name: table for name, table in pairs if table in present}


def read_cuts(folder: Path, name: str, table: str) -> list[Cut]:
    """Rows `start`, `end` (in seconds) and `text`, and optionally `speaker` and `language`; a tsv
    without a header has the first three, as the labels of an editor do."""
    source = folder / table
    cuts: list[Cut] = []
    for number, row in enumerate(_segment_rows(source), 1):
        try:
            start, end = float(row["start"]), float(row["end"])
        except (KeyError, TypeError, ValueError):
            reason = f"row {number} has no numbers `start` and `end`"
            raise BadFile(source, reason, "give start, end and text; times in seconds") from None
        if not 0 <= start < end < float("inf"):
            reason = f"row {number} goes from {start:g} to {end:g} s"
            raise BadFile(source, reason, "give start < end, in seconds from 0")
        if (about := Row.of(row)).text:
            cuts.append(Cut(name, start, end, about))
    return cuts


def _segment_rows(source: Path) -> Iterator[Mapping[str, Any]]:
    if source.suffix == ".jsonl":
        yield from (row for _, row in table_rows(source))
        return
    lines = _read(source).splitlines()
    header = lines[0].lower().split("\t") if lines else []
    columns = header if "start" in header else ["start", "end", "text"]
    for line in lines[columns is header :]:
        if line.strip():
            yield dict(zip(columns, line.split("\t")))


def _by_stem(names: Sequence[str]) -> dict[str, str]:
    stems: dict[str, str] = {}
    for name in names:
        stems.setdefault(Path(name).stem, name)
    return stems


def _read(source: Path) -> str:
    if source.stat().st_size > METADATA_MAX_BYTES:
        raise BadFile(source, f"holds more than {METADATA_MAX_BYTES:,} bytes", "split the folder")
    try:
        return source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(source, f"is not UTF-8 ({error.reason})", "save it as UTF-8") from error


def _tsv(source: Path, required: Sequence[str]) -> Iterator[dict[str, str]]:
    """Rows of a table with a header; quotation marks are part of the text."""
    lines = _read(source).splitlines()
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = [name for name in required if name not in (reader.fieldnames or ())]
    if missing:
        reason = f"has no column `{missing[0]}`"
        raise BadFile(source, reason, f"the columns of Common Voice are {', '.join(required)}, …")
    for row in reader:
        yield {key: value or "" for key, value in row.items() if key is not None}
