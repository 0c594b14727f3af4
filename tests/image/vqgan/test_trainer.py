"""VQGanVAETrainer: the image room for Python users."""

import json
import os
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
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError
from quintet.image.vqgan.sample import Flags, sample
from quintet.shared.tokenizer.config import DiscriminatorConfig


def vae(**changes: Any) -> quintet.VQGanVAE:
    torch.manual_seed(0)
    settings = {
        "dim": 8,
        "channel_multipliers": (1, 2),
        "patch_size": 2,
        "num_res_blocks": 1,
        "levels": (4, 4),
    }
    return quintet.VQGanVAE(**settings | changes)


def trainer(run: Path, model: Any = None, **changes: Any) -> quintet.VQGanVAETrainer:
    keywords: dict[str, Any] = {
        "size": 16,
        "steps": 6,
        "batch_size": 4,
        "warmup_steps": 2,
        "evaluate_every": 3,
        "save_every": 2,
        "log_every": 1,
        "workers": 0,
        "device": "cpu",
        "trackers": (),
        "progress": False,
        "adversarial_from": 0.5,
        "penalty_every": 1,
        "discriminator": DiscriminatorConfig(dim=8, layers=1),
        "run": run,
        **changes,
    }
    keywords = {name: value for name, value in keywords.items() if value is not None}
    return quintet.VQGanVAETrainer(model if model is not None else vae(), **keywords)


class Pictures:
    """Sixteen pictures, as a person might hand them over."""

    def __init__(self, kind: str):
        self.kind = kind

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 16:
            raise IndexError(index)
        image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(index))
        match self.kind:
            case "tensor":
                return image
            case "bytes":
                return (image * 255).byte()
            case "array":
                return image.numpy()
            case "tuple":
                return image, index
            case "dict":
                return {"image": image, "text": f"picture {index}"}
            case "images":
                return {"images": image}
            case _:
                return "picture.png"


@pytest.fixture(scope="module")
def heard() -> list[dict[str, Any]]:
    """What the run of `trained` reports."""
    return []


@pytest.fixture(scope="module")
def trained(
    heard: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> quintet.VQGanVAETrainer:
    """After its run. Never to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    actual = trainer(run, dataset=Pictures("tensor"), log_fn=heard.append)
    actual.train()
    return actual


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(16):
        values = np.random.default_rng(index).integers(0, 255, (20 + index, 24, 3), np.uint8)
        Image.fromarray(values).save(folder / f"{index:02d}.png")
    return folder


# -- data -----------------------------------------------------------------------------------


@pytest.mark.by_default("tensor", "dict", "bytes")
@pytest.mark.parametrize("kind", ["tensor", "bytes", "array", "tuple", "dict", "images"])
def test_a_data_set_of_any_kind_trains(kind: str, tmp_path: Path) -> None:
    settings = {"steps": 1, "adversarial_from": 0.0, "valid_fraction": 0.25}
    assert trainer(tmp_path / "run", dataset=Pictures(kind), **settings).train() == 1
    assert [r["step"] for r in lines(tmp_path / "run") if "val/psnr" in r] == [1]
    assert [r["step"] for r in lines(tmp_path / "run") if "discriminator/loss" in r] == [1]


def mode_of(path: Path) -> str:
    with Image.open(path) as image:
        return image.mode


@pytest.mark.by_default("2")
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_data_set_has_the_channels_of_the_model(channels: int, tmp_path: Path) -> None:
    data = torch.rand(16, channels, 16, 16)
    settings = {"steps": 2, "valid_fraction": 0.25}
    actual = trainer(tmp_path / "run", vae(channels=channels), dataset=data, **settings)
    assert actual.train() == 2
    assert any("discriminator/loss" in line for line in lines(tmp_path / "run"))
    (sheet,) = (tmp_path / "run/exhibits").glob("step-*2/reconstructions.png")
    assert mode_of(sheet) == "RGB"
    assert actual.reconstruct(data[:2]).shape == (2, channels, 16, 16)


@pytest.mark.by_default("4")
@pytest.mark.parametrize("channels", [1, 4])
def test_a_folder_is_read_with_the_channels_of_the_model(
    channels: int, photos: Path, tmp_path: Path
) -> None:
    for path in sorted(photos.iterdir())[:8]:  # half of them are transparent
        with Image.open(path) as opaque:
            image = opaque.convert("RGBA")
        image.putalpha(100)
        image.save(path)
    run = tmp_path / "run"
    actual = trainer(run, vae(channels=channels), data=photos, valid_fraction=0.25, steps=2)
    opened = actual.open(actual.recipe)
    samples = [opened.keyed(index, None)["image"] for index in range(len(opened))]
    assert {tuple(image.shape) for image in samples} == {(channels, 16, 16)}
    if channels == 4:
        assert {int(value) for image in samples for value in image[3].unique()} == {100, 255}
    assert actual.train() == 2
    model = rooms.trained(run)[1]
    written = sample(model, sorted(photos.iterdir())[:2], tmp_path / "out", Flags(device="cpu"))
    ids = [path for path in written if path.suffix == ".safetensors"]
    decoded = sample(model, ids, tmp_path / "out", Flags(device="cpu"))
    assert mode_of(decoded[0]) == {1: "L", 4: "RGBA"}[channels]
    assert sample(model, [], tmp_path / "validation", Flags(device="cpu", count=1))


def test_built_in_scenes_are_grey_for_a_model_of_one_channel(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", vae(channels=1), steps=1, valid_limit=8)
    assert actual.open(actual.recipe).keyed(0, None)["image"].shape == (1, 16, 16)
    assert actual.train() == 1


def test_channels_that_no_file_has_are_refused_at_the_start(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"2 channels.*1 or 3 or 4; give a data set of your own"):
        trainer(tmp_path / "run", vae(channels=2), data=photos)
    with pytest.raises(ConfigError, match=r"images\.channels.*model\.channels, 1"):
        trainer(tmp_path / "run", vae(channels=1), data=photos, channels=3)
    with pytest.raises(TypeError, match=r"sample \d+ is \(16, 16, 3\).*\(3, h, w\): permute"):
        trainer(tmp_path / "run", dataset=torch.rand(16, 16, 16, 3)).train()


@pytest.mark.usefixtures("unmeasured")
def test_one_tensor_of_images_is_a_data_set(tmp_path: Path) -> None:
    assert trainer(tmp_path / "run", dataset=torch.rand(16, 3, 16, 16), steps=1).train() == 1


def test_a_folder_trains_and_the_command_line_knows_the_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from quintet.cli import main

    trainer(tmp_path / "run", data=photos, steps=2).train()
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(tmp_path / "run")])
    assert not ended.value.code
    captured = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert captured["psnr"] == lines(tmp_path / "run")[-1]["val/psnr"]
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(tmp_path / "run"), "--steps", "3"])
    assert not ended.value.code


def test_a_folder_is_recorded_in_full(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    actual = trainer(tmp_path / "run", data=os.path.relpath(photos))
    assert actual.recipe.data == str(photos)


@pytest.mark.parametrize("words", [["resume"], ["evaluate"], ["replay", "--step", "1"], ["sample"]])
@pytest.mark.usefixtures("unmeasured")
def test_a_run_on_a_data_set_says_on_the_command_line_where_its_data_is(
    words: list[str],
    trained: quintet.VQGanVAETrainer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from quintet.cli import main

    capsys.readouterr()
    out = ["--out", str(tmp_path / "out")] if words == ["sample"] else []
    with pytest.raises(SystemExit) as ended:
        main([words[0], str(trained.folder), *words[1:], *out])
    assert ended.value.code == 2
    assert "was trained on a Python data set" in capsys.readouterr().err


def test_built_in_scenes_are_there_without_any_data(tmp_path: Path) -> None:
    assert trainer(tmp_path / "run", steps=1, evaluate_every=0).recipe.data is None


def test_items_that_are_no_images_are_rejected_by_their_number(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"must be an image.*sample \d+ is str"):
        trainer(tmp_path / "run", dataset=Pictures("names")).train()


def test_data_is_given_once(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"give data \(a folder\) or dataset, not both"):
        trainer(tmp_path / "run", dataset=Pictures("tensor"), data=photos)
    with pytest.raises(RunError, match="val_dataset goes with dataset"):
        trainer(tmp_path / "run", data=photos, val_dataset=Pictures("tensor"))


def test_a_validation_set_of_the_user_is_evaluated(tmp_path: Path) -> None:
    data = {"dataset": Pictures("tuple"), "val_dataset": Pictures("dict")}
    actual = trainer(tmp_path / "run", **data, steps=1)
    actual.train()
    assert len(actual.task(actual.recipe).data("train")) == 16
    assert "val/psnr" in lines(tmp_path / "run")[-1]


# -- keywords -------------------------------------------------------------------------------


def test_old_keywords_work_and_name_the_new_ones(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning) as caught:
        actual = quintet.VQGanVAETrainer(
            vae(),
            dataset=Pictures("tensor"),
            size=16,
            steps=2,
            lr=1e-3,
            save_model_every=5,
            save_results_every=7,
            apply_grad_penalty_every=3,
        )
    output = {str(warning.message) for warning in caught}
    assert "lr is now called learning_rate" in output
    assert "apply_grad_penalty_every is now called penalty_every" in output
    assert all(warning.filename == __file__ for warning in caught)
    assert actual.recipe.optim.learning_rate == 1e-3
    assert actual.recipe.losses.penalty_every == 3
    assert (actual.recipe.save_every, actual.recipe.evaluate_every) == (5, 7)


def test_a_run_says_which_recipe_it_trains_and_what_was_changed(
    trained: quintet.VQGanVAETrainer,
) -> None:
    opening = "image/vqgan from Python: 15 settings changed: steps, batch_size, device, workers, "
    said = [event["message"] for event in lines(trained.folder, "events")]
    assert [line for line in said if "from Python" in line] == [trained.opening]
    assert str(trained.opening).startswith(opening)
    assert trained.recipe.optim.optimizer == "muon"


def test_an_unknown_keyword_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unknown keyword 'adverserial'.*adversarial"):
        trainer(tmp_path / "run", adverserial="hinge")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 18}, r"images\.size"),
        ({"adversarial": "wasserstein"}, r"losses\.adversarial.*'hinge'"),
        ({"penalty": "r2"}, r"losses\.penalty.*'lecam'"),
        ({"precision": "fp8"}, "precision"),
        ({"adversarial_from": 3}, "adversarial_from"),
    ],
)
def test_an_invalid_value_is_rejected_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path / "run", **changes)


def test_epochs_are_counted_in_training_pictures(tmp_path: Path) -> None:
    changes = {"steps": None, "num_epochs": 2, "valid_fraction": 0.25}
    actual = trainer(tmp_path / "run", dataset=Pictures("tensor"), **changes)
    assert actual.recipe.steps == 6  # 12 x 2 / 4
    assert actual.train() == 6


def test_every_report_reaches_the_users_function(
    trained: quintet.VQGanVAETrainer, heard: list[dict[str, Any]]
) -> None:
    assert [r["step"] for r in heard if "vae/loss" in r] == [1, 2, 3, 4, 5, 6]


def test_evaluations_and_the_discriminator_come_at_their_steps(
    trained: quintet.VQGanVAETrainer,
) -> None:
    assert [r["step"] for r in lines(trained.folder) if "val/psnr" in r] == [3, 6]
    assert [r["step"] for r in lines(trained.folder) if "discriminator/loss" in r] == [4, 5, 6]


def test_building_a_trainer_leaves_the_users_randomness_alone(tmp_path: Path) -> None:
    model = vae()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trainer(tmp_path / "run", model, dataset=Pictures("tensor"))
    assert torch.equal(torch.get_rng_state(), before)


# -- going on, and afterwards ---------------------------------------------------------------


def test_a_trainer_continues_after_the_discriminator_started(tmp_path: Path) -> None:
    actual = trainer(
        tmp_path / "run", dataset=Pictures("tensor"), adversarial_from=0.0, minutes=1e-9
    )
    assert actual.train() == 1
    assert all(p.requires_grad for p in actual.model.parameters())
    assert actual.train(resume=True) == 2


def test_ids_and_reconstructions_come_from_the_ema_weights(
    trained: quintet.VQGanVAETrainer,
) -> None:
    images: Tensor = torch.rand(2, 3, 16, 24)
    loaded = quintet.load(trained.folder)
    ids, output = trained.tokenize(images), trained.reconstruct(images)
    assert ids.shape == (2, 4, 6)
    assert torch.equal(ids, loaded.tokenize(images))
    assert torch.equal(output, loaded.reconstruct(images))
    assert 0 <= output.min() <= output.max() <= 1
    assert not output.requires_grad


@pytest.mark.usefixtures("unmeasured")
def test_a_run_starts_from_an_export(tmp_path: Path) -> None:
    first = trainer(tmp_path / "first", dataset=Pictures("tensor"), steps=2)
    first.train()
    quintet.load(tmp_path / "first").save_pretrained(tmp_path / "model")
    for name, source in (("a", "first"), ("b", "model")):
        again = trainer(
            tmp_path / name,
            vae(),
            dataset=Pictures("tensor"),
            steps=1,
            init_from=tmp_path / source,
        )
        again.train()
    losses = [lines(tmp_path / name)[0]["vae/loss"] for name in ("first", "a", "b")]
    assert losses[1] == losses[2] != losses[0]
