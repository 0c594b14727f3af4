"""Procedural furniture and solids with captions, deterministic by index.

A shape is a list of closed parts with separate vertices. Vertices of different parts are several
bins apart, so that parts remain distinguishable after discretisation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import cos, pi, sin, sqrt
from random import Random

import numpy as np
import numpy.typing as npt

from quintet.mesh.geometry import (
    BINS,
    canonical,
    cell_keys,
    discretise,
    has_area,
    normalised,
    undiscretise,
)
from quintet.mesh.solids import Faces, Loft, Part, Stairs, Torus, part_mesh

VERSION = 1
MAX_FACES = 250
GAP = 4 * 2 / BINS
"""Minimum distance of vertices of different parts, along at least one axis."""
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}


@dataclass(frozen=True)
class Shape:
    """Kind, caption and parts of a mesh."""

    kind: str
    caption: str
    parts: tuple[Part, ...]
    turn: float = 0.0
    """Rotation about the vertical axis, in radians."""


def _box(x: float, y: float, low: float, high: float, half: tuple[float, float]) -> Loft:
    reach = (half[0] * sqrt(2), half[1] * sqrt(2))
    return Loft(4, ((x, y, low, *reach), (x, y, high, *reach)), pi / 4)


def _slab(sides: int, low: float, high: float, half: tuple[float, float]) -> Loft:
    if sides == 4:
        return _box(0, 0, low, high, half)
    return _solid(sides, (low, *half), (high, *half))


def _solid(sides: int, *rings: tuple[float, float, float], phase: float = 0.0) -> Loft:
    """Rings of (height, half axis, half axis) about the vertical axis."""
    return Loft(sides, tuple((0.0, 0.0, *ring) for ring in rings), phase)


@dataclass(frozen=True)
class _Legs:
    count: int
    length: float
    half: float
    sides: int
    splay: float
    taper: float

    def stand(self, positions: list[tuple[float, float]]) -> list[Part]:
        reach = self.half * (sqrt(2) if self.sides == 4 else 1.1)
        foot = reach * self.taper
        spread = 1 + self.splay
        phase = pi / 4 if self.sides == 4 else 0.0
        return [
            Loft(
                self.sides,
                ((x * spread, y * spread, 0, foot, foot), (x, y, self.length, reach, reach)),
                phase,
            )
            for x, y in positions
        ]


def _polygon(count: int, across: float, along: float) -> list[tuple[float, float]]:
    angles = [pi / 4 + 2 * pi * k / count for k in range(count)]
    return [(across * cos(angle), along * sin(angle)) for angle in angles]


def _rows(count: int, across: float, along: float) -> list[tuple[float, float]]:
    """Two rows of legs along x."""
    each = count // 2
    xs = [across * (2 * k / (each - 1) - 1) for k in range(each)]
    return [(x, y) for y in (-along, along) for x in xs]


INSET = 0.11


def _leg_positions(
    legs: _Legs, half: tuple[float, float], round_top: bool
) -> list[tuple[float, float]]:
    across, along = (side - legs.half - INSET for side in half)
    if not round_top and legs.count in (4, 6):
        return _rows(legs.count, across, along)
    return _polygon(legs.count, across, along)


def _legs(
    rng: Random, count: int, length: float, thin: bool, sizes: tuple[float, float, float, float]
) -> _Legs:
    """`sizes`: minimum and maximum half width of thin legs, then of thick ones."""
    half = rng.uniform(*sizes[:2]) if thin else rng.uniform(*sizes[2:])
    taper = rng.uniform(0.85, 1.0) if thin else rng.uniform(0.6, 1.0)
    return _Legs(count, length, half, rng.choice((4, 6)), rng.uniform(0, 0.2), taper)


Described = tuple[str, list[Part]]
"""Caption and parts."""


def _phrase(rng: Random, *words: str) -> str:
    """A noun, the last word, after a random subset of its adjectives."""
    return " ".join([*(word for word in words[:-1] if rng.random() < 0.6), words[-1]])


def _leg_phrase(rng: Random, count: int, *adjectives: str) -> str:
    return f"{NUMBERS[count]} {_phrase(rng, *adjectives, 'legs')}"


def _table(rng: Random) -> Described:
    long, thin, round_top = (rng.random() < 0.5 for _ in range(3))
    half = (1.0, 1.0 if round_top else rng.uniform(0.68, 1))
    height = 2 * sqrt(half[1]) * (rng.uniform(0.62, 0.85) if long else rng.uniform(0.35, 0.5))
    top = rng.uniform(0.09, 0.17)
    count = rng.choice((3, 4, 5, 6))
    legs = _legs(rng, count, height - top, thin, (0.05, 0.07, 0.1, 0.15))
    parts = legs.stand(_leg_positions(legs, half, round_top))
    parts.append(_slab(rng.randint(10, 16) if round_top else 4, height - top, height, half))
    noun = _phrase(rng, "round" if round_top else "square", "table")
    return f"a {noun} with {_leg_phrase(rng, count, _length(long), _thickness(thin))}", parts


def _length(long: bool) -> str:
    return "long" if long else "short"


def _thickness(thin: bool) -> str:
    return "thin" if thin else "thick"


def _stool(rng: Random) -> Described:
    long, thin, round_top = (rng.random() < 0.5 for _ in range(3))
    side = 1 / (rng.uniform(1.65, 1.9) if long else rng.uniform(1.35, 1.5))
    top = rng.uniform(0.1, 0.2)
    count = rng.choice((3, 4, 5, 6))
    legs = _legs(rng, count, 2 - top, thin, (0.04, 0.05, 0.065, 0.085))
    parts = legs.stand(_leg_positions(legs, (side, side), round_top))
    parts.append(_slab(rng.randint(8, 12) if round_top else 4, 2 - top, 2, (side, side)))
    noun = _phrase(rng, "round" if round_top else "square", "stool")
    return f"a {noun} with {_leg_phrase(rng, count, _length(long), _thickness(thin))}", parts


def _bench(rng: Random) -> Described:
    long, thin = (rng.random() < 0.5 for _ in range(2))
    height = rng.uniform(0.72, 0.95) if long else rng.uniform(0.4, 0.58)
    top = rng.uniform(0.09, 0.14)
    count = rng.choice((4, 6))
    legs = _legs(rng, count, height - top, thin, (0.05, 0.06, 0.075, 0.095))
    half = (1.0, rng.uniform(0.19 + 2 * legs.half, 0.41))
    parts = [*legs.stand(_leg_positions(legs, half, False)), _box(0, 0, height - top, height, half)]
    return f"a bench with {_leg_phrase(rng, count, _length(long), _thickness(thin))}", parts


def _chair(rng: Random) -> Described:
    tall, thin, slats = (rng.random() < 0.5 for _ in range(3))
    side = rng.uniform(0.42, 0.52)
    half = (side, side * rng.uniform(0.88, 1.08))
    seat, total = 1.0, rng.uniform(1.95, 2.2) if tall else rng.uniform(1.6, 1.78)
    top = rng.uniform(0.1, 0.18)
    legs = _legs(rng, 4, seat - top, thin, (0.045, 0.055, 0.075, 0.095))
    parts = legs.stand(_leg_positions(legs, half, False))
    parts.append(_box(0, 0, seat - top, seat, half))
    parts.extend(_back(rng, half, (seat, total), slats))
    back = _phrase(rng, "tall" if tall else "low", "slatted" if slats else "solid", "back")
    return f"a chair with a {back} and {_leg_phrase(rng, 4, _thickness(thin))}", parts


def _back(
    rng: Random, half: tuple[float, float], heights: tuple[float, float], slats: bool
) -> list[Part]:
    low, high = heights
    thick, wide = rng.uniform(0.045, 0.06), half[0] - INSET
    y = -half[1] + thick + 0.02
    if not slats:
        return [_box(0, y, low, high, (wide, thick))]
    rail = rng.uniform(0.1, 0.2)
    count = rng.choice((2, 3)) if wide > 0.37 else 2
    reach = wide - 0.16
    xs = [reach * (2 * k / (count - 1) - 1) for k in range(count)]
    posts = [_box(x, y, low, high - rail, (0.045, thick * 0.9)) for x in xs]
    return [*posts, _box(0, y, high - rail, high, (wide, thick))]


def _bed(rng: Random) -> Described:
    double, high, thin = (rng.random() < 0.5 for _ in range(3))
    half = (1.0, rng.uniform(0.68, 0.8) if double else rng.uniform(0.45, 0.55))
    leg, soft = rng.uniform(0.25, 0.35), rng.uniform(0.18, 0.32)
    count = rng.choice((4, 4, 6))
    legs = _legs(rng, count, leg, thin, (0.05, 0.06, 0.085, 0.11))
    parts = [*legs.stand(_leg_positions(legs, half, False)), _box(0, 0, leg, leg + soft, half)]
    head = leg + soft + (rng.uniform(0.45, 0.6) if high else rng.uniform(0.22, 0.32))
    parts.append(_box(-0.93, 0, leg + soft, head, (0.05, half[1] - INSET)))
    pillow = leg + soft + rng.uniform(0.09, 0.13)
    x = rng.uniform(-0.58, -0.5)
    for y in (-half[1] / 2, half[1] / 2) if double else (0.0,):
        wide = half[1] / 2 - 0.09 if double else half[1] - 0.16
        parts.append(_box(x, y, leg + soft, pillow, (rng.uniform(0.14, 0.2), wide)))
    noun = _phrase(rng, "double" if double else "single", "bed")
    board = _phrase(rng, "high" if high else "low", "headboard")
    return f"a {noun} with a {board} and {_leg_phrase(rng, count, _thickness(thin))}", parts


def _shelf(rng: Random) -> Described:
    wide, deep = (rng.random() < 0.5 for _ in range(2))
    across = rng.uniform(0.7, 1.0) if wide else rng.uniform(0.38, 0.55)
    along = rng.uniform(0.33, 0.5) if deep else rng.uniform(0.16, 0.24)
    height = rng.uniform(1.6, 2.2)
    count = rng.choice((3, 4, 5, 6) if height > 1.85 else (3, 4, 5))
    side, board = rng.uniform(0.05, 0.08), rng.uniform(0.04, 0.055)
    parts: list[Part] = [_box(x, 0, 0, height, (side, along)) for x in (-across, across)]
    low, high = 0.14 + board, height - 0.14 - board
    for k in range(count):
        z = low + (high - low) * k / (count - 1)
        parts.append(_box(0, 0, z - board, z + board, (across, along)))
    noun = _phrase(rng, "wide" if wide else "narrow", "deep" if deep else "shallow", "shelf")
    return f"a {noun} with {NUMBERS[count]} boards", parts


def _lamp(rng: Random) -> Described:
    wide, square = (rng.random() < 0.5 for _ in range(2))
    base, foot = rng.uniform(0.35, 0.6), rng.uniform(0.09, 0.15)
    shade = rng.uniform(0.62, 0.85) if wide else rng.uniform(0.36, 0.48)
    low, narrow = rng.uniform(1.1, 1.5), shade * rng.uniform(0.45, 0.75)
    sides, pole = rng.randint(8, 12), rng.uniform(0.055, 0.085)
    parts: list[Part] = [
        _slab(4 if square else rng.randint(8, 12), 0, foot, (base, base)),
        _solid(rng.choice((4, 6)), (foot, pole, pole), (low, pole, pole)),
        _solid(sides, (low, shade, shade), (2, narrow, narrow), phase=0.2),
    ]
    covered = _phrase(rng, "wide" if wide else "narrow", "shade")
    standing = _phrase(rng, "square" if square else "round", "base")
    return f"a lamp with a {covered} and a {standing}", parts


def _proportions(rng: Random, least: float = 0.5) -> tuple[str, float, float, float]:
    """An adjective, the height, and two half axes."""
    word = rng.choice(("tall", "flat", ""))
    low, high = {"tall": (1.5, 2.6), "flat": (0.18, 0.42), "": (0.7, 1.2)}[word]
    ratio = rng.uniform(low, high)
    side = 1 / max(1, ratio)
    return word, 2 * side * ratio, side, side * rng.uniform(least, 1)


def _simple(noun: str, word: str, part: Part) -> Described:
    return f"a {word} {noun}" if word else f"a {noun}", [part]


def _plain_box(rng: Random) -> Described:
    word, height, x, y = _proportions(rng)
    return _simple("box", word, _box(0, 0, 0, height, (x, y)))


def _pyramid(rng: Random) -> Described:
    word, height, x, y = _proportions(rng, 0.75)
    return _simple("pyramid", word, _solid(4, (0, 0, 0), (0, x, y), (height, 0, 0)))


SIDES = {3: "triangular", 5: "pentagonal", 6: "hexagonal"}


def _prism(rng: Random) -> Described:
    word, height, x, y = _proportions(rng, 0.8)
    sides = rng.choice(tuple(SIDES))
    phrase = " ".join(filter(None, [word, SIDES[sides]]))
    return _simple("prism", phrase, _solid(sides, (0, x, y), (height, x, y)))


def _cylinder(rng: Random) -> Described:
    word, height, x, y = _proportions(rng, 0.8)
    rings = ((0, 0, 0), (0, x, y), (height, x, y), (height, 0, 0))
    return _simple("cylinder", word, _solid(rng.randint(12, 16), *rings))


def _cone(rng: Random) -> Described:
    word, height, x, y = _proportions(rng, 0.8)
    return _simple("cone", word, _solid(rng.randint(12, 18), (0, 0, 0), (0, x, y), (height, 0, 0)))


def _diamond(rng: Random) -> Described:
    word, height, x, y = _proportions(rng, 0.8)
    rings = ((0, 0, 0), (height * rng.uniform(0.35, 0.65), x, y), (height, 0, 0))
    return _simple("diamond", word, _solid(rng.randint(4, 7), *rings))


def _ring(rng: Random) -> Described:
    word = rng.choice(("thin", "thick", "tall"))
    width = rng.uniform(0.3, 0.36) if word == "thick" else rng.uniform(0.14, 0.2)
    height = rng.uniform(0.5, 0.9) if word == "tall" else width * rng.uniform(0.8, 1.2)
    part = Torus(rng.randint(10, 14), rng.choice((5, 6)), 1 - width, width, height)
    return _simple("ring", word, part)


def _stairs(rng: Random) -> Described:
    wide = rng.random() < 0.5
    count = rng.choice((3, 4, 5, 6))
    length, height = rng.uniform(1.4, 2), rng.uniform(1.2, 2)
    half = rng.uniform(0.7, 0.95) if wide else rng.uniform(0.25, 0.45)
    noun = _phrase(rng, "wide" if wide else "narrow", "stairs")
    part = Stairs(count, length / count, height / count, half)
    return f"{noun} with {NUMBERS[count]} steps", [part]


KINDS: dict[str, tuple[int, Callable[[Random], Described]]] = {
    "table": (5, _table),
    "stool": (4, _stool),
    "chair": (4, _chair),
    "bench": (2, _bench),
    "bed": (2, _bed),
    "shelf": (2, _shelf),
    "lamp": (2, _lamp),
    "box": (1, _plain_box),
    "pyramid": (1, _pyramid),
    "prism": (1, _prism),
    "cylinder": (1, _cylinder),
    "cone": (1, _cone),
    "diamond": (1, _diamond),
    "ring": (1, _ring),
    "stairs": (1, _stairs),
}
"""Sampling weight and generator function of each kind."""
_NAMES, _WEIGHTS = list(KINDS), [weight for weight, _ in KINDS.values()]


@lru_cache(maxsize=4096)  # composing takes longer than the rest of a sample
def compose(number: int, seed: int = 0, max_faces: int = MAX_FACES) -> Shape:
    """Shape of an index.

    Rejection sampling: too many faces, or parts too thin or too close for the bins, are redrawn.
    """
    if max_faces < 8:
        raise ValueError(f"max_faces is {max_faces}: the smallest built-in mesh has 8 faces")
    digest = blake2b(f"{VERSION}/{seed}/{number}".encode(), digest_size=8).digest()
    rng = Random(int.from_bytes(digest, "big"))
    while True:
        kind = rng.choices(_NAMES, _WEIGHTS)[0]
        caption, parts = KINDS[kind][1](rng)
        shape = Shape(kind, caption, tuple(parts), rng.uniform(0, 2 * pi))
        if sum(len(part_mesh(part)[1]) for part in parts) > max_faces:
            continue
        if _is_clean(*_assemble(shape)):
            return shape


def build(shape: Shape) -> tuple[npt.NDArray[np.float32], Faces]:
    """Vertices (v, 3), centred between -0.95 and 0.95, and faces (f, 3), in canonical order."""
    vertices, faces, _ = _assemble(shape)
    ordered, faces = canonical(vertices, faces)
    return ordered.astype(np.float32), faces


def _assemble(shape: Shape) -> tuple[npt.NDArray[np.float32], Faces, Faces]:
    """Vertices, faces, and the part of each vertex."""
    meshes = [part_mesh(part) for part in shape.parts]
    sizes = [len(vertices) for vertices, _ in meshes]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    faces = [mesh[1] + start for mesh, start in zip(meshes, accumulate(sizes, initial=0))]
    along, across = cos(shape.turn), sin(shape.turn)
    rotation = np.array([[along, across, 0], [-across, along, 0], [0, 0, 1]])
    placed = normalised(np.concatenate([mesh[0] for mesh in meshes]) @ rotation).astype(np.float32)
    return placed, np.concatenate(faces), owner


def _is_clean(vertices: npt.NDArray[np.float32], faces: Faces, owner: Faces) -> bool:
    """Whether discretisation merges no vertices and the parts stay apart."""
    merges = len(np.unique(cell_keys(vertices))) < len(vertices)
    if merges or not has_area(undiscretise(discretise(vertices)), faces).all():
        return False
    gaps = np.abs(vertices[:, None] - vertices[None]).max(-1)
    return not ((gaps < GAP) & (owner[:, None] != owner)).any()
