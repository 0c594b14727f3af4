import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from quintet.image.config import ImageDataConfig
from quintet.image.data import (
    BuiltinImages,
    ImageFolder,
    check,
    collate,
    open_data,
)
from quintet.media.errors import BadFile
from quintet.media.splits import split_names
from quintet.shared.scenes import scenes
from quintet.shared.scenes.drawing import TEXTURES, background

SMALL = ImageDataConfig(size=(32, 32), valid_limit=40, builtin_count=60)


class Key:
    """Stands in for the engine's keys."""

    def __init__(self, sample: int) -> None:
        self.sample = sample

    def random(self, name: str) -> Random:
        return Random(f"{self.sample}/{name}")

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.sample, *name.encode()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(20):
        pixels = random.integers(0, 255, (40 + number, 60, 3), np.uint8)
        path = tmp_path / f"part{number % 3}"
        path.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path / f"{number:02}.png")
    rows = [{"file_name": "part0/00.png", "caption": "nothing much"}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def names(data: ImageFolder) -> set[str]:
    return {data.name(i) for i in range(len(data))}


def both(folder: Path, config: ImageDataConfig = SMALL) -> tuple[ImageFolder, ImageFolder]:
    return ImageFolder(folder, config, "train", 0), ImageFolder(folder, config, "valid", 0)


def test_a_sample_has_the_size_asked_for_and_its_caption(folder):
    config = ImageDataConfig(size=(24, 48))
    actual = {}
    for data in both(folder, config):
        for index in range(len(data)):
            sample = data.keyed(index, None)
            assert sample["image"].shape == (3, 24, 48)
            assert sample["image"].dtype == torch.uint8
            actual[data.name(index)] = sample["text"]
    assert len(actual) == 20
    assert actual.pop("part0/00.png") == "nothing much"
    assert set(actual.values()) == {""}


def test_a_sample_is_a_function_of_its_key(folder):
    data, _ = both(folder)
    again, other = data.keyed(0, Key(1))["image"], data.keyed(0, Key(2))["image"]
    assert torch.equal(data.keyed(0, Key(1))["image"], again)
    assert not torch.equal(again, other)


def test_without_a_key_the_largest_centre_crop_is_taken(tmp_path):
    pixels = np.zeros((32, 96, 3), np.uint8)
    pixels[:, 32:64] = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    for name, grey in (("a", 0), ("b", 1)):
        pixels[:, :32] = grey
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    data, _ = both(tmp_path)
    middle = torch.from_numpy(pixels[:, 32:64].transpose(2, 0, 1).copy())
    assert torch.equal(data.keyed(0, None)["image"], middle)


def test_min_crop_of_one_leaves_only_the_flip(folder):
    data, _ = both(folder, ImageDataConfig(size=(32, 32), min_crop=1.0))
    plain = data.keyed(0, None)["image"]
    seen = [data.keyed(0, Key(k))["image"] for k in range(30)]
    assert all(torch.equal(x, plain) or torch.equal(x, plain.flip(-1)) for x in seen)
    assert 5 < sum(torch.equal(x, plain) for x in seen) < 25


def test_no_flip_means_no_flip():
    data = BuiltinImages(ImageDataConfig(size=(16, 16), flip=False), "train")
    plain = data.keyed(0, None)["image"]
    assert all(torch.equal(data.keyed(0, Key(k))["image"], plain) for k in range(8))


def test_train_and_valid_share_no_image(folder):
    train, valid = both(folder)
    assert not names(train) & names(valid)
    assert len(train) + len(valid) == 20
    assert len(valid) >= 1


def test_the_seed_chooses_the_validation_split(folder):
    config = ImageDataConfig(valid_fraction=0.5)
    held = {frozenset(names(ImageFolder(folder, config, "valid", seed))) for seed in range(3)}
    assert len(held) == 3


file_names = st.lists(st.text("abc/é\udcff", min_size=1, max_size=6), unique=True, max_size=60)


@settings(deadline=None)
@given(file_names, file_names, st.floats(0, 0.99), st.integers(-5, 5))
def test_new_files_move_no_old_ones(old, new, fraction, seed):
    train, valid = split_names(old, fraction, seed)
    more = old + [name for name in new if name not in old]
    train_later, valid_later = split_names(more, fraction, seed)
    assert sorted(train + valid) == sorted(old)
    assert not set(train) & set(valid)
    if len(old) > 1 and fraction:
        assert train
        assert len(valid) >= min(8, max(1, len(old) // 4))
    if not fraction:
        assert not valid
    # What a small folder holds out beyond its fraction may go back.
    assert len(set(valid) & set(train_later)) <= 8
    assert len(set(train) & set(valid_later)) <= 8


def test_the_validation_fraction_is_respected():
    _, valid = split_names([f"{i}.png" for i in range(4000)], 0.05, 0)
    assert 150 < len(valid) < 250


def test_the_limit_leaves_out_held_out_images_and_gives_none_back_to_training():
    many = [f"{i}.png" for i in range(400)]
    train, valid = split_names(many, 0.5, 0)
    same, capped = split_names(many, 0.5, 0, limit=10)
    assert same == train
    assert len(capped) == 10
    assert set(capped) < set(valid)


def test_a_missing_an_empty_and_a_wrong_folder_are_told_apart(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadFile, match=r"holds no images \(.jpg, .jpeg, .png, .webp"):
        ImageFolder(tmp_path, SMALL, "train", 0)
    with pytest.raises(BadFile, match="does not exist"):
        ImageFolder(tmp_path / "gone", SMALL, "train", 0)
    with pytest.raises(BadFile, match="is a file, not a folder"):
        ImageFolder(tmp_path / "notes.txt", SMALL, "train", 0)


def test_metadata_that_fits_no_image_is_rejected(folder):
    (folder / "metadata.jsonl").write_text('{"file_name": "elsewhere/a.png", "text": "x"}')
    with pytest.raises(BadFile, match="names none of its 20 images"):
        ImageFolder(folder, SMALL, "train", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("min_crop", 0.0), ("valid_fraction", 1.0), ("size", (0, 8)), ("valid_limit", 0)],
)
def test_invalid_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        open_data(None, ImageDataConfig(**{field: value}), "train", 0)


def test_a_wrong_split_is_named():
    with pytest.raises(ValueError, match="give 'train' or 'valid'"):
        open_data(None, SMALL, "test", 0)  # type: ignore[arg-type]


def test_a_damaged_image_is_met_when_it_is_read_and_by_check(folder):
    (folder / "part0/00.png").write_bytes(b"not an image")
    problems = dict(check(folder, SMALL))
    assert len(problems) == 20
    assert [path.name for path, problem in problems.items() if problem] == ["00.png"]
    for data in both(folder):
        for index in range(len(data)):
            if data.name(index) == "part0/00.png":
                with pytest.raises(BadFile, match=r"00\.png: is not one of"):
                    data.keyed(index, None)


@pytest.mark.parametrize("cap", ["max_pixels", "max_bytes"])
def test_images_past_the_caps_of_the_configuration_are_left_out(folder, cap):
    with pytest.raises(BadFile, match=f"can be used: .* left out: more than {cap} = 100"):
        both(folder, ImageDataConfig(**{cap: 100}))


def test_open_data_chooses_and_caps(folder):
    config = ImageDataConfig(size=(16, 16), valid_fraction=0.5, valid_limit=3, builtin_count=7)
    assert len(open_data(folder, config, "valid", 0)) == 3
    assert isinstance(open_data(folder, config, "train", 0), ImageFolder)
    assert [len(open_data(None, config, split, 0)) for split in ("train", "valid")] == [7, 3]


def test_collate_stacks_images_and_lists_texts():
    data = BuiltinImages(SMALL, "train")
    batch = collate([data.keyed(i, Key(i)) for i in range(3)])
    assert batch["image"].shape == (3, 3, 32, 32)
    assert batch["image"].dtype == torch.uint8
    assert batch["text"] == [data.scene(i).caption for i in range(3)]


def test_builtin_scenes_are_all_different_in_both_splits():
    images = [
        data.keyed(i, None)["image"].numpy().tobytes()
        for data in (BuiltinImages(SMALL, "train"), BuiltinImages(SMALL, "valid"))
        for i in range(len(data))
    ]
    assert len(set(images)) == 100
    assert len({scenes.compose(number).light for number in range(2000)}) == 2000


def test_builtin_scenes_depend_on_nothing_but_split_and_index():
    valid = BuiltinImages(SMALL, "valid")
    first = valid.keyed(7, None)
    again = open_data(None, SMALL, "valid", seed=123).keyed(7, None)
    assert torch.equal(first["image"], again["image"])
    assert first["text"] == again["text"]
    assert BuiltinImages(SMALL, "valid", seed=1).scene(7) != valid.scene(7)
    with pytest.raises(IndexError, match="scene 40 of 40"):
        valid.scene(40)


def test_a_scene_is_the_same_at_every_size():
    for number in range(10):
        scene = scenes.compose(number)
        large = Image.fromarray(scenes.draw(scene, 128, 128).transpose(1, 2, 0))
        halved = np.asarray(large.reduce(2)).transpose(2, 0, 1) / 255
        assert np.mean((scenes.draw(scene, 64, 64) / 255 - halved) ** 2) < 2e-3


def test_a_wide_image_shows_the_square_one_in_its_middle():
    for number in range(10):
        scene = scenes.compose(number)
        if scene.ground.texture != "clouds":
            wide = scenes.draw(scene, 32, 64)[:, :, 16:48]
            assert np.abs(wide - scenes.draw(scene, 32, 32).astype(int)).max() <= 1


def test_the_caption_names_every_shape_and_the_ground():
    for number in range(100):
        scene = scenes.compose(number)
        assert 3 <= len(scene.shapes) <= 8
        assert scene.ground.texture in scene.caption
        for kind in {shape.outline for shape in scene.shapes}:
            count = sum(shape.outline == kind for shape in scene.shapes)
            assert (
                scene.caption.replace("rectangle", "RECT").count(kind.replace("rectangle", "RECT"))
                == count
            )
        for shape in scene.shapes:
            assert scenes.ADJECTIVES[shape.fill.texture] in scene.caption


def test_the_caption_tells_above_from_below():
    seen = set()
    for number in range(60):
        scene = scenes.compose(number)
        phrase, rise = scene.caption.split(" on ")[0], scene.shapes[1].y - scene.shapes[0].y
        relation = next(word for word in ("above", "below", "beside") if f" {word} " in phrase)
        assert {"above": rise > 0, "below": rise < 0, "beside": abs(rise) < 0.15}[relation]
        seen.add(relation)
    assert seen == {"above", "below", "beside"}


def test_a_plain_shape_has_the_colour_that_the_caption_names():
    for number in range(200):
        scene = scenes.compose(number)
        last = scene.shapes[-1]  # drawn over all others
        if last.outline == "circle" and last.fill.texture == "plain":
            pixels = scenes.draw(scene, 128, 128) / 255
            x, y = int(last.x * 128), int(last.y * 128)
            assert np.abs(pixels[:, y, x] - last.fill.colour).max() < 0.35
            hue = scene.caption.split()[-2]
            pure = np.array(scenes.HUES[hue])
            assert np.abs(pure - last.fill.colour).mean() < 0.35


def test_the_mean_colour_explains_little_of_a_builtin_scene():
    errors, decibels = [], []
    for number in range(100):
        pixels = scenes.draw(scenes.compose(number), 64, 64) / 255
        error = np.mean((pixels - pixels.mean((1, 2), keepdims=True)) ** 2)
        errors.append(error)
        decibels.append(-10 * np.log10(error))
    assert 12.5 < np.mean(decibels) < 15
    assert 12.5 < -10 * np.log10(np.mean(errors)) < 15


@pytest.mark.parametrize("texture", [*TEXTURES, "plain"])
def test_every_texture_stays_in_range_at_any_size(texture):
    fill = scenes.Fill((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), texture, period=0.13, angle=0.4)
    for size in ((1, 1), (7, 31), (64, 64)):
        surface = background(fill, *size)
        assert surface.shape == (3, *size)
        assert surface.dtype == np.float32
        assert surface.min() >= -1e-6
        assert surface.max() <= 1 + 1e-6
