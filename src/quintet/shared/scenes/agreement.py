"""Rule-based reader of built-in figures (figures.py), to judge generated pictures and clips.

The ground is a plane of colour through the border. What differs from it falls into connected parts;
each is compared with an outline of every kind, of its own area and centre. Nothing is learned; the
thresholds were set on recorded pictures, of which tests hold out others.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import hypot

import numpy as np
import numpy.typing as npt

from quintet.shared.scenes import drawing, figures
from quintet.shared.scenes.drawing import Grid, grid_for
from quintet.shared.scenes.figures import COLOURS, DIRECTIONS, KINDS, NUMBERS, PLACES, RELATIONS

Array = npt.NDArray[np.floating]
Pixels = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

DIFFERENT = 0.2
"""Distance of a pixel from the ground, in RGB, that belongs to a figure."""
LEAST_AREA = 0.006
"""Share of the picture below which a part is noise; the smallest figure has 0.02."""
LIKENESS = 0.6
"""Least overlap (intersection over union) of a figure with an outline of its kind."""
LARGE = 0.23
"""Least radius of a large figure."""
QUICK = 0.3
"""Least way of a quick figure over a clip."""
RESTING = 0.08
"""Most way of a resting figure."""
ANGLES = (-0.2, -0.1, 0.0, 0.1, 0.2)
PALETTE = np.array(list(COLOURS.values()), np.float32)


@dataclass(frozen=True)
class Figure:
    """One figure of a picture."""

    kind: str | None
    """None: like none of the kinds."""
    colour: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Reading:
    """What is in a picture."""

    ground: str
    figures: tuple[Figure, ...]


def _colour_name(colour: Array) -> str:
    return list(COLOURS)[int(((PALETTE - colour) ** 2).sum(1).argmin())]


def _ground(values: Array) -> Array:
    """(h, w, 3): the plane through the colours of the border, as even light makes one."""
    height, width = values.shape[:2]
    rows, columns = np.mgrid[0:height, 0:width]
    edge = np.zeros((height, width), bool)
    edge[:2], edge[-2:], edge[:, :2], edge[:, -2:] = True, True, True, True
    terms = np.stack([np.ones_like(rows), rows, columns], -1).astype(np.float32)
    coefficients = np.linalg.lstsq(terms[edge], values[edge], rcond=None)[0]
    return terms @ coefficients


def _parts(inside: Mask) -> list[Mask]:
    """Connected parts, by the spread of the largest number of a part over its pixels."""
    label = np.where(inside, np.arange(1, inside.size + 1).reshape(inside.shape), 0)
    while True:
        padded = np.pad(label, 1)
        around = [padded[1:-1, 1:-1], padded[:-2, 1:-1], padded[2:, 1:-1]]
        around += [padded[1:-1, :-2], padded[1:-1, 2:]]
        spread = np.maximum.reduce(around)
        spread = np.where(inside, spread.reshape(-1)[spread - 1], 0)  # pointer jumping
        if (spread == label).all():
            break
        label = spread
    numbers, counts = np.unique(label[inside], return_counts=True)
    return [label == n for n, c in zip(numbers, counts) if c >= LEAST_AREA * inside.size]


@lru_cache(maxsize=8)
def _unit_area(kind: str) -> float:
    """Area of an outline of radius 1."""
    line = (np.arange(400, dtype=np.float32) + 0.5) / 100 - 2
    u, v = np.broadcast_to(line, (400, 400)), np.broadcast_to(line[:, None], (400, 400))
    return float((drawing.OUTLINES[kind](u, v) < 0).sum()) / 10_000


def _covered(kind: str, x: float, y: float, radius: float, angle: float, grid: Grid) -> Array:
    """Share of each pixel that an outline covers."""
    dx = (grid.x - np.float32(x)) / np.float32(radius)
    dy = (grid.y - np.float32(y)) / np.float32(radius)
    distance = drawing.OUTLINES[kind](*drawing.rotated(dx, dy, angle))
    return np.clip(0.5 - distance * (radius / grid.pixel), 0, 1)


def _figure(values: Array, ground: Array, part: Mask, others: Mask) -> Figure:
    contrast = np.sqrt(((values - ground) ** 2).sum(-1))
    core = part & (contrast >= np.quantile(contrast[part], 0.4))
    colour = np.median(values[core], axis=0)
    # How much of a pixel is of the colour of the figure, so that soft edges count by half.
    towards = colour - ground
    share = ((values - ground) * towards).sum(-1) / np.maximum((towards**2).sum(-1), 1e-6)
    share = np.where(_grown(part) & ~others, np.clip(share, 0, 1), 0)
    rows, columns = (_span(indices) for indices in np.nonzero(part))
    grid = grid_for(*share.shape)
    grid, share = Grid(grid.x[columns], grid.y[rows], grid.pixel), share[rows, columns]
    area = float(share.sum())
    x = float((share.sum(0) * grid.x).sum() / area)
    y = float((share.sum(1) * grid.y).sum() / area)
    best, likeness, radius = None, LIKENESS, 0.0
    for kind in KINDS:
        extent = (area * grid.pixel**2 / _unit_area(kind)) ** 0.5
        for angle in (0.0,) if kind in ("circle", "ring") else ANGLES:
            outline = _covered(kind, x, y, extent, angle, grid)
            overlap = float(np.minimum(outline, share).sum() / np.maximum(outline, share).sum())
            if overlap > likeness:
                best, likeness, radius = kind, overlap, extent
    return Figure(best, _colour_name(colour), x, y, radius)


def _span(indices: npt.NDArray[np.integer]) -> slice:
    """From the least to the greatest, and half as many around: an outline may reach farther."""
    first, last = int(indices.min()), int(indices.max())
    margin = (last - first) // 2 + 2
    return slice(max(first - margin, 0), last + margin + 1)


def _grown(part: Mask) -> Mask:
    """The part with its neighbouring pixels."""
    padded = np.pad(part, 1)
    return np.logical_or.reduce(
        [padded[i : i + part.shape[0], j : j + part.shape[1]] for i in range(3) for j in range(3)]
    )


def read(picture: Pixels) -> Reading:
    """Ground and figures of a picture (h, w, 3)."""
    values = picture.astype(np.float32) / 255
    ground = _ground(values)
    parts = _parts(((values - ground) ** 2).sum(-1) > DIFFERENT**2)
    every = np.logical_or.reduce(parts) if parts else np.zeros(values.shape[:2], bool)
    every_figure = (_figure(values, ground, part, every & ~part) for part in parts)
    return Reading(_colour_name(ground.mean((0, 1))), tuple(every_figure))


# -- captions -------------------------------------------------------------------------------------

_COLOUR, _KIND = "|".join(COLOURS), "|".join(KINDS)
_GROUND = rf"on (?P<ground>{_COLOUR})"
_ONE = re.compile(
    rf"an? (?P<size>small|large) (?P<colour>{_COLOUR}) (?P<kind>{_KIND})"
    rf" (?P<place>{'|'.join(PLACES.values())}) {_GROUND}"
)
_ALIKE = re.compile(
    rf"(?P<number>{'|'.join(NUMBERS.values())}) (?P<colour>{_COLOUR})"
    rf" (?P<kinds>{'|'.join(KINDS.values())}) {_GROUND}"
)
_PAIR = re.compile(
    rf"an? (?P<colour>{_COLOUR}) (?P<kind>{_KIND}) (?P<relation>{'|'.join(RELATIONS.values())})"
    rf" an? (?P<colour2>{_COLOUR}) (?P<kind2>{_KIND}) {_GROUND}"
)
_MOVING = re.compile(
    rf"an? (?P<colour>{_COLOUR}) (?P<kind>{_KIND}) (?:rests|moves (?P<speed>slowly|quickly)"
    rf" (?P<direction>{'|'.join(DIRECTIONS.values())})) {_GROUND}"
)


def agrees(caption: str, picture: Pixels) -> bool:
    """Whether a picture (h, w, 3) shows its caption: ground, kinds, colours, number, place, size,
    relation. A caption of another form is an error."""
    reading = read(picture)
    if match := _ONE.fullmatch(caption):
        return _shows_one(match, reading)
    if match := _ALIKE.fullmatch(caption):
        return _shows_alike(match, reading)
    if match := _PAIR.fullmatch(caption):
        return _shows_pair(match, reading)
    raise ValueError(f"{caption!r} is no caption of built-in figures")


def _is(figure: Figure, colour: str, kind: str) -> bool:
    return figure.kind == kind and figure.colour == colour


def _shows_one(match: re.Match[str], reading: Reading) -> bool:
    if reading.ground != match["ground"] or len(reading.figures) != 1:
        return False
    (figure,) = reading.figures
    nearest = (round((at - figures.FIRST) / figures.APART) for at in (figure.x, figure.y))
    column, row = (min(max(index, 0), 2) for index in nearest)
    size = "large" if figure.radius >= LARGE else "small"
    placed = PLACES[column, row] == match["place"]
    return placed and size == match["size"] and _is(figure, match["colour"], match["kind"])


def _shows_alike(match: re.Match[str], reading: Reading) -> bool:
    number = next(n for n, word in NUMBERS.items() if word == match["number"])
    kind = next(k for k, plural in KINDS.items() if plural == match["kinds"])
    if reading.ground != match["ground"] or len(reading.figures) != number:
        return False
    return all(_is(figure, match["colour"], kind) for figure in reading.figures)


def _main_direction(dx: float, dy: float) -> tuple[int, int]:
    return (0, 1 if dy > 0 else -1) if abs(dy) > abs(dx) else (1 if dx > 0 else -1, 0)


def _shows_pair(match: re.Match[str], reading: Reading) -> bool:
    if reading.ground != match["ground"] or len(reading.figures) != 2:
        return False
    for first, second in (reading.figures, reading.figures[::-1]):
        named = _is(first, match["colour"], match["kind"])
        if named and _is(second, match["colour2"], match["kind2"]):
            direction = _main_direction(first.x - second.x, first.y - second.y)
            return RELATIONS[direction] == match["relation"]
    return False


def agrees_clip(caption: str, clip: Pixels) -> bool:
    """Whether a clip (t, h, w, 3) shows its caption: ground, kind, colour, direction and speed."""
    match = _MOVING.fullmatch(caption)
    if match is None:
        raise ValueError(f"{caption!r} is no caption of built-in moving figures")
    ends = [read(clip[index]) for index in (0, len(clip) // 2, -1)]
    if any(len(r.figures) != 1 or r.ground != match["ground"] for r in ends):
        return False
    first, middle, last = (reading.figures[0] for reading in ends)
    if not _is(middle, match["colour"], match["kind"]):
        return False
    return _moves(match, first, last)


def _moves(match: re.Match[str], first: Figure, last: Figure) -> bool:
    dx, dy = last.x - first.x, last.y - first.y
    way = hypot(dx, dy)
    if match["speed"] is None or len({first, last}) == 1:
        return match["speed"] is None and way <= RESTING
    speed = "quickly" if way >= QUICK else "slowly"
    right = DIRECTIONS[_main_direction(dx, dy)] == match["direction"]
    return right and way > RESTING and speed == match["speed"]
