"""Procedural scenes with captions: a pure function of a number, distinct for each number.

Captions do not mention left and right, so they stay true when the image is flipped.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import dist, exp, hypot, log, pi, sqrt
from random import Random

import numpy as np
import numpy.typing as npt

from quintet.shared.scenes import drawing
from quintet.shared.scenes.drawing import Colour, Fill, Shape

HUES: dict[str, Colour] = {
    "red": (0.86, 0.12, 0.13),
    "orange": (0.97, 0.48, 0.07),
    "yellow": (0.99, 0.84, 0.16),
    "green": (0.14, 0.62, 0.24),
    "teal": (0.05, 0.60, 0.62),
    "blue": (0.11, 0.30, 0.84),
    "purple": (0.45, 0.16, 0.68),
    "pink": (0.96, 0.42, 0.65),
    "brown": (0.45, 0.26, 0.13),
    "white": (0.97, 0.96, 0.93),
    "black": (0.06, 0.06, 0.09),
    "grey": (0.52, 0.52, 0.54),
}
TONES: dict[str, tuple[float, float]] = {  # mixed with a grey of this lightness, by this share
    "": (0.0, 0.0),
    "pale": (1.0, 0.5),
    "dark": (0.0, 0.55),
    "dusty": (0.55, 0.45),
}
ADJECTIVES = {
    "plain": "",
    "stripes": "striped",
    "checks": "checked",
    "ripples": "rippled",
    "waves": "wavy",
    "dots": "dotted",
    "gradient": "shaded",
    "glow": "glowing",
}
SMOOTH = {"gradient": 6, "clouds": 5, "glow": 3}
PATTERNS = {"stripes": 3, "checks": 2, "ripples": 2, "waves": 3, "dots": 2}
GROUNDS = {**SMOOTH, **PATTERNS}
FILLS = {"plain": 8, "gradient": 4, "glow": 2, **PATTERNS}
PAINTS = tuple(HUES.items())
KINDS = [kind for kind in drawing.OUTLINES if kind != "line"]
GOLDEN = (sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Paint:
    """A colour and its name."""

    name: str
    colour: Colour


@dataclass(frozen=True)
class Scene:
    """Description of an image, independent of its size."""

    ground: Fill
    shapes: tuple[Shape, ...]
    light: float
    brightness: float
    caption: str


def pick(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def log_uniform(random: Random, low: float, high: float) -> float:
    return exp(random.uniform(log(low), log(high)))


def _mix(a: Colour, b: Colour, share: float) -> Colour:
    keep = 1 - share
    return keep * a[0] + share * b[0], keep * a[1] + share * b[1], keep * a[2] + share * b[2]


def _mix_paint(random: Random) -> Paint:
    hue, pure = random.choice(PAINTS)
    colourless = hue in ("white", "black", "grey")
    tone = "" if colourless or random.random() < 0.4 else random.choice(("pale", "dark", "dusty"))
    grey, share = TONES[tone]
    colour = _mix(pure, (grey, grey, grey), share)
    tint = (random.random(), random.random(), random.random())
    return Paint(f"{tone} {hue}".strip(), _mix(colour, tint, 0.08))


def _paint_unlike(random: Random, others: list[Paint], tries: int) -> Paint:
    """The paint of highest contrast among a few."""
    paints = [_mix_paint(random) for _ in range(tries)]
    contrast = lambda paint: min(dist(paint.colour, other.colour) for other in others)
    return max(paints, key=contrast)


def make_ground(random: Random) -> tuple[Fill, list[Paint], str]:
    first = _mix_paint(random)
    second = _paint_unlike(random, [first], 2)
    texture = pick(random, GROUNDS)
    strength = 1.0 if texture in SMOOTH else random.uniform(0.25, 0.8)
    fill = Fill(
        colour=first.colour,
        second=_mix(first.colour, second.colour, strength),
        texture=texture,
        period=log_uniform(random, 0.12, 0.6),
        angle=random.uniform(0, 2 * pi),
        noise=random.randbytes(drawing.CLOUD_BYTES) if texture == "clouds" else b"",
    )
    names = f"{first.name} and {second.name} {texture}"
    return fill, [first, second], f"a {names}" if texture in ("gradient", "glow") else names


def _free_position(random: Random, radius: float, others: list[Shape]) -> tuple[float, float]:
    """The farthest from the other shapes among a few random positions."""
    margin = 0.6 * radius
    positions = [[random.uniform(margin, 1 - margin) for _ in "xy"] for _ in range(6)]

    def clearance(position: list[float]) -> float:
        gaps = [hypot(position[0] - o.x, position[1] - o.y) - o.radius for o in others]
        return min(gaps, default=0.0)

    x, y = max(positions, key=clearance)
    return x, y


def _make_fill(random: Random, ground: list[Paint], texture: str) -> tuple[Fill, str]:
    first = _paint_unlike(random, ground, 2)
    second = first if texture == "plain" else _paint_unlike(random, [first], 2)
    name = f"{ADJECTIVES[texture]} {first.name}".strip()
    fill = Fill(
        colour=first.colour,
        second=_mix(first.colour, second.colour, random.uniform(0.4, 1.0)),
        texture=texture,
        period=log_uniform(random, 0.4, 1.2),
        angle=random.uniform(0, 2 * pi),
    )
    return fill, name


def make_shape(
    random: Random, radius: float, ground: list[Paint], others: list[Shape]
) -> tuple[Shape, str]:
    line = radius < 0.2 and len(others) > 1 and random.random() < 0.2
    kind = "line" if line else random.choice(KINDS)
    fill, name = _make_fill(random, ground, "plain" if line else pick(random, FILLS))
    x, y = _free_position(random, radius, others)
    shape = Shape(
        outline=kind,
        x=x,
        y=y,
        radius=random.uniform(0.3, 0.6) if line else radius,
        angle=random.uniform(0, 2 * pi),
        fill=fill,
        shade=random.uniform(0.05, 0.25),
        shadow=0.0 if line else random.choice((0.0, 0.4, 0.6)),
    )
    size = "thin" if line else "large" if radius > 0.24 else "small" if radius < 0.11 else ""
    return shape, f"{size} {name} {kind}".strip()


def article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _caption(shapes: list[Shape], phrases: list[str], ground: str) -> str:
    named = [article(phrase) for phrase in phrases]
    rise = shapes[1].y - shapes[0].y
    relation = "beside" if abs(rise) < 0.15 else "above" if rise > 0 else "below"
    rest = ", ".join(named[2:-1]) + (" and " if len(named) > 3 else "") + named[-1]
    return f"{named[0]} {relation} {named[1]} on {ground}, with {rest}"


def compose(number: int, seed: int = 0) -> Scene:
    """The scene with this number."""
    digest = blake2b(f"{seed}/{number}".encode(), digest_size=16).digest()
    random = Random(int.from_bytes(digest, "big"))
    fill, paints, ground = make_ground(random)
    count = random.randint(3, 8)
    radii = [log_uniform(random, 0.2, 0.36) for _ in range(2)]
    radii += sorted((log_uniform(random, 0.07, 0.22) for _ in range(count - 2)), reverse=True)
    shapes: list[Shape] = []
    phrases: list[str] = []
    for radius in radii:
        shape, phrase = make_shape(random, radius, paints, shapes)
        shapes.append(shape)
        phrases.append(phrase)
    return Scene(
        ground=fill,
        shapes=tuple(shapes),
        light=2 * pi * (number * GOLDEN % 1),  # never the same for two numbers
        brightness=random.uniform(0.1, 0.4),
        caption=_caption(shapes, phrases, ground),
    )


def draw(scene: Scene, height: int, width: int) -> npt.NDArray[np.uint8]:
    """The scene as uint8 of shape (3, h, w); the central square shows all of it."""
    picture = drawing.background(scene.ground, height, width)
    for shape in scene.shapes:
        drawing.paint(picture, shape, scene.light)
    drawing.illuminate(picture, scene.light, scene.brightness)
    return drawing.to_bytes(picture)
