"""Enlarging of small images: conditions, tiles, files, commands."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import quintet
from harness import assert_same
from image.flow.test_flow import FEW, MODEL
from quintet import ImageFlow, ImageFlowTrainer, LatentModule, PixelLatents
from quintet.cli import main
from quintet.engine.config import ConfigError, from_json
from quintet.engine.keys import Key, fold
from quintet.engine.launch import start
from quintet.engine.machine.world import World
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.image import recipes
from quintet.image.flow.enlarging import padded, places, shrunk, stretched
from quintet.image.flow.outputs import outputs
from quintet.image.flow.sample import example
from quintet.image.flow.task import ImageFlowTask, build

SIDE, FACTOR = 16, 4
MORE = {"patch": 4, "enlarge": FACTOR, **MODEL}


@pytest.fixture(scope="module")
def model() -> ImageFlow:
    """With weights that are not zero anywhere, so that every input counts."""
    torch.manual_seed(1)
    model = ImageFlow(PixelLatents(), image_size=SIDE, **MORE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model.measure_latents(torch.rand(8, 3, SIDE, SIDE) * 255)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained by the command line for two steps, over pixels."""
    path = tmp_path_factory.mktemp("enlarging") / "run"
    trained("image/flow_tiny", path, "--tokenizer", "pixels", "--model.patch", 4, "--model.dim", 32)
    return path


def trained(name: str, path: Path, *more: Any) -> None:
    words = ["train", name, "--run", path, "--steps", 2, "--workers", 0, "--batch-size", 4]
    words += ["--images.builtin-count", 12, "--images.valid-limit", 3, "--images.size", SIDE, SIDE]
    words += ["--generation.count", 3, "--generation.sampling-steps", 2, "--device", "cpu"]
    own = ["--model.enlarge", FACTOR, "--model.layers", 1] if "few" not in name else []
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in (*words, "--trackers", *own, *more)])


def recipe(run: Path, **changes: Any) -> Any:
    kept = from_json(type(recipes.flow_tiny()), RunFolder.open(run).about["settings"])
    return replace(kept, **{**FEW, **changes})


@pytest.fixture
def task(run: Path) -> ImageFlowTask:
    task = build(recipe(run, tokenizer=str(run / "frozen/tokenizer")))
    task.prepare(World(task.recipe))
    return task


# -- the condition --------------------------------------------------------------------------------


def test_small_images_are_those_of_files() -> None:
    images = torch.rand(2, 3, 16, 24)
    small = shrunk(images, 4)
    assert small.shape == (2, 3, 4, 6)
    assert torch.equal((small * 255).round() / 255, small)
    large = stretched(small, 4)
    assert large.shape == images.shape
    assert 0 <= large.min() <= large.max() <= 1
    assert torch.allclose(stretched(torch.full((1, 3, 2, 2), 0.3), 4), torch.tensor(0.3))


def test_sides_are_filled_up_with_the_last_pixels() -> None:
    images = torch.rand(1, 3, 4, 20)
    large = padded(images, 16)
    assert large.shape == (1, 3, 16, 32)
    assert torch.equal(large[..., :4, :20], images)
    assert torch.equal(large[..., 4:, :20], images[..., 3:, :].expand(-1, -1, 12, -1))
    assert torch.equal(padded(large, 16), large)


def test_both_latents_are_cached_and_the_originals_measured(task: ImageFlowTask) -> None:
    data: Any = task.data("train")
    image = data.source.keyed(3, None)["image"]
    item = data.keyed(3, None)
    assert torch.equal(item["original"], image)
    assert torch.equal(item["codes"], image.flatten(1).mT)
    coarse = stretched(shrunk(image[None] / 255, FACTOR), FACTOR) * 255
    assert torch.equal(item["beside"], coarse[0].round().to(torch.uint8).flatten(1).mT)
    assert "original" not in data.keyed(3, Key(0, 0, 3))
    rows = torch.cat([data.codes_of(index) for index in range(len(data))]).double()
    assert torch.allclose(task.model.latent_mean, rows.mean(0).float())
    batch = Batch(task.collate([item]), [3], torch.arange(1))
    model: Any = task.model
    small = shrunk(image[None] / 255, FACTOR)
    beside = task.beside(batch)
    assert beside is not None
    assert torch.allclose(beside, model.beside_of(small), atol=1e-5)


def test_the_condition_counts_and_is_off_by_default(model: ImageFlow) -> None:
    x, time = torch.randn(1, 3, SIDE, SIDE), torch.rand(1)
    known = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.bool)
    first, second = (model.velocity(x, time, known, beside=torch.rand_like(x)) for _ in range(2))
    assert not torch.allclose(first, second)
    names = {*ImageFlow(replace(model.config, enlarge=0)).state_dict()}
    assert {*model.state_dict()} - names == {"beside.weight"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"enlarge": 1}, "enlarge is 1; it must be 0, or between 2 and 16"),
        ({"enlarge": 3}, r"images.size is \(64, 64\); it must be divisible by model.enlarge, 3"),
        ({"patch": 2}, "model.patch is 2; it must be 4 or more with tokenizer pixels"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], sentence: str) -> None:
    base = recipes.flow_tiny()
    with pytest.raises(ConfigError, match=sentence):
        replace(base, tokenizer="pixels", model=replace(base.model, **{"patch": 8, **changes}))


# -- sampling -------------------------------------------------------------------------------------


def test_windows_cover_a_side_and_overlap() -> None:
    assert places(10, 16) == places(16, 16) == [0]
    for side in range(17, 100):
        begins = places(side, 16)
        assert begins[0] == 0
        assert begins[-1] == side - 16
        assert all(0 < b - a <= 12 for a, b in pairwise(begins))


def test_images_of_any_size_are_enlarged(model: ImageFlow) -> None:
    for height, width in ((1, 1), (4, 4), (5, 3), (7, 9)):
        made = model.generate(small=torch.rand(3, height, width), steps=1)
        assert made.shape == (1, 3, FACTOR * height, FACTOR * width)
        assert made.isfinite().all()


def test_each_small_image_has_its_own(model: ImageFlow) -> None:
    small = torch.rand(3, 3, 4, 6)
    together = model.generate("a star", small=small, steps=2)
    alone = model.generate("a star", small=small[2], steps=2, first=2)
    assert torch.equal(together[2:], alone)
    drawn = model.generate(small=small[0], count=2, steps=2)
    assert not torch.equal(drawn[0], drawn[1])


def test_tiles_agree_with_one_where_all_is_even(model: ImageFlow) -> None:
    """Weights add up to 1 everywhere: a model that says 0 leaves the noise as it is."""
    still = ImageFlow(PixelLatents(), image_size=SIDE, **MORE).eval()  # its head is zero
    still.measure_latents(torch.rand(8, 3, SIDE, SIDE) * 255)
    latents = still.generate(small=torch.rand(3, 9, 11), steps=2, seed=4, return_latents=True)
    start = still.start(torch.tensor([fold(4, "flow", 0)]), (36, 44))
    assert torch.allclose(latents, start.latents, atol=1e-5)


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({}, "enlarges images 4 times: give small, an image"),
        ({"small": (3, 4, 4), "size": 16}, "drop them"),
        ({"small": (1, 4, 4)}, r"the small image is \(1, 4, 4\): give \(3, h, w\)"),
        ({"small": (2, 3, 4, 4), "count": 3}, "2 small images do not match the count 3"),
        ({"small": (3, 2000, 2000)}, "would have 8000 x 8000 pixels"),
    ],
)
def test_what_cannot_be_enlarged_is_refused(
    model: ImageFlow, keywords: dict[str, Any], sentence: str
) -> None:
    values: dict[str, Any] = dict(keywords)
    if "small" in values:
        values["small"] = torch.rand(values["small"])
    with pytest.raises(ValueError, match=sentence):
        model.generate(steps=1, **values)


def test_a_model_without_a_factor_enlarges_nothing(model: ImageFlow) -> None:
    plain = ImageFlow(replace(model.config, enlarge=0), tokenizer=PixelLatents())
    with pytest.raises(ValueError, match=r"enlarges nothing: train one with model\.enlarge"):
        plain.generate(small=torch.rand(3, 4, 4))


# -- runs -----------------------------------------------------------------------------------------


@pytest.mark.slow  # image/flow_tiny in contract/
def test_a_cut_run_of_micro_batches_resumes_bit_for_bit(run: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = recipe(run, accumulate=2, evaluate_every=0)
    settings = replace(settings, steps=4, save_every=2)
    call: dict[str, Any] = {"name": "image/flow_tiny", "load": quintet.load, "progress": False}
    start(build, settings, whole, **call)
    start(build, replace(settings, steps=2, schedule_steps=4), cut, **call)
    start(build, settings, cut, mode="resume", **call)
    first, second = (dict(quintet.load(path).state_dict()) for path in (whole, cut))
    assert_same(first, second)
    assert first["beside.weight"].any()


def test_an_evaluation_says_what_can_be_reached(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    metrics = next(line for line in map(json.loads, lines) if "val/psnr" in line)
    assert metrics["val/psnr_tokenizer"] == pytest.approx(100)  # pixels lose nothing
    assert metrics["val/psnr"] < metrics["val/psnr_bicubic"] < 40
    assert metrics["val/sharpness_tokenizer"] == pytest.approx(1)
    assert {p.name for p in run.glob("exhibits/*/*.png")} == {"enlarged.png", "small.png"}


def test_judges_get_enlarged_images(task: ImageFlowTask) -> None:
    made = outputs(task)
    source = made.open({}, task.data("valid"))
    items = [source.keyed(index, None) for index in range(2)]
    group = made.make(items, Batch(made.collate(items), [0, 1], torch.zeros(2, dtype=torch.int64)))
    assert [image.shape for image in group.outputs] == [(3, SIDE, SIDE)] * 2


def test_a_student_enlarges_in_a_step(run: Path, tmp_path: Path) -> None:
    trained("image/flow_few_tiny", tmp_path / "few", "--teacher", run)
    made = quintet.load(tmp_path / "few").generate(small=torch.rand(3, 4, 4), steps=1)
    assert made.shape == (1, 3, 16, 16)


def test_graphs_are_refused(run: Path, tmp_path: Path, cli: Any) -> None:
    refused = cli("export", run, tmp_path / "graphs", "--format", "onnx")
    assert refused.status == 2
    assert "a generator that enlarges has no graphs: export it as safetensors" in refused.err


def test_a_trainer_learns_to_enlarge_a_data_set(tmp_path: Path) -> None:
    items = [{"image": torch.rand(3, SIDE, SIDE), "text": f"number {n}"} for n in range(8)]
    model = ImageFlow(PixelLatents(), image_size=SIDE, **MORE)
    few: dict[str, Any] = {**FEW, "valid_fraction": 0.0, "run": tmp_path / "run"}
    trainer = ImageFlowTrainer(model, items, **few)
    assert trainer.train() == 2
    assert trainer.generate(small=torch.rand(3, 2, 2), steps=1).shape == (1, 3, 8, 8)


# -- the command line -----------------------------------------------------------------------------


def test_the_suggested_command_enlarges(run: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    words = example(recipes.flow_tiny(), run)
    assert words[0] == "--small"
    made = cli("sample", run, *words[:2], "--steps", "1", "--out", tmp_path / "out")
    assert made.status == 0
    names = [Path(line).name for line in made.out.split()]
    assert names == ["00-000.png", "sheet.png"]
    with Image.open(tmp_path / "out/00-000.png") as image:
        assert image.size == (SIDE, SIDE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "this model enlarges images 4 times: give small, an image"),
        (["--small", "none.png"], "none.png"),
        (
            ["--small", "IMAGE", "--size", "16", "16"],
            "--small is enlarged alone: drop",
        ),
        (["--small", "IMAGE", "--count", "0"], "--count is 0; it must be above 0"),
        (["--small", "TEXT"], "is not one of JPEG, PNG"),
    ],
)
def test_bad_input_is_answered_by_one_sentence(
    run: Path, tmp_path: Path, cli: Callable[..., Any], words: list[str], sentence: str
) -> None:
    files = {"IMAGE": tmp_path / "a.png", "TEXT": tmp_path / "b.png"}
    Image.fromarray(np.zeros((3, 5, 3), np.uint8)).save(files["IMAGE"])
    files["TEXT"].write_text("no picture")
    refused = cli("sample", run, *[files.get(w, w) for w in words], "--out", tmp_path / "out")
    assert refused.status == 2
    assert sentence in " ".join(refused.err.split())
    assert not (tmp_path / "out").exists()


# -- learning -------------------------------------------------------------------------------------


class Coarse(nn.Module):
    """Latents that are means of 4 x 4 pixels, four to a position: nothing is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def encode(self, pixels: Tensor) -> Tensor:
        return F.pixel_unshuffle(F.avg_pool2d(pixels, 4), 2) * self.scale

    def decode(self, latents: Tensor) -> Tensor:
        return stretched(F.pixel_shuffle(latents, 2), 4)


@pytest.mark.slow
def test_enlarged_figures_are_nearer_to_the_originals_than_bicubic_ones(tmp_path: Path) -> None:
    """By the tiny recipe, from 8 x 8 pixels, on one core in three minutes."""
    base = recipes.flow_tiny()
    config = replace(base.model, enlarge=8)
    model = ImageFlow(config, tokenizer=LatentModule(Coarse(), pixels="0..1"), image_size=64)
    trainer = ImageFlowTrainer(
        model,
        recipe=base,
        steps=800,
        evaluate_every=800,
        workers=0,
        run=tmp_path / "run",
        sampling_steps=10,
        cond_scale=1.0,
    )
    trainer.train()
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    metrics = next(line for line in map(json.loads, lines) if "val/psnr" in line)
    assert metrics["val/psnr_tokenizer"] > metrics["val/psnr"] > metrics["val/psnr_bicubic"] + 0.3
    assert metrics["val/sharpness"] > metrics["val/sharpness_bicubic"]
