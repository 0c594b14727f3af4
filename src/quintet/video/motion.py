"""Procedural clips with captions: a pure function of a number, distinct for each number.

Time is in units of `UNIT` frames, so that the start of a clip does not depend on its length.
Captions do not mention left and right, so they stay true when the clip is flipped.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b
from math import cos, exp, pi, sin
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.shared.scenes import drawing, scenes
from quintet.shared.scenes.drawing import LATTICES, Array, Fill, Shape
from quintet.shared.scenes.scenes import GOLDEN, Paint

UNIT = 16
MARGIN = 0.35
"""Visible margin around the central square, in units of the shorter side."""

MOTIONS = {
    "rest": ("rests", 2),
    "turn": ("turns", 3),
    "slide": ("slides across", 3),
    "rise": ("rises", 1),
    "fall": ("falls", 1),
    "bounce": ("bounces about", 4),
    "hop": ("hops", 2),
    "circle": ("circles", 2),
    "swing": ("swings", 2),
    "pulse": ("swells and shrinks", 1),
}
"""The verb of each motion, and its weight among the others."""
WEIGHTS = {kind: weight for kind, (_, weight) in MOTIONS.items()}
TURNING = ("slide", "bounce", "hop", "rise", "fall")
"""Motions that may be combined with a rotation."""
EVEN = ("plain", "glow", "ripples")
"""Rotation-invariant textures."""


@dataclass(frozen=True)
class Motion:
    """Motion along (dx, dy), with `cycles` and `turn` radians per unit of time."""

    kind: str
    dx: float = 0.0
    dy: float = 0.0
    cycles: float = 0.0
    phase: float = 0.0
    turn: float = 0.0


@dataclass(frozen=True)
class Mover:
    """A shape at the middle of its motion, and the motion."""

    shape: Shape
    motion: Motion


class View(NamedTuple):
    """Offset and field of view of the camera."""

    dx: float = 0.0
    dy: float = 0.0
    zoom: float = 1.0


@dataclass(frozen=True)
class Camera:
    """Drift and log zoom of the camera per unit of time."""

    dx: float = 0.0
    dy: float = 0.0
    zoom: float = 0.0

    def at(self, time: float) -> View:
        """The view at a time; the motion is periodic."""
        swing = sin(0.9 * time) / 0.9
        return View(self.dx * swing, self.dy * swing, exp(self.zoom * swing))


@dataclass(frozen=True)
class Scene:
    """Description of a clip, independent of its size and length."""

    ground: Fill
    movers: tuple[Mover, ...]
    camera: Camera
    light: float
    brightness: float
    caption: str


# Composition.


def _make_motion(random: Random, kind: str) -> Motion:
    angle, speed = random.uniform(0, 2 * pi), random.uniform(0.4, 1.1)
    dx, dy = speed * cos(angle), speed * sin(angle)
    cycles, phase = random.uniform(0.5, 1.2), random.random()
    spin = random.choice((-1, 1)) * random.uniform(0.8, 3.5)
    turn = spin if kind == "turn" or (kind in TURNING and random.random() < 0.5) else 0.0
    match kind:
        case "rest" | "turn":
            return Motion(kind, turn=turn)
        case "rise" | "fall":
            return Motion(kind, 0.2 * dx, speed if kind == "fall" else -speed, turn=turn)
        case "bounce":
            return Motion(kind, 1.6 * dx, 1.6 * dy, turn=turn)
        case "hop":
            return Motion(kind, 0.6 * dx, random.uniform(0.25, 0.5), 2 * cycles, phase, turn)
        case "circle":
            return Motion(kind, random.uniform(0.12, 0.3), 0.0, cycles, phase)
        case "swing":
            return Motion(kind, 0.35 * dx, 0.35 * dy, cycles, phase)
        case "pulse":
            return Motion(kind, 0.35, 0.0, cycles, phase)
        case _:
            return Motion(kind, dx, dy, turn=turn)


def _make_camera(random: Random) -> tuple[Camera, str]:
    choice = random.random()
    angle, speed = random.uniform(0, 2 * pi), random.uniform(0.08, 0.3)
    drift = Camera(speed * cos(angle), speed * sin(angle))
    if choice < 0.35:
        return drift, ", as the camera drifts"
    zoom = random.uniform(0.15, 0.35)
    if choice < 0.45:
        return Camera(zoom=zoom), ", as the camera draws back"
    if choice < 0.55:
        return Camera(zoom=-zoom), ", as the camera draws near"
    return Camera(), ""


def _rotation_invariant(shape: Shape) -> bool:
    return shape.outline in ("circle", "ring") and shape.fill.texture in EVEN


def _make_mover(
    random: Random, radius: float, paints: list[Paint], others: list[Mover], kind: str
) -> tuple[Mover, str]:
    shape, phrase = scenes.make_shape(random, radius, paints, [m.shape for m in others])
    if kind == "turn" and _rotation_invariant(shape):
        kind = "bounce"
    motion = _make_motion(random, kind)
    if _rotation_invariant(shape):
        motion = replace(motion, turn=0.0)
    if others and kind in ("slide", "rise", "fall", "swing") and random.random() < 0.6:
        shape = replace(shape, x=others[0].shape.x, y=others[0].shape.y)  # an occlusion
    phrase = f"{scenes.article(phrase)} {MOTIONS[kind][0]}"
    return Mover(shape, motion), f"{phrase} and turns" if motion.turn and kind != "turn" else phrase


def _caption(phrases: list[str], ground: str, camera: str) -> str:
    rest = " and ".join((", ".join(phrases[1:-1]), phrases[-1])) if phrases[2:] else phrases[-1]
    return f"{phrases[0]} while {rest}, on {ground}{camera}"


def compose(number: int, seed: int = 0) -> Scene:
    """The scene with this number."""
    digest = blake2b(f"clip/{seed}/{number}".encode(), digest_size=16).digest()
    random = Random(int.from_bytes(digest, "big"))
    fill, paints, ground = scenes.make_ground(random)
    camera, camera_phrase = _make_camera(random)
    count = random.randint(2, 5)
    radii = sorted((scenes.log_uniform(random, 0.09, 0.3) for _ in range(count)), reverse=True)
    kinds = [scenes.pick(random, WEIGHTS) for _ in radii]
    if all(kind == "rest" for kind in kinds):
        kinds[-1] = "bounce"
    movers: list[Mover] = []
    phrases: list[str] = []
    for radius, kind in zip(radii, kinds):
        mover, phrase = _make_mover(random, radius, paints, movers, kind)
        movers.append(mover)
        phrases.append(phrase)
    return Scene(
        ground=fill,
        movers=tuple(movers),
        camera=camera,
        light=2 * pi * (number * GOLDEN % 1),  # never the same for two numbers
        brightness=random.uniform(0.1, 0.4),
        caption=_caption(phrases, ground, camera_phrase),
    )


# Motion.


def _reflect(position: float, margin: float) -> float:
    """Linear motion, reflected at the borders of the central square."""
    width = 1 - 2 * margin
    offset = (position - margin) % (2 * width)
    return margin + min(offset, 2 * width - offset)


def shape_at(mover: Mover, time: float) -> Shape:
    """The shape at a time, in world coordinates."""
    shape, motion = mover.shape, mover.motion
    x, y, radius, angle = shape.x, shape.y, shape.radius, motion.turn * time
    swing = 2 * pi * (motion.cycles * time + motion.phase)
    margin = min(0.8 * radius, 0.4)
    match motion.kind:
        case "slide" | "rise" | "fall":
            x, y = x + motion.dx * (time - 0.5), y + motion.dy * (time - 0.5)
        case "bounce":
            x, y = _reflect(x + motion.dx * time, margin), _reflect(y + motion.dy * time, margin)
        case "hop":
            flight = (motion.cycles * time + motion.phase) % 1
            x = _reflect(x + motion.dx * time, margin)
            y = 1 - margin - motion.dy * 4 * flight * (1 - flight)
        case "circle":
            x, y = x + motion.dx * cos(swing), y + motion.dx * sin(swing)
        case "swing":
            x, y = x + motion.dx * sin(swing), y + motion.dy * sin(swing)
        case "pulse":
            radius *= 1 + motion.dx * sin(swing)
        case _:
            pass
    fill = replace(shape.fill, angle=shape.fill.angle + angle) if angle else shape.fill
    return replace(shape, x=x, y=y, radius=radius, angle=shape.angle + angle, fill=fill)


def _to_view(shape: Shape, view: View) -> Shape:
    """From world to image coordinates."""
    dx, dy, zoom = view
    if view == View():
        return shape
    x, y = (shape.x - 0.5 - dx) / zoom + 0.5, (shape.y - 0.5 - dy) / zoom + 0.5
    return replace(shape, x=x, y=y, radius=shape.radius / zoom)


# Frame by frame, because the buffers of a single frame fit into the CPU cache.


def _interpolation(cells: int, line: Array) -> Array:
    """(n, cells + 1): weights of smooth interpolation from a lattice to the coordinates."""
    position = np.clip((line + np.float32(0.5 + MARGIN)) / np.float32(1 + 2 * MARGIN), 0, 1) * cells
    distance = np.minimum(np.abs(position[:, None] - np.arange(cells + 1, dtype=np.float32)), 1)
    return 1 - distance * distance * (3 - 2 * distance)


def _clouds(noise: bytes, x: Array, y: Array) -> Array:
    """Like `drawing.clouds`, over the whole visible area."""
    values = np.frombuffer(noise, np.uint8).astype(np.float32) / 255 - np.float32(0.5)
    out, start = np.full((len(y), len(x)), 0.5, np.float32), 0
    for cells, weight in zip(LATTICES, (0.95, 0.5, 0.25), strict=True):
        count = (cells + 1) ** 2
        lattice = values[start : start + count].reshape(cells + 1, cells + 1) * np.float32(weight)
        out += _interpolation(cells, y) @ lattice @ _interpolation(cells, x).T
        start += count
    return np.clip(out, 0, 1, out=out)


def _ground(fill: Fill, view: View, height: int, width: int) -> Array:
    """The background in the view of the camera: float32 (3, h, w)."""
    grid, zoom = drawing.grid_for(height, width), np.float32(view.zoom)
    x = (grid.x - np.float32(0.5)) * zoom + np.float32(view.dx)
    y = (grid.y - np.float32(0.5)) * zoom + np.float32(view.dy)
    if fill.texture == "clouds":
        mixture = _clouds(fill.noise, x, y)
    else:
        u, v = drawing.rotated(x, y, fill.angle)
        mixture = drawing.TEXTURES[fill.texture](u, v, fill.period, grid.pixel * view.zoom)
    first, second = drawing.vector(fill.colour), drawing.vector(fill.second)
    picture = mixture * (second - first)
    picture += first
    return picture


def draw(scene: Scene, frames: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """The clip as uint8 of shape (t, h, w, 3); the central square shows all of it."""
    clip = np.empty((3, frames, height, width), np.uint8)
    lighting = np.ones((1, height, width), np.float32)
    drawing.illuminate(lighting, scene.light, scene.brightness)
    ground = None
    for index in range(frames):
        view = scene.camera.at(index / UNIT)
        if ground is None or scene.camera != Camera():
            ground = _ground(scene.ground, view, height, width)
        picture = ground.copy()
        for mover in scene.movers:
            drawing.paint(picture, _to_view(shape_at(mover, index / UNIT), view), scene.light)
        picture *= lighting
        clip[:, index] = drawing.to_bytes(picture)
    return clip.transpose(1, 2, 3, 0)
