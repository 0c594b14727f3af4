import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quintet.engine.data import shared_rows
from quintet.media.clips.reader import resize_crop_clip
from quintet.media.clips.writer import write_gif, write_mp4
from quintet.media.errors import BadFile
from quintet.shared.scenes.agreement import agrees_clip
from quintet.shared.tokenizer.pixels import resize_crop_fast
from quintet.video.config import VideoDataConfig
from quintet.video.data import (
    BuiltinClips,
    VideoFolder,
    check,
    collate,
    open_data,
)

SMALL = VideoDataConfig(frames=5, size=(16, 16), valid_limit=20, builtin_count=30)
STEP = 5


class Key:
    """Stands in for the engine's keys."""

    def __init__(self, sample: int) -> None:
        self.sample = sample

    def random(self, name: str) -> Random:
        return Random(f"{self.sample}/{name}")

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.sample, *name.encode()])


def numbered(frames: int, height: int = 24, width: int = 32) -> np.ndarray:
    """Frame i is of the grey 20 + 5i, but for a dark top and a bright left edge."""
    clip = np.empty((frames, height, width, 3), np.uint8)
    clip[:] = 20 + STEP * np.arange(frames)[:, None, None, None]
    clip[:, : height // 6], clip[:, :, : width // 4] = 0, 255
    return clip


def numbers(video: torch.Tensor) -> list[int]:
    """Which frames of `numbered` these are."""
    middle = video[:, :, video.shape[2] // 2 :, 6:10].float().mean((0, 2, 3))
    return [round((value - 20) / STEP) for value in middle.tolist()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve videos, GIFs and images with two captions. Never to be written to."""
    path = tmp_path_factory.mktemp("written")
    write_mp4(path / "clip.mp4", numbered(40), 20)
    content = (path / "clip.mp4").read_bytes()
    (path / "clip.mp4").unlink()
    for number in range(8):
        part = path / f"part{number % 2}"
        part.mkdir(exist_ok=True)
        (part / f"{number}.mp4").write_bytes(content)
    write_gif(path / "moving.gif", numbered(12), 10)
    write_gif(path / "alone.gif", numbered(1), 10)
    random = np.random.default_rng(0)
    for name in ("a.png", "b.jpg"):
        Image.fromarray(random.integers(0, 255, (40, 50, 3), np.uint8)).save(path / name)
    rows = [
        {"file_name": "part0/0.mp4", "caption": "grey that brightens"},
        {"file_name": "a.png", "text": "noise"},
    ]
    (path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path, dirs_exist_ok=True))


def names(data: VideoFolder) -> set[str]:
    return {data.name(i) for i in range(len(data))}


def both(folder: Path, config: VideoDataConfig = SMALL) -> tuple[VideoFolder, VideoFolder]:
    config = replace(config, exclude_held_out=False)  # most files of these tests are alike
    return VideoFolder(folder, config, "train", 0), VideoFolder(folder, config, "valid", 0)


def sample(folder: Path, name: str, key: Key | None = None, config: VideoDataConfig = SMALL):
    for data in both(folder, config):
        for index in range(len(data)):
            if data.name(index) == name:
                return data.keyed(index, key)
    raise AssertionError(name)


def test_every_sample_has_the_same_shape_and_its_caption(folder):
    config = VideoDataConfig(frames=7, size=(16, 24))
    texts, still = {}, {}
    for data in both(folder, config):
        for index in range(len(data)):
            actual = data.keyed(index, Key(index))
            assert actual["video"].shape == (3, 7, 16, 24)
            assert actual["video"].dtype == torch.uint8
            assert actual["video"].is_contiguous()
            assert actual["text"] == data.text(index)
            texts[data.name(index)] = actual["text"]
            still[data.name(index)] = actual["still"]
    assert len(texts) == 12
    assert texts.pop("part0/0.mp4") == "grey that brightens"
    assert texts.pop("a.png") == "noise"
    assert set(texts.values()) == {""}
    assert {name for name, value in still.items() if value} == {"a.png", "b.jpg", "alone.gif"}


def test_an_image_is_a_clip_of_equal_frames(folder):
    for name in ("a.png", "b.jpg", "alone.gif"):
        video = sample(folder, name, Key(0))["video"]
        assert torch.equal(video, video[:, :1].expand_as(video))


def test_a_panned_image_moves_in_training_only(folder):
    config = VideoDataConfig(frames=5, size=(16, 16), pan=1.0, flip=False)
    ramp = np.zeros((64, 128, 3), np.uint8)
    ramp[:] = np.arange(128)[None, :, None]
    Image.fromarray(ramp).save(folder / "ramp.png")
    seen = [sample(folder, "ramp.png", Key(k), config) for k in range(8)]
    assert not any(actual["still"] for actual in seen)
    centres = torch.stack([a["video"].float().mean((0, 2, 3)) for a in seen]).diff(dim=1)
    assert centres.abs().max() > 2  # the camera pans over the ramp
    assert (centres.sign().amax(1) - centres.sign().amin(1) <= 1).all()  # and never turns back
    assert (centres - centres.mean(1, keepdim=True)).abs().max() < 1  # at one speed
    without = sample(folder, "ramp.png", None, config)
    assert without["still"]
    assert torch.equal(without["video"], sample(folder, "ramp.png", None)["video"])


def test_without_a_key_the_middle_of_the_clip_and_the_largest_centre_crop_are_taken(folder):
    config = VideoDataConfig(frames=5, size=(24, 24))
    video = sample(folder, "part0/0.mp4", None, config)["video"]
    assert numbers(video) in ([17, 18, 19, 20, 21], [18, 19, 20, 21, 22])
    middle = torch.from_numpy(numbered(40)[17:22, :, 4:28].transpose(3, 0, 1, 2).copy())
    assert (video.float() - middle).abs().mean() < 6


def test_a_sample_is_a_function_of_its_key(folder):
    for name in ("part0/0.mp4", "moving.gif", "a.png"):
        seen = [sample(folder, name, Key(k))["video"] for k in (1, 1, 2)]
        assert torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[1], seen[2])


def test_keys_draw_the_start_and_whole_numbers_of_frames_to_skip(folder):
    config = VideoDataConfig(frames=5, size=(16, 16), min_crop=1.0, flip=False)
    seen = [numbers(sample(folder, "part0/0.mp4", Key(k), config)["video"]) for k in range(24)]
    steps = [set(np.diff(actual).tolist()) for actual in seen]
    assert all(len(step) == 1 for step in steps)
    assert set.union(*steps) == {1, 2}
    assert len({actual[0] for actual in seen}) > 8
    whole = VideoDataConfig(frames=5, size=(16, 16), min_rate_factor=1.0, flip=False, min_crop=1.0)
    for k in range(8):
        actual = numbers(sample(folder, "part0/0.mp4", Key(k), whole)["video"])
        assert set(np.diff(actual).tolist()) == {1}


def test_the_rate_is_the_one_asked_for(folder):
    config = VideoDataConfig(frames=5, size=(16, 16), fps=5.0)
    assert set(np.diff(numbers(sample(folder, "part0/0.mp4", None, config)["video"]))) == {4}


def test_all_frames_get_the_same_crop_and_flip(folder):
    ramp = np.stack(np.broadcast_arrays(*np.ogrid[0:240:24j, 0:200:32j], 90), -1)
    write_mp4(folder / "same.mp4", np.repeat(ramp.astype(np.uint8)[None], 12, 0), 10)
    for k in range(6):
        video = sample(folder, "same.mp4", Key(k))["video"].int()
        assert (video - video[:, :1]).abs().float().mean() < 2


def test_min_crop_of_one_leaves_only_the_flip(folder):
    config = VideoDataConfig(frames=2, size=(16, 16), min_crop=1.0)
    plain = sample(folder, "a.png", None, config)["video"]
    seen = [sample(folder, "a.png", Key(k), config)["video"] for k in range(20)]
    assert all(torch.equal(x, plain) or torch.equal(x, plain.flip(-1)) for x in seen)
    assert 3 < sum(torch.equal(x, plain) for x in seen) < 17


def test_a_short_clip_repeats_its_last_frame(tmp_path):
    for name in ("a.mp4", "b.mp4"):
        write_mp4(tmp_path / name, numbered(3), 10)
    config = VideoDataConfig(frames=6, size=(16, 16), flip=False, min_rate_factor=1.0)
    for key in (None, Key(3)):
        assert numbers(sample(tmp_path, "a.mp4", key, config)["video"]) == [0, 1, 2, 2, 2, 2]


def test_videos_are_decoded_once_and_samples_do_not_depend_on_it(folder, monkeypatch):
    train, _ = both(folder)
    with monkeypatch.context() as short:
        short.setattr(shared_rows.memory, "available", lambda: 0)
        direct, _ = both(folder)
    keys = [Key(number) for number in range(6)]
    videos = [index for index in range(len(train)) if train.name(index).endswith(".mp4")]
    assert len(videos) > 4
    for index in videos:
        for key in keys:
            assert_equal(train.keyed(index, key), direct.keyed(index, key))
    expected = {index: [direct.keyed(index, key) for key in keys] for index in videos}
    for index in videos:
        train.path(index).unlink()
        for key, sample in zip(keys, expected[index]):
            assert_equal(train.keyed(index, key), sample)
        with pytest.raises(BadFile):
            train.keyed(index, None)  # validation reads one window of each file


def test_a_video_that_cannot_be_kept_is_decoded_whenever_it_is_read(folder):
    train, _ = both(folder)
    index = next(i for i in range(len(train)) if train.name(i).endswith(".mp4"))
    content = train.path(index).read_bytes()
    train.path(index).write_bytes(b"not a video")
    for _ in range(2):
        with pytest.raises(BadFile):
            train.keyed(index, Key(0))
    train.path(index).write_bytes(content)
    assert train.keyed(index, Key(0))["video"].shape == (3, 5, 16, 16)
    assert train.cache.whole(index, train.path(index)) is None


def assert_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert torch.equal(a["video"], b["video"])
    assert (a["still"], a["text"]) == (b["still"], b["text"])


def test_training_resamples_nearly_like_validation():
    noise = np.random.default_rng(0).integers(0, 256, (3, 30, 40, 3)).astype(np.uint8)
    frames = np.stack([np.array(Image.fromarray(x).resize((320, 240))) for x in noise])
    for crop in ({"scale": 1.0, "top": 0.5, "left": 0.5}, {"scale": 0.8, "top": 0.5, "left": 1.0}):
        fast = resize_crop_fast(frames, (120, 120), **crop)
        assert fast.shape == (3, 120, 120, 3)
        assert fast.dtype == np.uint8
        difference = np.abs(fast.astype(int) - resize_crop_clip(frames, (120, 120), **crop))
        assert difference.mean() < 1
        assert difference.max() < 12
    enlarged = resize_crop_fast(frames[:, :1, :1], (4, 6), scale=0.1, top=0.9, left=0.9)
    assert (enlarged == frames[:, :1, :1]).all()


def test_no_flip_means_no_flip():
    data = BuiltinClips(VideoDataConfig(frames=2, size=(16, 16), flip=False), "train")
    plain = data.keyed(0, None)["video"]
    assert all(torch.equal(data.keyed(0, Key(k))["video"], plain) for k in range(8))


def test_train_and_valid_share_no_file(folder):
    train, valid = both(folder)
    assert not names(train) & names(valid)
    assert len(train) + len(valid) == 12
    assert len(valid) >= 1


def test_the_seed_chooses_the_validation_split(folder):
    config = VideoDataConfig(valid_fraction=0.5)
    held = {frozenset(names(VideoFolder(folder, config, "valid", seed))) for seed in range(3)}
    assert len(held) == 3


def test_a_missing_an_empty_and_a_wrong_folder_are_told_apart(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadFile, match=r"holds no videos or images \(.mp4, .m4v, .webm, .mov"):
        VideoFolder(tmp_path, SMALL, "train", 0)
    with pytest.raises(BadFile, match="does not exist"):
        VideoFolder(tmp_path / "gone", SMALL, "train", 0)
    with pytest.raises(BadFile, match="is a file, not a folder"):
        VideoFolder(tmp_path / "notes.txt", SMALL, "train", 0)


def test_metadata_that_fits_no_file_is_rejected(folder):
    (folder / "metadata.jsonl").write_text('{"file_name": "elsewhere/a.mp4", "text": "x"}')
    with pytest.raises(BadFile, match="names none of its 12 videos or images"):
        VideoFolder(folder, SMALL, "train", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frames", 0),
        ("size", (0, 8)),
        ("fps", 0.0),
        ("min_rate_factor", 0.0),
        ("min_rate_factor", 1.5),
        ("pan", -0.1),
        ("pan", 1.5),
        ("min_crop", 0.0),
        ("valid_fraction", 1.0),
        ("valid_limit", 0),
        ("builtin_count", 0),
    ],
)
def test_invalid_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        VideoDataConfig(**{field: value})


def test_a_wrong_split_is_named():
    with pytest.raises(ValueError, match="give 'train' or 'valid'"):
        open_data(None, SMALL, "test", 0)  # type: ignore[arg-type]


def test_damaged_files_are_met_when_they_are_read_and_by_check(folder):
    (folder / "part0/0.mp4").write_bytes(b"not a video")
    (folder / "a.png").write_bytes(b"not an image")
    whole = (folder / "part1/1.mp4").read_bytes()
    (folder / "part1/1.mp4").write_bytes(whole[: len(whole) // 2])
    problems = dict(check(folder, SMALL))
    assert len(problems) == 12
    bad = {path.name for path, problem in problems.items() if problem}
    assert bad == {"0.mp4", "a.png", "1.mp4"}
    for name in ("part0/0.mp4", "a.png"):
        with pytest.raises(BadFile, match=r"is (not|none) o"):
            sample(folder, name)


def test_an_old_codec_is_left_out_and_no_damage(folder, capfd):
    import av

    before = both(folder)
    for number in range(3):
        with av.open(str(folder / f"old{number}.avi"), "w") as container:
            stream = container.add_stream("asv1", rate=10)
            stream.height = stream.width = 32
            for image in numbered(6, 32, 32):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
            container.mux(stream.encode())
    for data, same in zip(both(folder), before):
        assert names(data) == names(same)
    line = "3 of 15 videos or images left out: encoded as asv1, which is not supported; encode"
    assert capfd.readouterr().err.count(line) == 1


def test_a_tiny_folder_holds_out_a_clip_that_can_be_measured(tmp_path):
    write_mp4(tmp_path / "a.mp4", numbered(8), 20)
    write_mp4(tmp_path / "b.mp4", numbered(8), 20)
    write_mp4(tmp_path / "long0.mp4", numbered(30), 20)
    for number in range(1, 20):
        shutil.copy(tmp_path / "long0.mp4", tmp_path / f"long{number}.mp4")
    sides = both(tmp_path, VideoDataConfig(frames=5, size=(16, 16), max_seconds=1))
    assert [len(side) for side in sides] == [1, 1]
    assert names(sides[0]) | names(sides[1]) == {"a.mp4", "b.mp4"}


@pytest.mark.parametrize("cap", ["max_pixels", "max_bytes", "max_seconds", "max_frames"])
def test_files_past_the_caps_of_the_configuration_are_rejected(folder, cap):
    problems = dict(check(folder, VideoDataConfig(**{cap: 1})))
    for name in ("part0/0.mp4", "moving.gif"):
        assert f"more than {cap} = 1" in str(problems[folder / name])
    for path in (path for path, problem in problems.items() if problem is None):
        path.unlink()
    with pytest.raises(BadFile, match=f"can be used: .* left out: more than {cap} = 1"):
        both(folder, VideoDataConfig(**{cap: 1}))


def test_open_data_chooses_and_caps(folder):
    config = VideoDataConfig(size=(16, 16), valid_fraction=0.5, valid_limit=3, builtin_count=7)
    assert len(open_data(folder, config, "valid", 0)) == 3
    assert isinstance(open_data(folder, config, "train", 0), VideoFolder)
    assert [len(open_data(None, config, split, 0)) for split in ("train", "valid")] == [7, 3]


def test_collate_stacks_clips_and_lists_texts(folder):
    data = BuiltinClips(SMALL, "train")
    items = [data.keyed(0, Key(0)), sample(folder, "a.png", Key(1)), data.keyed(2, None)]
    batch = collate(items)
    assert batch["video"].shape == (3, 3, 5, 16, 16)
    assert batch["video"].dtype == torch.uint8
    assert batch["still"].dtype == torch.bool
    assert batch["still"].tolist() == [False, True, False]
    assert batch["text"] == [data.scene(0).caption, "noise", data.scene(2).caption]


def test_builtin_clips_are_all_different_and_move_in_both_splits():
    videos = [
        data.keyed(i, None)["video"]
        for data in (BuiltinClips(SMALL, "train"), BuiltinClips(SMALL, "valid"))
        for i in range(len(data))
    ]
    assert len({video.numpy().tobytes() for video in videos}) == 50
    assert all(video.shape == (3, 5, 16, 16) for video in videos)
    assert all(not torch.equal(video[:, 0], video[:, -1]) for video in videos)


@pytest.mark.parametrize("builtin", ["figures", "figure"])
def test_builtin_figures_show_their_captions(builtin: Any) -> None:
    config = VideoDataConfig(frames=5, size=(48, 48), builtin=builtin, builtin_count=12)
    data = open_data(None, config, "train", 0)
    items = [data.keyed(index, None) for index in range(len(data))]
    clips = [item["video"].permute(1, 2, 3, 0).numpy() for item in items]
    assert all(agrees_clip(item["text"], clip) for item, clip in zip(items, clips))
    assert builtin == "figures" or all("moves quickly" in item["text"] for item in items)


def test_builtin_clips_depend_on_nothing_but_split_and_index():
    valid = BuiltinClips(SMALL, "valid")
    first = valid.keyed(7, None)
    again = open_data(None, SMALL, "valid", seed=123).keyed(7, None)
    assert torch.equal(first["video"], again["video"])
    assert first["text"] == again["text"]
    assert valid.name(7) == "built-in valid clip 7"
    assert BuiltinClips(SMALL, "valid", seed=1).scene(7) != valid.scene(7)
    with pytest.raises(IndexError, match="clip 20 of 20"):
        valid.scene(20)
