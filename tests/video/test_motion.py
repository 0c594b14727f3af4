from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from PIL import Image

from quintet.shared.scenes.drawing import Fill, Shape
from quintet.video import motion
from quintet.video.motion import (
    MOTIONS,
    UNIT,
    Camera,
    Motion,
    Mover,
    Scene,
    compose,
    draw,
    shape_at,
)

GREY = Fill((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "stripes")
RED = Fill((1.0, 0.0, 0.0), (1.0, 0.0, 0.0))


def alone(kind: Motion, radius: float = 0.15, camera: Camera = Camera()) -> Scene:  # noqa: B008
    """A red square that does one thing on grey."""
    shape = Shape("square", 0.5, 0.5, radius, 0.0, RED)
    return Scene(GREY, (Mover(shape, kind),), camera, 0.0, 0.0, "")


def centres(clip: np.ndarray) -> np.ndarray:
    """Where the red is in each frame, in units of the picture: (t, 2)."""
    red = clip[..., 0].astype(float) - clip[..., 1] > 120
    ys, xs = np.indices(red.shape[1:]) + 0.5
    return np.stack([[xs[r].mean(), ys[r].mean()] for r in red]) / red.shape[1]


scene_of = cache(compose)


@cache
def small_clip(number: int) -> np.ndarray:
    return draw(scene_of(number), 17, 32, 32)


def test_a_clip_is_bytes_of_the_size_asked_for():
    for frames, height, width in ((1, 8, 8), (17, 24, 32), (5, 33, 17)):
        clip = draw(compose(3), frames, height, width)
        assert clip.shape == (frames, height, width, 3)
        assert clip.dtype == np.uint8


def test_a_clip_is_a_function_of_its_number_and_seed():
    assert compose(7) == compose(7)
    assert np.array_equal(draw(compose(7), 5, 32, 32), draw(compose(7), 5, 32, 32))
    assert compose(7) != compose(7, seed=1)
    assert compose(7) != compose(8)


def test_no_two_clips_are_alike():
    assert len({draw(scene_of(number), 1, 16, 16).tobytes() for number in range(300)}) == 300
    assert len({scene_of(number).light for number in range(1000)}) == 1000
    assert len({scene_of(number).caption for number in range(300)}) > 290


def test_something_moves_between_any_two_frames_of_nearly_every_clip():
    still = 0
    for number in range(100):
        clip = small_clip(number).astype(int)
        change = np.abs(np.diff(clip, axis=0)).mean((1, 2, 3))
        assert change.max() > 0.05
        still += change.min() < 0.02
    assert still <= 5


def test_motion_is_smooth():
    """No step between two frames stands out from the others of its clip."""
    for number in range(40):
        clip = small_clip(number).astype(float)
        near = np.abs(np.diff(clip, axis=0)).mean((1, 2, 3))
        assert near.max() < 40
        assert near.max() < 6 * np.median(near) + 2


def test_a_longer_clip_begins_as_a_shorter_one():
    for number in range(10):
        scene = compose(number)
        assert np.array_equal(draw(scene, 21, 24, 24)[:6], draw(scene, 6, 24, 24))


def test_a_clip_is_the_same_at_every_size():
    for number in range(6):
        scene = compose(number)
        large = draw(scene, 3, 128, 128)
        halved = np.stack([np.asarray(Image.fromarray(frame).reduce(2)) for frame in large]) / 255
        assert np.mean((draw(scene, 3, 64, 64) / 255 - halved) ** 2) < 2e-3


def test_bouncing_stays_inside_and_turns_at_the_walls():
    path = centres(draw(alone(Motion("bounce", dx=1.4, dy=0.9)), 49, 64, 64))
    assert path.min() > 0.1
    assert path.max() < 0.9
    steps = np.diff(path, axis=0)
    assert (steps[:, 0] > 0).any()
    assert (steps[:, 0] < 0).any()
    assert np.abs(steps).max() < 1.5 * 1.4 / UNIT


def test_sliding_is_straight_and_even():
    steps = np.diff(centres(draw(alone(Motion("slide", dx=0.4, dy=-0.2)), 17, 128, 128)), axis=0)
    assert steps[:, 0] == pytest.approx(0.4 / UNIT, abs=6e-3)
    assert steps[:, 1] == pytest.approx(-0.2 / UNIT, abs=6e-3)


def test_turning_moves_nothing_but_the_angle():
    scene = alone(Motion("turn", turn=1.0), radius=0.3)
    clip = draw(scene, 17, 64, 64)
    assert centres(clip) == pytest.approx(0.5, abs=0.01)
    assert not np.array_equal(clip[0], clip[8])
    assert shape_at(scene.movers[0], 1.0).angle == 1.0


def test_a_texture_turns_with_its_shape():
    mover = alone(Motion("turn", turn=1.0)).movers[0]
    striped = replace(mover, shape=replace(mover.shape, fill=replace(GREY, angle=0.5)))
    assert shape_at(striped, 2.0).fill.angle == 2.5


@pytest.mark.parametrize("kind", [kind for kind in MOTIONS if kind != "rest"])
def test_every_motion_is_seen(kind):
    actual = [
        (scene, mover)
        for scene in map(scene_of, range(200))
        for mover in scene.movers
        if mover.motion.kind == kind
    ]
    assert actual
    for scene, mover in actual[:5]:
        assert MOTIONS[kind][0] in scene.caption
        shapes = [shape_at(mover, index / UNIT) for index in range(17)]
        assert len(set(shapes)) > 15


def test_rising_goes_up_and_falling_down():
    for scene in map(scene_of, range(100)):
        for mover in scene.movers:
            fall = shape_at(mover, 1.0).y - shape_at(mover, 0.0).y
            assert {"rise": fall < 0, "fall": fall > 0}.get(mover.motion.kind, True)


def test_a_round_plain_shape_is_not_said_to_turn():
    for scene in map(scene_of, range(300)):
        for mover in scene.movers:
            if mover.shape.outline in ("circle", "ring") and mover.motion.turn:
                assert mover.shape.fill.texture not in motion.EVEN


def test_the_camera_moves_ground_and_shapes_together():
    scene = alone(Motion("rest"), camera=Camera(dx=0.3))
    path = centres(draw(scene, 17, 64, 64))
    assert path[-1, 0] == pytest.approx(0.5 - scene.camera.at(1.0).dx, abs=0.01)
    assert (np.diff(path[:, 0]) < 0).all()
    assert path[:, 1] == pytest.approx(0.5, abs=0.01)
    red = [
        (draw(alone(Motion("rest"), camera=Camera(zoom=zoom)), 17, 64, 64)[-1, ..., 1] < 60).sum()
        for zoom in (-0.3, 0.0, 0.3)
    ]
    assert red[0] > red[1] > red[2]


def test_some_cameras_drift_and_the_caption_says_so():
    kinds = [scene_of(number) for number in range(200)]
    assert 40 < sum("camera drifts" in scene.caption for scene in kinds) < 100
    for scene in kinds:
        assert ("camera" in scene.caption) == (scene.camera != Camera())


def test_the_caption_names_every_shape_and_the_ground_and_no_side():
    for number in range(100):
        scene = scene_of(number)
        assert 2 <= len(scene.movers) <= 5
        assert scene.ground.texture in scene.caption
        assert all(mover.shape.outline in scene.caption for mover in scene.movers)
        assert " while " in scene.caption
        assert not {"left", "right", "clockwise"} & set(scene.caption.split())


def test_shapes_pass_in_front_of_one_another():
    """In most clips two shapes overlap in some frames and not in others."""
    passing = 0
    for number in range(100):
        scene = scene_of(number)
        pairs = [(a, b) for i, a in enumerate(scene.movers) for b in scene.movers[i + 1 :]]
        for a, b in pairs:
            gaps = []
            for index in range(17):
                one, two = shape_at(a, index / UNIT), shape_at(b, index / UNIT)
                apart = np.hypot(one.x - two.x, one.y - two.y)
                gaps.append(apart - 0.8 * (one.radius + two.radius))
            if min(gaps) < 0 < max(gaps):
                passing += 1
                break
    assert passing > 50


def test_one_colour_or_one_frame_explains_little_of_a_clip():
    colour, frame = [], []
    for number in range(60):
        clip = small_clip(number) / 255
        colour.append(np.mean((clip - clip.mean((0, 1, 2))) ** 2))
        frame.append(np.mean((clip - clip.mean(0)) ** 2))
    assert -10 * np.log10(np.mean(colour)) < 16
    assert -10 * np.log10(np.mean(frame)) < 22
