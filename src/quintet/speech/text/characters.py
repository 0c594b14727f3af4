"""Byte-level tokenizer: one id per UTF-8 byte, for every script, digit and sign.

Characters without a pronunciation are rejected: symbols such as emoji, control characters, and code
points without a meaning in Unicode.
"""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PAD, UNKNOWN, FIRST = 0, 1, 2
"""Padding; a frame or character of unknown text; the first byte."""
VOCABULARY = FIRST + 256
"""Ids of bytes, and of the symbols of phonemes."""

UNSPEAKABLE = {
    "So": "a symbol",
    "Cc": "a control character",
    "Cs": "a lone surrogate",
    "Co": "a private-use character",
    "Cn": "an unassigned code point",
}


class Unfit(ValueError):
    """A recording or text that can be read, but is outside of the limits."""

    def __init__(self, reason: str, limit: str, remedy: str, value: float | None = None) -> None:
        super().__init__(reason, limit, remedy, value)

    def __str__(self) -> str:
        reason, limit, remedy, _ = self.args
        return f"{reason}, {limit}; {remedy}"


def clean(text: str) -> str:
    """The text in NFC with single spaces; ValueError if it is empty, `Unfit` if it cannot be
    spoken."""
    text = " ".join(unicodedata.normalize("NFC", text).split())
    # Format characters, such as a soft hyphen or a joiner, are silent.
    text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    if not text:
        raise ValueError("the text is empty; write a transcript")
    for character in text:
        kind = UNSPEAKABLE.get(unicodedata.category(character))
        if kind is not None:
            sign = f"{character!r} " if character.isprintable() else ""
            raise Unfit(f"the text has {sign}U+{ord(character):04X}", kind, "write it as words")
    return text


def byte_ids(text: str, edges: bool = False) -> list[int]:
    """Ids of a clean text; `edges` adds a space at both ends."""
    text = f" {text} " if edges else text
    return [FIRST + byte for byte in text.encode("utf-8")]


def stack(rows: Sequence["Tensor"], size: int | None = None) -> tuple["Tensor", "Tensor"]:
    """Ids (b, size) padded with `PAD`, and the length of each row (b,)."""
    import torch

    counts = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), size or max(1, int(counts.max()))), PAD, dtype=torch.int64)
    for padded, row in zip(ids, rows):
        padded[: len(row)] = row
    return ids, counts
