"""From a text as written to the ids of a model, and long texts in parts that it can speak. Exports
copy this module: it loads no torch."""

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from quintet.speech.text.characters import byte_ids, clean
from quintet.speech.text.english import ABBREVIATIONS, spelled_out
from quintet.speech.text.phonemes import phoneme_ids, phonemes

if TYPE_CHECKING:
    from torch import Tensor

SENTENCE_PAUSE, CLAUSE_PAUSE = 0.35, 0.12
"""Seconds of silence between parts."""


def to_ids(text: str, config: Any, language: str = "") -> "Tensor":
    """(n,) `ids_of`."""
    import torch

    return torch.tensor(ids_of(text, config, language), dtype=torch.int64)


def ids_of(text: str, config: Any, language: str = "") -> list[int]:
    """Ids of a clean text, in its language or else that of a model with this `VoiceBoxConfig`."""
    spelled = spell(text, config, language)
    if isinstance(spelled, str):
        return byte_ids(spelled, config.edges)
    return phoneme_ids(spelled, config.edges)


def num_ids(text: str, config: Any, language: str = "") -> int:
    """Their number; plans of whole data sets ask for nothing else."""
    spelled = spell(text, config, language)
    units = spelled.encode("utf-8") if isinstance(spelled, str) else spelled
    return len(units) + 2 * config.edges


def spell(text: str, config: Any, language: str = "") -> str | tuple[str, ...]:
    """As the model reads it: a string, for its bytes, or phonemes."""
    language = language or config.phonemes or ""
    if config.spell_out and (language or "en").lower().startswith("en"):
        text = spelled_out(text)
    return phonemes(text, language) if config.phonemes else text


# -- long texts ---------------------------------------------------------------------------------


class Passage(NamedTuple):
    text: str
    pause: float
    """Seconds of silence after it."""


_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])")
_CLAUSE = re.compile(r"(?<=[,;:—])\s+|(?<=[，、；：])")
_SHORT = re.compile(rf"(?:^|\s)(?:{'|'.join(map(re.escape, ABBREVIATIONS))}|[A-Z])\.$")
"""The end of an abbreviation or an initial, which is no end of a sentence."""


def passages(text: str, limit: int) -> list[Passage]:
    """Whole sentences of at most `limit` bytes together; a longer sentence is divided at commas,
    then at spaces, then anywhere. A text within the limit stays whole."""
    text = clean(text)
    if _size(text) <= limit:
        return [Passage(text, 0.0)]
    passages: list[Passage] = []
    for sentence in _packed(_sentences(text), limit):
        clauses = _packed(_CLAUSE.split(sentence), limit) if _size(sentence) > limit else [sentence]
        words = [text for clause in clauses for text in _packed(clause.split(" "), limit)]
        parts = [part for text in words for part in _by_characters(text, limit)]
        passages += [Passage(part, CLAUSE_PAUSE) for part in parts[:-1]]
        passages.append(Passage(parts[-1], SENTENCE_PAUSE))
    return [*passages[:-1], passages[-1]._replace(pause=0.0)]


def _sentences(text: str) -> list[str]:
    sentences: list[str] = []
    start = 0
    for match in _SENTENCE.finditer(text):
        if not _SHORT.search(text[start : match.start()]):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    return [sentence for sentence in (*sentences, text[start:].strip()) if sentence]


def _packed(parts: list[str], limit: int) -> list[str]:
    """Neighbours joined as long as they fit."""
    joined: list[str] = []
    for part in parts:
        if joined and _size(f"{joined[-1]} {part}") <= limit:
            joined[-1] = f"{joined[-1]} {part}"
        elif part:
            joined.append(part)
    return joined


def _by_characters(text: str, limit: int) -> list[str]:
    if _size(text) <= limit:
        return [text]
    end = next(n for n in range(len(text), 0, -1) if _size(text[:n]) <= limit or n == 1)
    return [text[:end], *_by_characters(text[end:], limit)]


def _size(text: str) -> int:
    return len(text.encode("utf-8"))
