"""From a marked text to the units of a model (bytes or phonemes), and from predicted durations to
those that were asked for. Exports copy this module: it loads no torch.

All sums are exact, by largest remainders. A unit without a mark keeps the duration that it has in
the plain text.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from quintet.speech.text.characters import FIRST, byte_ids, clean
from quintet.speech.text.markup import Marked
from quintet.speech.text.phonemes import phoneme_ids
from quintet.speech.text.spelling import spell

PAUSE_ID = FIRST + ord(" ")
INSERTED = 8
"""Frames of a pause where the text has none: about those of a space."""


class Span(NamedTuple):
    first: int
    last: int
    """After its last unit."""
    seconds: float
    source: str = ""


class Timing(NamedTuple):
    """What is asked of the durations of units."""

    rates: tuple[float, ...]
    lengths: tuple[Span, ...] = ()
    breaks: tuple[Span, ...] = ()
    """Pauses, of the units that become one; of no unit where one is to be inserted."""

    def after(self, count: int) -> "Timing":
        """The same after `count` more units; a break at the start takes them in."""
        moved = [
            [span._replace(first=span.first + count, last=span.last + count) for span in spans]
            for spans in (self.lengths, self.breaks)
        ]
        lengths, breaks = moved
        breaks = [s._replace(first=0) if s.first == count else s for s in breaks]
        return Timing((1.0,) * count + self.rates, tuple(lengths), tuple(breaks))


# -- units --------------------------------------------------------------------------------------


def units_of(marked: Marked, config: Any, language: str = "") -> tuple[list[int], Timing]:
    """Ids, those of the plain text but for spelled phonemes, and what is asked of them."""
    text = clean(marked.text)
    symbols, cuts = _symbols(text, marked, config, language)
    if config.edges:
        symbols, cuts = [" ", *symbols, " "], {place: cut + 1 for place, cut in cuts.items()}
    if config.phonemes:
        ids, widths = phoneme_ids(symbols), [1] * len(symbols)
    else:
        ids = byte_ids("".join(symbols))
        widths = [len(symbol.encode()) for symbol in symbols]
    ends = [0]
    for width in widths:
        ends.append(ends[-1] + width)
    rates = [1.0] * len(symbols)
    spans: dict[str, list[tuple[int, int, float, str]]] = {"length": [], "break": []}
    for mark in marked.marks:
        first, last = cuts[mark.start], cuts[mark.end]
        if mark.kind != "break":
            while first < last and symbols[first] == " ":
                first += 1
        if mark.kind == "rate":
            rates[first:last] = [rate * mark.value for rate in rates[first:last]]
        elif mark.kind != "phonemes":
            spans[mark.kind].append((first, last, mark.value, mark.source))
    taken = {unit for first, last, *_ in spans["length"] for unit in range(first, last)}
    breaks = _merged(_pause_around(symbols, taken, *span) for span in spans["break"])
    in_units = lambda span: Span(ends[span[0]], ends[span[1]], *span[2:])
    per_unit = (rate for rate, width in zip(rates, widths) for _ in range(width))
    lengths = tuple(map(in_units, spans["length"]))
    return ids, Timing(tuple(per_unit), lengths, tuple(map(in_units, breaks)))


def _symbols(
    text: str, marked: Marked, config: Any, language: str
) -> tuple[list[str], dict[int, int]]:
    """Characters or phonemes as the model reads them, and for each place of a mark the number of
    those before it."""
    after = [0, *(place + 1 for place, sign in enumerate(text) if not sign.isspace())]
    spelled = [mark for mark in marked.marks if mark.kind == "phonemes"]
    if spelled and not config.phonemes:
        raise ValueError(
            f"{spelled[0].source} are phonemes, but this model reads letters; write the word, or"
            " train a model of phonemes with --model.phonemes en-us"
        )
    places = sorted({place for mark in marked.marks for place in (mark.start, mark.end)})
    symbols: list[str] = []
    cuts: dict[int, int] = {}
    start = 0
    for mark in (*spelled, None):
        end = len(after) - 1 if mark is None else mark.start
        here = [place for place in places if start <= place <= end]
        inside = [after[place] - after[start] for place in here]
        run = text[after[start] : after[end]]
        more, found = _cut(run, inside, lambda part: spell(part, config, language))
        cuts |= {place: len(symbols) + cut for place, cut in zip(here, found)}
        symbols += more
        if mark is not None:
            first, *rest = mark.tokens
            symbols += [f" {first}", *rest]
            start = mark.end
    return symbols, cuts


def _cut(
    text: str, places: Sequence[int], spelling: Callable[[str], Sequence[str]]
) -> tuple[list[str], list[int]]:
    """Symbols of a text, and how many are before each of these places in it."""
    spelled = lambda part: spelling(part.strip()) if part.strip() else ()
    whole, parts = spelled(text), [spelled(text[:place]) for place in places]
    if all(_begins(whole, part) for part in parts):
        return list(whole), [len(part) for part in parts]
    # What is before a place is read otherwise without the rest: each part is read by itself.
    symbols: list[str] = []
    cuts: list[int] = []
    bounds = [0, *places, len(text)]
    for start, end in pairwise(bounds):
        piece = text[start:end]
        gap = isinstance(whole, str) and symbols and piece[:1].isspace()
        symbols += [*(" " if gap else ""), *spelled(piece)]
        cuts.append(len(symbols))
    return symbols, cuts[:-1]


def _begins(whole: Sequence[str], part: Sequence[str]) -> bool:
    """Whether a text begins with the symbols of its first part, or, of phonemes, with as many: the
    last word of a text is stressed otherwise."""
    if isinstance(whole, str) or whole[: len(part)] == part:
        return not part or whole[: len(part)] == part
    rest = whole[len(part) :]
    return not rest or rest[0].startswith(" ") or _is_pause(rest[0])


def _is_pause(symbol: str) -> bool:
    marks = symbol.strip()
    return all(unicodedata.category(sign)[0] == "P" and sign not in "'’-" for sign in marks)


def _pause_around(
    symbols: Sequence[str], taken: set[int], first: int, last: int, seconds: float, source: str
) -> tuple[int, int, float, str]:
    """A break with the spaces and the punctuation beside it, which are pauses themselves."""
    while first > 0 and first - 1 not in taken and _is_pause(symbols[first - 1]):
        first -= 1
    while last < len(symbols) and last not in taken and _is_pause(symbols[last]):
        last += 1
    return first, last, seconds, source


def _merged(
    breaks: Iterable[tuple[int, int, float, str]],
) -> list[tuple[int, int, float, str]]:
    merged: list[tuple[int, int, float, str]] = []
    for first, last, seconds, source in sorted(breaks):
        if merged and merged[-1][:2] == (first, last):
            merged[-1] = (first, last, merged[-1][2] + seconds, source)
        else:
            merged.append((first, last, seconds, source))
    return merged


# -- durations ----------------------------------------------------------------------------------


class Pause(NamedTuple):
    """Frames that are silent."""

    start: int
    solved: int
    """Frames of it that the flow solves; no more than the text has by itself, as in training."""
    frames: int
    """Frames to hear."""


class Timed(NamedTuple):
    units: list[int]
    """Number of each unit; -1 for a pause that is inserted."""
    durations: list[int]
    """Frames of each that are solved."""
    pauses: tuple[Pause, ...]


def timed(
    predicted: Sequence[float],
    rounded: Sequence[int],
    timing: Timing,
    frame_rate: float,
    total: int | None = None,
    cut: bool = True,
) -> Timed:
    """Durations of units from the predicted ones and their whole frames. `total` is the number of
    frames of all. Without `cut` the flow solves all frames of a pause."""
    weights = [value / rate for value, rate in zip(predicted, timing.rates)]
    durations, is_free = list(rounded), [True] * len(rounded)
    asked = [_frames(span.seconds, frame_rate) for span in (*timing.lengths, *timing.breaks)]
    for span, frames in zip(timing.lengths, asked):
        if frames < span.last - span.first:
            least = math.ceil(1000 * (span.last - span.first) / frame_rate)
            raise ValueError(f"{span.source} is too short for its sounds; give {least}ms or more")
        durations[span.first : span.last] = shared_out(weights[span.first : span.last], frames)
    for span in (*timing.lengths, *timing.breaks):
        is_free[span.first : span.last] = [False] * (span.last - span.first)
    free = [unit for unit, each in enumerate(is_free) if each]
    if total is not None:
        rest = total - sum(asked)
        if rest < len(free) or (rest and not free):
            raise ValueError(
                f"{total / frame_rate:.2f} s in all, of which the breaks and lengths take"
                f" {sum(asked) / frame_rate:.2f} s, do not suit the {len(free)} sounds between"
                " them; change one of the times"
            )
        for unit, frames in zip(free, shared_out([weights[unit] for unit in free], rest)):
            durations[unit] = frames
    else:
        for run in _changed(timing.rates, is_free):
            frames = max(len(run), round(sum(weights[unit] for unit in run)))
            durations[run[0] : run[-1] + 1] = shared_out([weights[u] for u in run], frames)
    return _with_pauses(durations, rounded, timing, asked[len(timing.lengths) :], cut)


def _frames(seconds: float, frame_rate: float) -> int:
    return max(1, round(seconds * frame_rate))


def _changed(rates: Sequence[float], is_free: Sequence[bool]) -> list[list[int]]:
    """Neighbouring units whose rate is changed."""
    changed = lambda unit: is_free[unit] and rates[unit] != 1
    return [list(run) for is_one, run in groupby(range(len(rates)), changed) if is_one]


def _with_pauses(
    durations: list[int],
    rounded: Sequence[int],
    timing: Timing,
    asked: Sequence[int],
    cut: bool,
) -> Timed:
    units: list[int] = []
    frames: list[int] = []
    pauses: list[Pause] = []
    at = 0
    for span, count in zip(timing.breaks, asked):
        units += range(at, span.first)
        frames += durations[at : span.first]
        own = list(rounded[span.first : span.last])
        solved = min(count, sum(own) or INSERTED) if cut else count
        pauses.append(Pause(sum(frames), solved, count))
        units += range(span.first, span.last) if own else [-1]
        frames += own if solved == sum(own) else shared_out(own or [1], solved)
        at = span.last
    units += range(at, len(durations))
    return Timed(units, frames + durations[at:], tuple(pauses))


def shared_out(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to weights that add up to `total`, by largest remainders; none
    is 0 if `total` suffices."""
    if not weights:
        return []
    least = int(total >= len(weights))
    scale = total / max(sum(weights), 1e-9)
    exact = [weight * scale for weight in weights]
    whole = [max(least, math.floor(value)) for value in exact]
    rest = total - sum(whole)
    by_remainder = sorted(range(len(exact)), key=lambda place: whole[place] - exact[place])
    for place in by_remainder[: max(0, rest)]:
        whole[place] += 1
    for _ in range(rest, 0):
        whole[max(range(len(whole)), key=whole.__getitem__)] -= 1
    return whole
