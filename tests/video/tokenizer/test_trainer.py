"""VideoTokenizerTrainer: the video room for Python users."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import quintet
from harness import lines
from quintet import rooms
from quintet.cli import main
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.media.clips.writer import write_gif, write_mp4
from quintet.shared.tokenizer.config import DiscriminatorConfig
from quintet.video.own_data import OwnVideos
from quintet.video.tokenizer.config import MotionDiscriminatorConfig
from quintet.video.tokenizer.sample import Flags, sample

DISCRIMINATORS = "frame_discriminator", "motion_discriminator"


def tokenizer(**changes: Any) -> quintet.VideoTokenizer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "init_dim": 8,
        "max_dim": 8,
        "patch_size": 4,
        "layers": ("residual", "compress_time"),
        "levels": (4, 4),
    }
    return quintet.VideoTokenizer(**settings | changes)


def trainer(run: Path, model: Any = None, **changes: Any) -> Any:
    keywords: dict[str, Any] = {
        "size": 16,
        "frames": 5,
        "steps": 4,
        "batch_size": 2,
        "warmup_steps": 2,
        "evaluate_every": 0,
        "save_every": 2,
        "log_every": 1,
        "workers": 0,
        "device": "cpu",
        "trackers": (),
        "progress": False,
        "adversarial_from": 0.5,
        "penalty_every": 1,
        "frame_discriminator": DiscriminatorConfig(dim=8, layers=1),
        "motion_discriminator": MotionDiscriminatorConfig(dim=8, layers=1),
        "run": run,
        **changes,
    }
    return quintet.VideoTokenizerTrainer(model if model is not None else tokenizer(), **keywords)


def numbered(length: int) -> Tensor:
    """Bytes (3, t, 16, 16); frame t is of the value t."""
    return torch.arange(length, dtype=torch.uint8)[:, None, None].expand(3, length, 16, 16)


class Clips:
    """Sixteen clips or images, as a person might hand them over."""

    def __init__(self, kind: str):
        self.kind = kind

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 16:
            raise IndexError(index)
        video = torch.rand(3, 5 + index, 16, 16, generator=torch.Generator().manual_seed(index))
        items = {
            "tensor": video,
            "bytes": (video * 255).byte(),
            "array": video.numpy(),
            "tuple": (video, index),
            "dict": {"video": video, "text": f"clip {index}"},
            "videos": {"videos": video},
            "image": video[:, 0],
            "dict of images": {"image": video[:, 0], "text": "still"},
            "both": video if index > 7 else video[:, 0],
            "names": "clip.mp4",
            "flat": video[0, 0],
        }
        return items[self.kind]


def trained_at(run: Path) -> dict[str, list[int]]:
    """The steps of each discriminator."""
    return {
        name: [line["step"] for line in lines(run) if f"{name}/loss" in line]
        for name in DISCRIMINATORS
    }


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    """Videos, GIFs and images in one folder."""
    folder = tmp_path / "footage"
    folder.mkdir()
    for index in range(12):
        values = np.random.default_rng(index).integers(0, 255, (9, 20 + index, 24, 3), np.uint8)
        if index < 5:
            write_mp4(folder / f"{index:02d}.mp4", values, 12)
        elif index < 8:
            write_gif(folder / f"{index:02d}.gif", values, 10)
        else:
            Image.fromarray(values[0]).save(folder / f"{index:02d}.png")
    return folder


# -- data -------------------------------------------------------------------------------------


@pytest.mark.by_default("videos", "tensor", "dict", "image")
@pytest.mark.parametrize(
    "kind",
    ["tensor", "bytes", "array", "tuple", "dict", "videos", "image", "dict of images", "both"],
)
@pytest.mark.usefixtures("unmeasured")
def test_a_data_set_of_any_kind_trains(kind: str, tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", dataset=Clips(kind), steps=1, adversarial_from=0.0)
    assert actual.train() == 1
    assert trained_at(tmp_path / "run") == {name: [1] for name in DISCRIMINATORS}


@pytest.mark.usefixtures("unmeasured")
def test_one_tensor_of_clips_is_a_data_set(tmp_path: Path) -> None:
    assert trainer(tmp_path / "run", dataset=torch.rand(16, 3, 5, 16, 16), steps=1).train() == 1


def test_a_folder_of_videos_and_images_trains_and_the_command_line_knows_the_run(
    footage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = trainer(tmp_path / "run", data=footage, valid_fraction=0.3, steps=2)
    assert actual.train() == 2
    assert actual.recipe.data == str(footage)
    for arguments in (["evaluate"], ["resume", "--steps", "3"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([arguments[0], str(tmp_path / "run"), *arguments[1:]])
        assert not ended.value.code
        if arguments == ["evaluate"]:
            measured = json.loads(capsys.readouterr().out.splitlines()[-1])
            assert measured["psnr"] == lines(tmp_path / "run")[-1]["val/psnr"]


@pytest.mark.parametrize("words", [["resume"], ["evaluate"], ["replay", "--step", "1"], ["sample"]])
@pytest.mark.usefixtures("unmeasured")
def test_a_run_on_a_data_set_says_on_the_command_line_where_its_data_is(
    words: list[str],
    trained: quintet.VideoTokenizerTrainer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    out = ["--out", str(tmp_path / "out")] if words == ["sample"] else []
    with pytest.raises(SystemExit) as ended:
        main([words[0], str(trained.folder), *words[1:], *out])
    assert ended.value.code == 2
    assert "was trained on a Python data set" in capsys.readouterr().err


def test_built_in_clips_are_there_without_any_data(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run")
    assert actual.recipe.data is None
    assert len(actual.task(actual.recipe).data("train")) == 1_000_000


@pytest.mark.parametrize(("kind", "what"), [("names", "str"), ("flat", "Tensor")])
def test_items_that_are_neither_clips_nor_images_are_rejected_by_their_number(
    kind: str, what: str, tmp_path: Path
) -> None:
    sentence = rf"must be a clip \(3, t, h, w\) or an image \(3, h, w\).*sample \d+ is {what}"
    with pytest.raises(TypeError, match=sentence):
        trainer(tmp_path / "run", dataset=Clips(kind)).train()


def test_floats_beyond_one_are_rejected_before_the_first_step(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", dataset=torch.rand(16, 3, 5, 16, 16) * 255)
    with pytest.raises(RunError, match=r"first batch does not fit .* divide by 255"):
        actual.train()


def test_bytes_and_floats_in_one_batch_are_rejected(tmp_path: Path) -> None:
    """Stacked they would all be floats, and some of them 255 times too large."""
    dark = torch.zeros(3, 5, 16, 16)
    actual = trainer(tmp_path / "run", dataset=[dark, dark.byte()] * 4)
    with pytest.raises(TypeError, match=r"float32 and torch\.uint8"):
        actual.train()


def test_data_is_given_once(footage: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"give data \(a folder\) or dataset, not both"):
        trainer(tmp_path / "run", dataset=Clips("tensor"), data=footage)
    with pytest.raises(RunError, match="val_dataset goes with dataset"):
        trainer(tmp_path / "run", data=footage, val_dataset=Clips("tensor"))


def test_a_validation_set_of_the_user_is_evaluated(tmp_path: Path) -> None:
    held = Clips("dict of images")
    actual = trainer(tmp_path / "run", dataset=Clips("tuple"), val_dataset=held, steps=1)
    actual.train()
    assert len(actual.task(actual.recipe).data("train")) == 16
    last = lines(tmp_path / "run")[-1]
    assert last["val/motion_error_still"] == 0  # the images stand still


# -- windows of frames ------------------------------------------------------------------------


def mode_of(path: Path) -> str:
    with Image.open(path) as image:
        return image.mode


@pytest.mark.by_default("4")
@pytest.mark.parametrize("channels", [1, 4])
def test_clips_have_the_channels_of_the_model(channels: int, tmp_path: Path) -> None:
    data = torch.rand(16, channels, 5, 16, 16)
    model = tokenizer(channels=channels)
    actual = trainer(tmp_path / "run", model, dataset=data, valid_fraction=0.25, evaluate_every=4)
    assert actual.train() == 4
    assert trained_at(tmp_path / "run") == {name: [3, 4] for name in DISCRIMINATORS}
    (strip,) = (tmp_path / "run/exhibits").glob("step-*4/reconstructions.png")
    assert mode_of(strip) == "RGB"


def test_a_folder_is_read_in_grey_for_a_model_of_one_channel(footage: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    actual = trainer(run, tokenizer(channels=1), data=footage, steps=2)
    assert actual.open(actual.recipe).keyed(0, None)["video"].shape == (1, 5, 16, 16)
    assert actual.train() == 2
    files = sorted(path for path in footage.iterdir() if path.suffix in (".mp4", ".png"))
    inputs = [files[0], files[-1]]
    assert sample(rooms.trained(run)[1], inputs, tmp_path / "out", Flags(device="cpu"))
    with pytest.raises(RunError, match=r"4 channels.*1 or 3; give a data set of your own"):
        trainer(tmp_path / "other", tokenizer(channels=4), data=footage)


def window(data: OwnVideos, key: Key | None, index: int = 0) -> list[int]:
    return data.keyed(index, key)["video"][0, :, 0, 0].tolist()


def test_a_long_clip_gives_a_window_of_consecutive_frames_by_the_key() -> None:
    data = OwnVideos([numbered(9)], frames=5)
    actual = {tuple(window(data, Key(0, epoch, 0))) for epoch in range(60)}
    assert actual == {tuple(range(first, first + 5)) for first in range(5)}
    key = Key(3, 1, 0)
    torch.manual_seed(1)
    assert window(data, key) == window(OwnVideos([numbered(9)], frames=5), key)
    assert window(data, None) == [2, 3, 4, 5, 6]  # the middle


def test_a_clip_of_the_length_is_taken_whole_and_an_image_is_static() -> None:
    data = OwnVideos([numbered(5), numbered(7)[:, 6]], frames=5)
    assert window(data, Key(0, 0, 0)) == [0, 1, 2, 3, 4]
    assert not data.keyed(0, None)["still"]
    assert window(data, Key(0, 0, 1), index=1) == [6] * 5
    assert data.keyed(1, None)["still"]


def test_a_clip_that_is_too_short_is_named_with_the_remedy(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", dataset=[torch.rand(3, 4, 16, 16)] * 8)
    message = r"sample \d has 4 frames, but frames is 5: lower frames"
    with pytest.raises(RunError, match=message):
        actual.train()


@pytest.mark.parametrize("shape", [(5, 3, 16, 16), (9, 16, 16, 3), (1, 5, 16, 16)])
def test_axes_in_another_order_are_told_from_a_short_clip(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    """As torchvision and PyAV hand clips over, and without colour."""
    actual = trainer(tmp_path / "run", dataset=[torch.rand(shape)] * 8)
    with pytest.raises((ValueError, TypeError), match=r"3, t, h, w\)"):
        actual.train()


# -- keywords ---------------------------------------------------------------------------------


def test_old_keywords_work_and_name_the_new_ones(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning) as caught:
        actual: Any = quintet.VideoTokenizerTrainer(
            tokenizer(),
            dataset=Clips("tensor"),
            size=16,
            frames=5,
            steps=2,
            lr=1e-3,
            checkpoint_every_step=5,
            validate_every_step=7,
            random_split_seed=9,
            apply_grad_penalty_every=3,
        )
    output = {str(warning.message) for warning in caught}
    assert "lr is now called learning_rate" in output
    assert "validate_every_step is now called evaluate_every" in output
    assert all(warning.filename == __file__ for warning in caught)
    assert (
        actual.recipe.optim.learning_rate == actual.recipe.discriminator_optim.learning_rate == 1e-3
    )
    assert actual.recipe.losses.penalty_every == 3
    recipe = actual.recipe
    assert (recipe.save_every, recipe.evaluate_every, recipe.seed) == (5, 7, 9)


def test_an_unknown_keyword_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unknown keyword 'motions'.*motion"):
        trainer(tmp_path / "run", motions=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 18}, r"videos\.size"),
        ({"size": (16, 18)}, r"videos\.size"),
        ({"frames": 6}, r"videos\.frames.*such as 5"),
        ({"frames": 0}, "frames"),
        ({"adversarial": "wasserstein"}, r"losses\.adversarial.*'hinge'"),
        ({"penalty": "r2"}, r"losses\.penalty.*'lecam'"),
        ({"perceptual_frames": 0}, "perceptual_frames"),
        ({"adversarial_from": 3}, "adversarial_from"),
    ],
)
def test_an_invalid_value_is_rejected_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path / "run", **changes)


@pytest.mark.usefixtures("unmeasured")
def test_motion_off_leaves_one_discriminator(tmp_path: Path) -> None:
    trainer(tmp_path / "run", dataset=Clips("tensor"), motion=False, steps=2).train()
    assert not any("motion_discriminator" in name for r in lines(tmp_path / "run") for name in r)
    assert any("frame_discriminator/loss" in r for r in lines(tmp_path / "run"))


def test_frames_need_not_be_square(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", size=(16, 24))
    assert actual.task(actual.recipe).data("train").keyed(0, None)["video"].shape == (3, 5, 16, 24)


def test_building_a_trainer_leaves_the_users_randomness_alone(tmp_path: Path) -> None:
    model = tokenizer()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trainer(tmp_path / "run", model, dataset=Clips("tensor"))
    assert torch.equal(torch.get_rng_state(), before)


# -- going on, and afterwards -----------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> quintet.VideoTokenizerTrainer:
    layers = ("residual", "compress_time", "attend_time", "compress_time", "gateloop_time")
    run = tmp_path_factory.mktemp("trained") / "run"
    actual = trainer(run, tokenizer(layers=layers), dataset=Clips("tensor"), ema_decay=0.5)
    actual.train()
    return actual


def test_ids_and_reconstructions_come_from_the_ema_weights(
    trained: quintet.VideoTokenizerTrainer,
) -> None:
    video = torch.rand(2, 3, 9, 16, 24)
    loaded = quintet.load(trained.folder)
    ids, output = trained.tokenize(video), trained.reconstruct(video)
    assert ids.shape == (2, 3, 4, 6)
    assert torch.equal(ids, loaded.tokenize(video))
    assert torch.equal(output, loaded.reconstruct(video))
    assert output.shape == video.shape
    assert 0 <= output.min() <= output.max() <= 1
    assert not output.requires_grad


@pytest.mark.by_default("4", "400")
@pytest.mark.parametrize("chunk", [4, 8, 12, 400])
def test_chunks_give_the_ids_and_the_clip_of_the_whole(
    chunk: int, trained: quintet.VideoTokenizerTrainer
) -> None:
    video = torch.rand(1, 3, 1 + 4 * 9, 16, 16, generator=torch.Generator().manual_seed(2))
    assert trained.tokenize(video, chunk).equal(trained.tokenize(video))
    torch.testing.assert_close(
        trained.reconstruct(video, chunk), trained.reconstruct(video), atol=1e-5, rtol=0
    )


@pytest.mark.usefixtures("unmeasured")
def test_a_run_starts_from_an_export(tmp_path: Path) -> None:
    common = {"dataset": Clips("tensor")}
    trainer(tmp_path / "first", **common, steps=2).train()
    quintet.load(tmp_path / "first").save_pretrained(tmp_path / "model")
    for name, source in (("a", "first"), ("b", "model")):
        path = tmp_path / source
        trainer(tmp_path / name, **common, steps=1, init_from=path).train()
    losses = [lines(tmp_path / name)[0]["tokenizer/loss"] for name in ("first", "a", "b")]
    assert losses[1] == losses[2] != losses[0]
