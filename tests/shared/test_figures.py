"""Built-in figures, and the judge that reads them: right on what was drawn, and not fooled."""

from dataclasses import replace

import numpy as np
import pytest

from quintet.shared.scenes import agreement as judge
from quintet.shared.scenes import figures
from quintet.shared.scenes.figures import compose, draw, draw_clip, is_held_out


def picture(number: int, side: int = 64) -> tuple[str, np.ndarray]:
    scene = compose(number)
    return scene.caption, draw(scene, side, side).transpose(1, 2, 0)


@pytest.mark.by_default("128-50")
@pytest.mark.parametrize(
    ("side", "count"), [(64, 150), (128, 50), pytest.param(128, 150, marks=pytest.mark.slow)]
)
def test_the_judge_is_right_on_recorded_pictures(side: int, count: int) -> None:
    """Odd numbers from 40,001 on: the thresholds were set on the first few hundred."""
    pairs = [picture(40_001 + 2 * index, side) for index in range(count)]
    assert np.mean([judge.agrees(*pair) for pair in pairs]) >= 0.98


@pytest.mark.by_default("9-32-False-30")
@pytest.mark.parametrize("count", [30, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("frames", "side", "single"), [(9, 32, False), (17, 64, False), (5, 64, True)]
)
def test_the_judge_is_right_on_recorded_clips(
    frames: int, side: int, single: bool, count: int
) -> None:
    scenes = [compose(40_001 + 2 * index, moving=True, single=single) for index in range(count)]
    clips = [draw_clip(scene, frames, side, side) for scene in scenes]
    agree = [judge.agrees_clip(scene.caption, clip) for scene, clip in zip(scenes, clips)]
    assert np.mean(agree) >= 0.98


def test_no_picture_shows_the_caption_of_another() -> None:
    pairs = [picture(2 * index + 1) for index in range(40)]
    others = pairs[1:] + pairs[:1]
    wrong = [judge.agrees(other[0], pixels) for (own, pixels), other in zip(pairs, others)]
    assert not any(wrong)


def test_every_attribute_counts() -> None:
    """A caption with any one of its words changed is not shown."""
    caption, pixels = next(picture(n) for n in range(1, 99, 2) if "small" in compose(n).caption)
    size, colour, kind = caption.split()[1:4]
    ground, place = caption.split()[-1], caption.split(kind)[1].rpartition(" on ")[0].strip()
    changes = {
        size: "large",
        colour: next(c for c in figures.COLOURS if c not in (colour, ground)),
        kind: next(k for k in figures.KINDS if k != kind),
        place: next(p for p in figures.PLACES.values() if p != place),
        f"on {ground}": "on " + next(c for c in figures.COLOURS if c not in (colour, ground)),
    }
    assert judge.agrees(caption, pixels)
    for word, other in changes.items():
        assert not judge.agrees(caption.replace(word, other), pixels), (word, other)


def test_direction_and_speed_count() -> None:
    scene = next(s for n in range(1, 99, 2) if "slowly" in (s := compose(n, moving=True)).caption)
    clip = draw_clip(scene, 9, 32, 32)
    assert judge.agrees_clip(scene.caption, clip)
    assert not judge.agrees_clip(scene.caption, clip[::-1])
    assert not judge.agrees_clip(scene.caption.replace("slowly", "quickly"), clip)
    still = draw_clip(replace(scene, way=(0.0, 0.0)), 9, 32, 32)
    assert not judge.agrees_clip(scene.caption, still)


def test_noise_shows_nothing() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    assert not judge.agrees("two red stars on white", noise)
    assert not judge.agrees("two red stars on white", np.full((64, 64, 3), 255, np.uint8))


def test_a_caption_of_another_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="no caption of built-in figures"):
        judge.agrees("a dog", np.zeros((64, 64, 3), np.uint8))


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("moving", [False, True])
def test_captions_of_validation_are_never_trained_on(moving: bool, single: bool) -> None:
    how = {"moving": moving, "single": single}
    train = {compose(2 * index, **how).caption for index in range(500)}
    valid = {compose(2 * index + 1, **how).caption for index in range(200)}
    assert not train & valid
    assert all(map(is_held_out, valid))


def test_a_picture_is_a_function_of_its_number() -> None:
    assert compose(7) == compose(7)
    assert compose(7) != compose(9)
    assert compose(7, seed=1) != compose(7)
