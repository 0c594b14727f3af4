"""Marks in texts to speak: pauses, rates, lengths, and phonemes instead of letters. Exports copy
this module: it loads no torch.

    good <break 400ms> morning [rate 0.8]to all[/rate] [length 600ms]of[/length] {j uː}

A mark has places in the plain text, counted in characters without spaces: cleaning a text and
dividing it into parts change its spaces alone.
"""

import re
import unicodedata
from typing import Literal, NamedTuple

from quintet.speech.text.characters import clean
from quintet.speech.text.phonemes import MOST, normalised, phoneme_ids
from quintet.speech.text.spelling import passages

RATES = 0.25, 4.0
SECONDS = 0.02, 10.0
"""Bounds of a pause or length."""
MOST_SECONDS = 120.0
"""Bound of the pauses and lengths of a text together."""
MOST_SPREAD = 0.5
REMEDY = r"write \[, \< or \{ for the sign itself"
FORMS = "marks are <break 400ms>, [rate 0.8]…[/rate], [length 600ms]…[/length] and {h ə l oʊ}"
_MARK = re.compile(
    r"\\(?P<literal>[\[<{])"
    r"|<(?P<angle>/?[a-zA-Z][^<>\[\]{}]*)>"
    r"|\[(?P<square>/?[a-zA-Z][^<>\[\]{}]*)\]"
    r"|\{(?P<curly>[^<>\[\]{}]*)\}"
    r"|(?P<open>[<\[](?=/?[a-zA-Z])|\{)"
)
"""A sign before anything else than a letter is itself: "x < 3", "[1]"."""
_SECONDS = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s)")
_FACTOR = re.compile(r"\d{1,6}(?:\.\d{1,6})?")


class Mark(NamedTuple):
    kind: Literal["break", "rate", "length", "phonemes"]
    start: int
    end: int
    value: float = 0.0
    """Seconds of a break or length, or factor of a rate."""
    tokens: tuple[str, ...] = ()
    """Phonemes."""
    source: str = ""
    """As it was written, and where, for refusals."""


class Marked(NamedTuple):
    text: str
    """Without marks; phonemes are in it, joined."""
    marks: tuple[Mark, ...] = ()
    rate: float = 1.0
    """Of the whole text."""
    spread: float = 0.0
    """Deviation of the logarithms of durations, which are drawn around the predicted ones."""

    @property
    def is_plain(self) -> bool:
        return self[1:] == ((), 1.0, 0.0)


def parse(text: str, rate: float = 1.0, spread: float = 0.0) -> Marked:
    """A text with its marks; ValueError for one that is unknown, malformed or out of bounds."""
    if not 0 <= spread <= MOST_SPREAD:
        raise ValueError(f"the spread of durations is {spread:g}; give 0 to {MOST_SPREAD}")
    checked_rate(rate, f"the rate {rate:g}")
    return _Reader(text).read()._replace(rate=rate, spread=spread)


def escaped(text: str) -> str:
    """A text that is read as it stands."""
    return re.sub(r"([\[<{])", r"\\\1", text)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.plain: list[str] = []
        self.marks: list[Mark] = []
        self.open: list[Mark] = []
        self.count = 0

    def read(self) -> Marked:
        last = 0
        for match in _MARK.finditer(self.text):
            self.add(self.text[last : match.start()])
            last = match.end()
            if match["literal"]:
                self.add(match["literal"])
                continue
            source = f"{match[0]!r} at character {match.start() + 1}"
            if match["open"]:
                raise ValueError(f"{source} is not closed; {FORMS}, and {REMEDY}")
            if match["curly"] is not None:
                self.phonemes(match["curly"], source)
            else:
                self.tag(match["angle"], match["square"], source)
        if self.open:
            name = self.open[-1].kind
            raise ValueError(f"{self.open[-1].source} has no end; write [/{name}] after its words")
        self.add(self.text[last:])
        marked = Marked("".join(self.plain), tuple(sorted(self.marks, key=lambda m: m[1:3])))
        self.check(marked)
        return marked

    def add(self, text: str) -> None:
        self.plain.append(text)
        self.count += _signs(text)

    def tag(self, angle: str | None, square: str | None, source: str) -> None:
        name, _, value = (angle or square or "").strip().partition(" ")
        if angle and name == "break":
            self.pause(value.strip(), source)
        elif square and name in ("rate", "length"):
            self.begin(name, value.strip(), source)
        elif square and name in ("/rate", "/length") and not value:
            self.end(name[1:], source)
        else:
            raise ValueError(f"{source} is unknown; {FORMS}; {REMEDY}")

    def pause(self, value: str, source: str) -> None:
        if any(mark.kind == "length" for mark in self.open):
            raise ValueError(f"{source} is inside of a length; write it before or after")
        seconds = _seconds(value, source, "<break 400ms>")
        self.marks.append(Mark("break", self.count, self.count, seconds, source=source))

    def begin(self, kind: Literal["rate", "length"], value: str, source: str) -> None:
        if kind == "length" and any(mark.kind == "length" for mark in self.open):
            raise ValueError(f"{source} is inside of another length; end that one before")
        if kind == "length":
            number = _seconds(value, source, "[length 600ms]")
        else:
            if not _FACTOR.fullmatch(value):
                raise ValueError(f"{source} has no factor; write it as [rate 0.8]")
            number = checked_rate(float(value), source)
        self.open.append(Mark(kind, self.count, self.count, number, source=source))

    def end(self, kind: str, source: str) -> None:
        if not self.open or self.open[-1].kind != kind:
            opened = f"[/{self.open[-1].kind}] is first" if self.open else f"write [{kind} …] first"
            raise ValueError(f"{source} ends no [{kind}] that is open here; {opened}")
        mark = self.open.pop()._replace(end=self.count)
        if mark.start == mark.end:
            raise ValueError(f"{mark.source} has no words; write them between it and [/{kind}]")
        self.marks.append(mark)

    def phonemes(self, inside: str, source: str) -> None:
        tokens = tuple(filter(None, (normalised(token) for token in inside.split())))
        example = "write phonemes with spaces between, as in {h ə l oʊ}"
        if not tokens or any(len(token) > MOST - 1 for token in tokens):
            raise ValueError(f"{source} is no list of phonemes; {example}")
        try:
            phoneme_ids(tokens)
        except ValueError as error:
            raise ValueError(f"{source}: {error}; {example}") from None
        start, word = self.count, "".join(tokens)
        # A word of its own, also where the sign before is no space.
        self.add(f" {word} ")
        self.marks.append(Mark("phonemes", start, self.count, tokens=tokens, source=source))

    def check(self, marked: Marked) -> None:
        if marked.marks and _signs(clean(marked.text)) != self.count:
            raise ValueError("the text has a mark inside of a character; move it before or after")
        total = fixed_seconds(marked)
        if total > MOST_SECONDS:
            raise ValueError(
                f"the breaks and lengths of the text add up to {total:g} s, more than"
                f" {MOST_SECONDS:g}; divide it into several texts"
            )


def _signs(text: str) -> int:
    """Characters that `clean` keeps, without spaces."""
    text = unicodedata.normalize("NFC", text)
    return sum(not c.isspace() and unicodedata.category(c) != "Cf" for c in text)


def _seconds(value: str, source: str, example: str) -> float:
    match = _SECONDS.fullmatch(value)
    if match is None:
        raise ValueError(f"{source} has no time; write it as {example} or with s for seconds")
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
    least, most = SECONDS
    if not least <= seconds <= most:
        raise ValueError(f"{source} is out of bounds; give 20ms to {most:g}s")
    return seconds


def checked_rate(rate: float, source: str) -> float:
    least, most = RATES
    if not least <= rate <= most:
        raise ValueError(f"{source} is out of bounds; give {least:g} (slow) to {most:g} (fast)")
    return rate


# -- long texts ---------------------------------------------------------------------------------


class Part(NamedTuple):
    marked: Marked
    pause: float
    """Seconds of silence after it."""


def parts_of(marked: Marked, limit: int) -> list[Part]:
    """As `passages`, each part with its marks. A break between two parts is the pause there."""
    parts: list[Part] = []
    start = 0
    whole = passages(marked.text, limit)
    for number, (text, pause) in enumerate(whole):
        end = start + _signs(text)
        last = number == len(whole) - 1
        between = [m.value for m in marked.marks if m.kind == "break" and m.start == end]
        inside = [
            _moved(mark, start, end)
            for mark in marked.marks
            if (mark.start < end and mark.end > start)
            or (mark.kind == "break" and mark.start == end and last)
            or (mark.kind == "break" and mark.start == start == 0)
        ]
        pause = sum(between) if between and not last else pause
        parts.append(Part(marked._replace(text=text, marks=tuple(inside)), pause))
        start = end
    return parts


def _moved(mark: Mark, start: int, end: int) -> Mark:
    """A mark of the whole text as one of the part from `start` to `end`."""
    if mark.kind != "rate" and (mark.start < start or mark.end > end):
        raise ValueError(
            f"{mark.source} goes on after a sentence or more than can be spoken at once; divide it"
        )
    return mark._replace(start=max(mark.start, start) - start, end=min(mark.end, end) - start)


def fixed_seconds(marked: Marked) -> float:
    return sum(mark.value for mark in marked.marks if mark.kind in ("break", "length"))
