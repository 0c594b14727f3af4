"""Pictures and clips of a few plain figures, whose captions say all that a judge can check: a pure
function of a number, distinct for each number.

    a small red star at the top left on white        two green rings on black
    a blue cross to the left of a yellow circle on purple
    a white square moves quickly upwards on red

Even numbers are for training, odd ones for validation. One caption in eight is held out: it belongs
to odd numbers, and no other does. Captions mention left and right: do not flip these pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from math import hypot, pi
from random import Random
from zlib import crc32

import numpy as np
import numpy.typing as npt

from quintet.shared.scenes.drawing import Colour, Fill, Shape
from quintet.shared.scenes.scenes import GOLDEN, HUES, Scene, article, draw

VERSION = 1
"""Increment on any change of what is drawn, to invalidate cached ids."""
COLOURS: dict[str, Colour] = {
    name: HUES[name]
    for name in ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
}
PLAIN = ("white", "black")
"""Grounds of a large figure that moves."""
KINDS = {
    "circle": "circles",
    "square": "squares",
    "triangle": "triangles",
    "star": "stars",
    "cross": "crosses",
    "ring": "rings",
}
"""Singular and plural."""
NUMBERS = {2: "two", 3: "three", 4: "four"}
PLACES = {
    (0, 0): "at the top left",
    (1, 0): "at the top",
    (2, 0): "at the top right",
    (0, 1): "on the left",
    (1, 1): "in the middle",
    (2, 1): "on the right",
    (0, 2): "at the bottom left",
    (1, 2): "at the bottom",
    (2, 2): "at the bottom right",
}
"""Keys are column and row of a grid of three by three."""
RELATIONS = {
    (0, -1): "above",
    (0, 1): "below",
    (-1, 0): "to the left of",
    (1, 0): "to the right of",
}
"""Keys are the direction from the second figure to the first; y grows downwards."""
DIRECTIONS = {
    (0, -1): "upwards",
    (0, 1): "downwards",
    (-1, 0): "to the left",
    (1, 0): "to the right",
}
SIZES = {"small": (0.17, 0.19), "large": (0.27, 0.29)}
"""Radii of a figure alone, in units of the shorter side."""
ALIKE, PAIR = (0.135, 0.155), (0.155, 0.19)
"""Radii of several figures."""
FIRST, APART = 0.34, 0.16
"""Grid of the places."""
SPEEDS = {"slowly": (0.16, 0.22), "quickly": (0.4, 0.5)}
"""Way of a figure over the whole clip."""
CROSSING = (0.4, 0.44)
"""Way of a large figure."""
HELD_OUT = 8
"""One in so many captions."""


@dataclass(frozen=True)
class Picture(Scene):
    """Description of a picture, or of the middle of a clip, independent of its size."""

    way: tuple[float, float] = (0.0, 0.0)
    """Motion of all shapes over a clip."""


def is_held_out(caption: str) -> bool:
    return crc32(caption.encode()) % HELD_OUT == 0


def _jittered(random: Random, name: str) -> Colour:
    red, green, blue = (c + random.uniform(-0.03, 0.03) for c in COLOURS[name])
    return red, green, blue


def _shape(random: Random, kind: str, colour: str, at: tuple[float, float], radius: float) -> Shape:
    fill = _jittered(random, colour)
    return Shape(
        outline=kind,
        x=at[0],
        y=at[1],
        radius=radius,
        angle=random.uniform(-0.2, 0.2),
        fill=Fill(fill, fill),
        shade=random.uniform(0.0, 0.12),
    )


def _colours(random: Random, count: int) -> list[str]:
    return random.sample(list(COLOURS), count)


Drawn = tuple[list[Shape], str, str]
"""Shapes, the colour of the ground, and the caption."""


def _one(random: Random, sizes: Sequence[str] = tuple(SIZES)) -> Drawn:
    colour, ground = _colours(random, 2)
    kind, cell = random.choice(list(KINDS)), random.choice(list(PLACES))
    size = random.choice(sizes)
    x, y = (FIRST + APART * index + random.uniform(-0.015, 0.015) for index in cell)
    shape = _shape(random, kind, colour, (x, y), random.uniform(*SIZES[size]))
    caption = f"{article(f'{size} {colour} {kind}')} {PLACES[cell]} on {ground}"
    return [shape], ground, caption


def _alike(random: Random) -> Drawn:
    colour, ground = _colours(random, 2)
    kind, count = random.choice(list(KINDS)), random.choice(list(NUMBERS))
    radius, spots = random.uniform(*ALIKE), list[tuple[float, float]]()
    margin = radius + 0.03
    while len(spots) < count:
        spot = random.uniform(margin, 1 - margin), random.uniform(margin, 1 - margin)
        if all(hypot(spot[0] - x, spot[1] - y) > 2 * radius + 0.07 for x, y in spots):
            spots.append(spot)
        elif random.random() < 0.02:  # a corner that leaves no room for the rest
            spots.clear()
    shapes = [_shape(random, kind, colour, spot, radius) for spot in spots]
    return shapes, ground, f"{NUMBERS[count]} {colour} {KINDS[kind]} on {ground}"


def _pair(random: Random) -> Drawn:
    first, second, ground = _colours(random, 3)
    kinds = [random.choice(list(KINDS)) for _ in range(2)]
    direction = random.choice(list(RELATIONS))
    reach, offset = random.uniform(0.22, 0.27), random.uniform(-0.06, 0.06)
    shapes: list[Shape] = []
    for kind, colour, sign in zip(kinds, (first, second), (1, -1)):
        dx, dy = (sign * reach * side for side in direction)
        at = 0.5 + dx + offset * abs(direction[1]) * sign, 0.5 + dy + offset * abs(direction[0])
        shapes.append(_shape(random, kind, colour, at, random.uniform(*PAIR)))
    named = [article(f"{colour} {kind}") for colour, kind in zip((first, second), kinds)]
    return shapes, ground, f"{named[0]} {RELATIONS[direction]} {named[1]} on {ground}"


Moving = tuple[list[Shape], str, str, tuple[float, float]]
"""The same, and the way."""


def _crossing(random: Random) -> Moving:
    """A large figure on white or black, from one side to the other."""
    colour = random.choice([name for name in COLOURS if name not in PLAIN])
    ground = random.choice(PLAIN)
    kind, radius = random.choice(list(KINDS)), random.uniform(0.23, 0.25)
    at = random.uniform(0.48, 0.52), random.uniform(0.48, 0.52)
    (dx, dy), direction = random.choice(list(DIRECTIONS.items()))
    length = random.uniform(*CROSSING)
    caption = f"{article(f'{colour} {kind}')} moves quickly {direction} on {ground}"
    return [_shape(random, kind, colour, at, radius)], ground, caption, (length * dx, length * dy)


def _moving(random: Random) -> Moving:
    colour, ground = _colours(random, 2)
    kind, radius = random.choice(list(KINDS)), random.uniform(0.19, 0.22)
    at = random.uniform(0.44, 0.56), random.uniform(0.44, 0.56)
    named = article(f"{colour} {kind}")
    shape = _shape(random, kind, colour, at, radius)
    if random.random() < 0.1:
        return [shape], ground, f"{named} rests on {ground}", (0.0, 0.0)
    (dx, dy), direction = random.choice(list(DIRECTIONS.items()))
    speed = random.choice(list(SPEEDS))
    length = random.uniform(*SPEEDS[speed])
    caption = f"{named} moves {speed} {direction} on {ground}"
    return [shape], ground, caption, (length * dx, length * dy)


def compose(number: int, seed: int = 0, moving: bool = False, single: bool = False) -> Picture:
    """The picture, or the clip, with this number; a `single` large figure, or up to four."""
    attempt = 0
    while True:
        text = f"figures/{moving}/{single}/{seed}/{number}/{attempt}"
        random = Random(int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big"))
        way = (0.0, 0.0)
        if moving:
            shapes, ground, caption, way = (_crossing if single else _moving)(random)
        else:
            large = partial(_one, sizes=("large",))
            forms = (large,) if single else (_one, _alike, _pair)
            shapes, ground, caption = random.choice(forms)(random)
        if is_held_out(caption) == bool(number & 1):
            break
        attempt += 1
    colour = _jittered(random, ground)
    return Picture(
        ground=Fill(colour, colour),
        shapes=tuple(shapes),
        light=2 * pi * (number * GOLDEN % 1),  # never the same for two numbers
        brightness=random.uniform(0.05, 0.2),
        caption=caption,
        way=way,
    )


def draw_clip(picture: Picture, frames: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """uint8 of shape (t, h, w, 3): the same way in clips of any length."""
    clip = np.empty((frames, height, width, 3), np.uint8)
    for index in range(frames):
        share = index / (frames - 1) - 0.5 if frames > 1 else 0.0
        dx, dy = (share * way for way in picture.way)
        shapes = tuple(replace(s, x=s.x + dx, y=s.y + dy) for s in picture.shapes)
        clip[index] = draw(replace(picture, shapes=shapes), height, width).transpose(1, 2, 0)
    return clip
