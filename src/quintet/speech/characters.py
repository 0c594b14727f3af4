"""Texts as ids: one for each byte of UTF-8, so that every script, digit and sign has some.

What nobody can speak is refused: pictures such as emoji, control characters, and whatever has no
meaning of its own in Unicode.
"""

import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor

PAD, UNKNOWN, FIRST = 0, 1, 2
"""Padding; a frame or character of which nothing is said; the first byte."""
VOCABULARY = FIRST + 256

UNSPOKEN = {
    "So": "a picture",
    "Cc": "a control character",
    "Cs": "half a character",
    "Co": "a private character",
    "Cn": "no character of Unicode",
}


def clean(text: str, alphabet: str | None = None) -> str:
    """The text in one spelling, with single spaces; ValueError where it cannot be spoken."""
    text = " ".join(unicodedata.normalize("NFC", text).split())
    # Marks of format, such as a soft hyphen or a joiner, are not heard.
    text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    if not text:
        raise ValueError("the text is empty; write what is spoken")
    for character in text:
        kind = UNSPOKEN.get(unicodedata.category(character))
        if kind is not None:
            raise ValueError(
                f"the text has {_shown(character)}, {kind}; write what is spoken, in words"
            )
        if alphabet is not None and character not in alphabet:
            raise ValueError(
                f"the text has {_shown(character)}, which is not in the alphabet; spell it out, or"
                " add it to the alphabet"
            )
    return text


def _shown(character: str) -> str:
    sign = f"{character!r} " if character.isprintable() else ""
    return f"{sign}U+{ord(character):04X}"


def encode(text: str, edges: bool = False) -> Tensor:
    """(n,) int64, of a clean text; with a space at both ends where `edges` are wanted."""
    whole = f" {text} " if edges else text
    return torch.tensor([FIRST + byte for byte in whole.encode("utf-8")], dtype=torch.int64)


def stack(rows: Sequence[Tensor], size: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids (b, size) padded with `PAD`, and how many each row has (b,)."""
    counts = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), size or max(1, int(counts.max()))), PAD, dtype=torch.int64)
    for place, row in zip(ids, rows):
        place[: len(row)] = row
    return ids, counts
