"""The flow generator of images on a small autoencoder: latents, painting, files, distillation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet
from harness import assert_same
from quintet import ImageFlow, ImageFlowFewTrainer, ImageFlowTrainer, VQGanVAE
from quintet.cli import main
from quintet.engine.config import from_json
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.launch import start
from quintet.engine.machine.world import World
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch, StepContext
from quintet.image import recipes
from quintet.image.data import open_data
from quintet.image.flow.outputs import outputs
from quintet.image.flow.sample import example
from quintet.image.flow.task import ImageFlowTask, build
from quintet.shared.flow.buckets import BucketPlan, buckets_of, nearest_shape, shapes_of
from quintet.shared.generation.data import in_floats

MODEL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "text_length": 8}
FEW: dict[str, Any] = {
    "steps": 2,
    "batch_size": 4,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
}
ONE = torch.ones(())
SIDE = 32
"""Of the pictures of runs."""
GENERATION = dataclasses.replace(recipes.flow_tiny().generation, sampling_steps=2)


@pytest.fixture(scope="module")
def vae() -> VQGanVAE:
    torch.manual_seed(0)
    narrow: dict[str, Any] = {"dim": 16, "patch_size": 4, "channel_multipliers": (1,)}
    return VQGanVAE(quantiser="kl", latent_channels=4, **narrow).eval()


@pytest.fixture(scope="module")
def saved(vae: VQGanVAE, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vae.save_pretrained(tmp_path_factory.mktemp("vae"))


@pytest.fixture(scope="module")
def model(vae: VQGanVAE) -> ImageFlow:
    """With weights that are not zero anywhere, so that every input counts."""
    torch.manual_seed(1)
    model = ImageFlow(vae, image_size=(16, 32), patch=2, **MODEL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model.measure_latents(vae.to_codes(torch.rand(8, 3, 16, 32)))


@pytest.fixture(scope="module")
def run(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator of two steps, trained by the command line."""
    path = tmp_path_factory.mktemp("flow") / "run"
    trained("image/flow_tiny", path, "--tokenizer", saved, "--model.dim", 32, "--model.layers", 1)
    return path


@pytest.fixture(scope="module")
def student(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("few") / "run"
    trained("image/flow_few_tiny", path, "--teacher", run)
    return path


def trained(name: str, path: Path, *more: Any) -> None:
    words = ["train", name, "--run", path, "--steps", 2, "--workers", 0, "--batch-size", 4]
    words += ["--images.builtin-count", 16, "--images.valid-limit", 4, "--images.size", SIDE, SIDE]
    words += ["--generation.count", 2, "--generation.reference-count", 4, "--device", "cpu"]
    words += ["--generation.sampling-steps", 2, "--trackers", *more]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])


def recipe(tokenizer: Path, **changes: Any) -> Any:
    base = recipes.flow_tiny()
    images = dataclasses.replace(base.images, builtin_count=20, valid_limit=4, size=(SIDE, SIDE))
    narrow = dataclasses.replace(base.model, dim=32, layers=1)
    own = {"tokenizer": str(tokenizer), "images": images, "model": narrow, "generation": GENERATION}
    return dataclasses.replace(base, **{**own, **FEW, **changes})


def prepared(settings: Any) -> ImageFlowTask:
    task = build(settings)
    task.prepare(World(settings))
    return task


# -- latents --------------------------------------------------------------------------------------


def test_cached_latents_are_those_of_the_tokenizer(saved: Path, vae: VQGanVAE) -> None:
    settings = recipe(saved)
    for _ in range(2):  # computed, then read
        task = prepared(settings)
        data = task.data("train")
        source = open_data(None, settings.images, "train", settings.seed)
        for index in (0, 7, 19):
            sample = source.keyed(index, None)
            fresh = vae.encode_latents(in_floats(sample["image"][None], vae))
            cached = data.keyed(index, None)["codes"]
            assert torch.allclose(cached.float(), fresh.flatten(2).mT[0], atol=2e-3, rtol=1e-3)
            codes = task.collate([data.keyed(index, None)])["codes"]
            assert torch.allclose(codes.float(), fresh, atol=5e-3)
    pixels = task.decode(codes)
    assert torch.allclose(pixels, vae.decode_latents(fresh), atol=1e-2)


def test_statistics_are_those_of_the_training_latents(saved: Path) -> None:
    task = prepared(recipe(saved))
    data = task.data("train")
    rows = torch.cat([data.codes_of(index) for index in range(len(data))]).double()
    assert torch.allclose(task.model.latent_mean, rows.mean(0).float(), atol=1e-5)
    assert torch.allclose(task.model.latent_std, rows.std(0, correction=0).float(), rtol=1e-4)


def test_a_batch_has_originals_and_variants_and_says_which(saved: Path) -> None:
    task = prepared(recipe(saved, variants=3))
    data = task.data("train")
    for epoch in range(3):
        items = [data.keyed(index, Key(0, epoch, index)) for index in range(20)]
        changed = task.collate(items)["changed"].tolist()
        assert changed == [(epoch + index) % 3 > 0 for index in range(20)]
    assert not data.keyed(1, None)["changed"]


def test_the_loss_is_measured_where_latents_are_not_given(saved: Path) -> None:
    """A given part is seen as it is, and what is predicted there counts nothing."""
    task = prepared(recipe(saved, known_share=1.0))
    items = [task.data("train").keyed(index, None) for index in range(4)]
    batch = Batch(task.collate(items), [0, 1, 2, 3], torch.arange(4))
    known = task.random_known(batch)
    assert 0 < known.float().mean() < 1
    times, drop = torch.full((4,), 0.3), torch.zeros(4, dtype=torch.bool)
    seen: list[torch.Tensor] = []

    def network(x: torch.Tensor, *_: Any) -> torch.Tensor:
        seen.append(x)
        return torch.where(known, torch.nan, torch.zeros_like(x))

    errors = task.errors(network, batch, batch.keys, times, known, drop)
    latents = task.latents(batch)
    assert torch.equal(torch.where(known, seen[0], 0), torch.where(known, latents, 0))
    assert not torch.equal(seen[0], latents)
    assert (errors[known[:, 0]] == 0).all()
    assert errors.isfinite().all()


def test_words_that_training_does_not_meet_are_left_out(saved: Path) -> None:
    model = prepared(recipe(saved)).model.eval()
    with torch.no_grad():
        for parameter in model.text_encoder.blocks.parameters():  # zero at first
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    known, other, third = model.encode_captions(
        ["a red star on blue", "a zebra star on blue", "a giraffe star on blue"]
    ).values.split(1)
    masks = model.encode_captions(["a red star on blue", "a zebra star on blue"]).mask
    assert masks[0, 3]  # the null embedding, the start, a, red
    assert masks[:, 3].tolist() == [True, False]
    assert masks[0].sum() == masks[1].sum() + 1
    visible = masks[1].nonzero()[:, 0]
    assert torch.equal(other[:, visible], third[:, visible])
    assert not torch.allclose(known[:, visible], other[:, visible])


def test_a_word_that_later_training_meets_is_learned(saved: Path) -> None:
    model = prepared(recipe(saved)).model.train()
    ids = model.tokenize_captions(["a zebra"])[0]
    model.encode_text(1, ids).values[0, :, 0].sum().backward()
    assert model.text_encoder.embedding.weight.grad[ids[0, 2]].any()


def test_given_parts_are_rectangles_or_all_around_them(saved: Path) -> None:
    task = prepared(recipe(saved))
    given = task.given(torch.arange(200), (8, 8))
    assert given.shape == (200, 1, 8, 8)
    for mask in given[:, 0]:
        assert is_rectangle(mask) or is_rectangle(~mask)
    assert 0.3 < given.float().mean() < 0.7


def test_something_is_always_left_to_generate(saved: Path) -> None:
    """A rectangle can be the whole picture; a loss over no latents would be no number."""
    task = prepared(recipe(saved, known_share=1.0))
    keys = torch.arange(3000)
    grid = {"codes": torch.zeros(1, 4, 2, 2)}
    assert task.given(keys, (2, 2)).flatten(1).all(1).any()
    known = task.random_known(Batch(grid, [0], keys)).flatten(1)
    assert not known.all(1).any()
    assert known.any(1).float().mean() > 0.5


def is_rectangle(mask: torch.Tensor) -> bool:
    rows, columns = mask.any(1), mask.any(0)
    return torch.equal(mask, rows[:, None] & columns[None])


def test_a_tokenizer_with_ids_is_refused(tmp_path: Path) -> None:
    discrete = VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), levels=(8, 5))
    sentence = r"has ids and no latents \(its quantiser is fsq\): train one with quantiser kl"
    with pytest.raises(ValueError, match=sentence):
        ImageFlow(discrete, image_size=16)
    with pytest.raises(RunError, match=sentence):
        build(recipe(discrete.save_pretrained(tmp_path / "vae")))


# -- shapes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty of each: wide, square and tall ones; the last are stored turned."""
    folder = tmp_path_factory.mktemp("photos")
    sizes = {"wide": (60, 40), "square": (40, 40), "tall": (40, 60), "turned": (60, 40)}
    for name, (width, height) in sizes.items():
        for number in range(20):
            seed = len(name) * 100 + number
            values = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
            exif = Image.Exif()
            exif[0x0112] = 6 if name == "turned" else 1
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(values).save(folder / name / f"{number:02d}.png", exif=exif)
    return folder


def test_shapes_have_as_many_pixels_and_even_ratios() -> None:
    for count in (1, 2, 3, 5, 9):
        shapes = shapes_of((128, 128), count, 16)
        assert (128, 128) in shapes
        assert len(shapes) <= count
        assert len(shapes) >= (count + 1) // 2
        for height, width in shapes:
            assert not height % 16
            assert not width % 16
            assert abs(height * width / 128**2 - 1) < 0.15
    assert nearest_shape(1.5, [(10, 10), (8, 12), (12, 8)]) == 1


def test_images_of_a_rare_shape_join_the_nearest_one() -> None:
    """A batch of its own would hold the same images many times."""
    shapes = [(12, 6), (8, 8), (6, 12)]
    ratios = [1.0] * 20 + [2.0] * 3 + [0.5] * 9
    assert buckets_of(ratios, shapes, 8) == (
        [(12, 6), (8, 8)],
        [[*range(23, 32)], [*range(23)]],
    )
    assert buckets_of(ratios, shapes, 3)[0] == shapes
    assert buckets_of(ratios, shapes, 100) == ([(8, 8)], [[*range(32)]])


def test_batches_of_a_plan_have_one_shape_and_visit_all_alike() -> None:
    indices = [list(range(30)), [], list(range(30, 40)), list(range(40, 100))]
    plan = BucketPlan(indices, 7, 5)
    seen: dict[int, int] = dict.fromkeys(range(100), 0)
    for step in range(200):
        (batch,) = plan.micro_batches(step * 5, 1)
        assert (
            len({next(n for n, part in enumerate(indices) if r.sample in part) for r in batch}) == 1
        )
        for request in batch:
            seen[request.sample] += 1
    assert set(seen.values()) == {10}  # 1,000 samples, each tenth time
    halves = plan.micro_batches(30, 2)
    whole = BucketPlan(indices, 7, 10).micro_batches(30, 1)
    assert [*halves[0], *halves[1]] == whole[0]
    assert BucketPlan(indices, 8, 5).micro_batches(0, 1) != plan.micro_batches(0, 1)


def test_photos_of_several_shapes_are_trained_on_in_their_shapes(saved: Path, photos: Path) -> None:
    settings = recipe(saved, data=str(photos), buckets=3, batch_size=8)
    task = prepared(settings)
    train, valid = task.data("train"), task.data("valid")
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for index in range(len(train)):
        item = train.keyed(index, None)
        shapes.setdefault(train.name(index).partition("/")[0], set()).add(item["grid"])
        assert item["text"] == train.name(index).partition("/")[0]
        assert len(item["codes"]) == item["grid"][0] * item["grid"][1]
    tall = {(12, 6)}
    assert shapes == {"wide": {(6, 12)}, "square": {(8, 8)}, "tall": tall, "turned": tall}
    assert {valid.keyed(index, None)["grid"] for index in range(len(valid))} == {(8, 8)}
    plan: Any = task.plan(train)
    for step in range(6):
        (requests,) = plan.micro_batches(step * 8, 1)
        items = [train.keyed(r.sample, Key(0, r.epoch, r.sample)) for r in requests]
        batch = Batch(task.collate(items), [r.sample for r in requests], torch.arange(8))
        (loss,) = task.losses(
            {"transformer": task.model}, [batch], StepContext(step, 0, 8, World(settings), ONE)
        )
        assert loss[0].isfinite()


def test_a_run_with_buckets_resumes_and_generates_in_a_shape(
    saved: Path, photos: Path, tmp_path: Path
) -> None:
    settings = recipe(saved, data=str(photos), buckets=3, batch_size=8, steps=4, save_every=2)
    settings = dataclasses.replace(settings, generation=dataclasses.replace(GENERATION, count=1))
    runs = tmp_path / "whole", tmp_path / "halves"
    start(build, settings, runs[0], name="image/flow_tiny", load=quintet.load, progress=False)
    half = dataclasses.replace(settings, steps=2, schedule_steps=4)
    start(build, half, runs[1], name="image/flow_tiny", load=quintet.load, progress=False)
    start(build, settings, runs[1], mode="resume", name="image/flow_tiny", progress=False)
    first, second = (quintet.load(run).state_dict() for run in runs)
    assert_same(dict(first), dict(second))
    assert quintet.load(runs[0]).generate(["wide"], size=(24, 40), steps=1).shape[2:] == (24, 40)


def test_buckets_need_files_of_images(saved: Path) -> None:
    with pytest.raises(RunError, match="buckets is for folders of image files: set it to 1"):
        prepared(recipe(saved, buckets=3))


# -- generation -----------------------------------------------------------------------------------


def test_an_image_does_not_depend_on_its_batch(model: ImageFlow) -> None:
    texts = [f"number {index}" for index in range(40)]  # two blocks
    together = model.generate(texts, steps=2)
    assert torch.equal(model.generate(texts[33:], steps=2, first=33), together[33:])
    assert not torch.equal(together[0], together[1])
    with pytest.raises(ValueError, match="texts is empty"):
        model.generate([])


def test_images_of_other_sizes_are_generated(model: ImageFlow) -> None:
    assert model.generate(["a"], steps=1, size=(24, 8)).shape == (1, 3, 24, 8)
    with pytest.raises(ValueError, match="not divisible by the downsampling factor 4"):
        model.generate(["a"], size=18)
    with pytest.raises(ValueError, match="must be divisible by the patch of 2"):
        model.generate(["a"], size=20)


def test_painting_changes_no_latent_and_no_pixel_outside(model: ImageFlow) -> None:
    image, mask = torch.rand(3, 16, 32), torch.zeros(16, 32, dtype=torch.bool)
    mask[5:7, 9:18] = True  # touches the latents of one row and columns 2 to 4
    settings: dict[str, Any] = {"count": 2, "image": image, "mask": mask, "steps": 3}
    latents = model.generate(["a"], return_latents=True, **settings)
    inside = torch.zeros(4, 8, dtype=torch.bool)
    inside[1, 2:5] = True
    before = model.encode(image[None])
    assert torch.equal(latents[:, :, ~inside], before[:, :, ~inside].expand(2, -1, -1))
    assert not torch.equal(latents[0], latents[1])
    pixels = model.generate(["a"], **settings)
    outside = ~inside.repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert torch.equal(pixels[:, :, outside], image[:, outside].expand(2, -1, -1))


def test_a_weak_change_stays_near_the_image(model: ImageFlow) -> None:
    image = torch.rand(3, 16, 32)
    origin = model.encode(image[None])
    distances = [
        float(
            (model.generate(image=image, strength=s, steps=4, return_latents=True) - origin).std()
        )
        for s in (0.05, 0.3, 1.0)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 0.3 * distances[2]
    whole = model.generate(image=image, strength=1.0, steps=4)
    assert torch.allclose(whole, model.generate(steps=4), atol=1e-5)


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"image": (3, 16, 32), "mask": (16, 16)}, r"the mask is \(16, 16\), but the image has 16"),
        (
            {"image": (3, 16, 32), "size": 32},
            r"paints images of 32 x 32 pixels: give \(c, 32, 32\)",
        ),
        ({"mask": (16, 32)}, "mask and strength belong to an image"),
        (
            {"image": (3, 16, 32), "strength": 0.0},
            "strength is 0.0; it must be above 0 and at most",
        ),
    ],
)
def test_what_cannot_be_painted_is_refused(
    model: ImageFlow, keywords: dict[str, Any], sentence: str
) -> None:
    values = dict(keywords)
    if "image" in values:
        values["image"] = torch.rand(values["image"])
    if "mask" in values:
        values["mask"] = torch.ones(values["mask"], dtype=torch.bool)
    with pytest.raises(ValueError, match=sentence):
        model.generate(["a"], steps=1, **values)


def test_a_model_and_its_tokenizer_survive_a_folder(model: ImageFlow, tmp_path: Path) -> None:
    again = ImageFlow.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert_same(dict(model.state_dict()), dict(again.state_dict()))
    first, second = (each.generate(["a"], steps=2, seed=5) for each in (model, again))
    assert torch.equal(first, second)
    assert first.shape == (1, 3, 16, 32)
    assert first.min() >= 0
    assert first.max() <= 1


def test_the_trainer_learns_a_data_set_of_pictures_and_captions(
    vae: VQGanVAE, tmp_path: Path
) -> None:
    items = [{"image": torch.rand(3, 16, 16), "text": f"number {n}"} for n in range(12)]
    model = ImageFlow(vae, image_size=16, **MODEL)
    sizes = {"valid_fraction": 0.25, "count": 2, "sampling_steps": 2}
    trainer = ImageFlowTrainer(model, items, **FEW, **sizes, run=tmp_path / "run")
    assert trainer.train() == 2
    assert trainer.generate(["number 3"], steps=2).shape == (1, 3, 16, 16)
    assert trainer.evaluate()["loss"] > 0


def test_a_finetuned_model_keeps_the_statistics_of_its_latents(
    model: ImageFlow, vae: VQGanVAE, tmp_path: Path
) -> None:
    """Its weights fit those, not those of the new data."""
    items = [{"image": torch.rand(3, 16, 32) * 0.2, "text": "dark"} for _ in range(8)]
    before = model.latent_mean.clone(), model.latent_std.clone()
    trainer = ImageFlowTrainer(model, items, **FEW, run=tmp_path / "run", valid_fraction=0.0)
    trainer.train()
    after = trainer.averaged_model()
    assert torch.equal(after.latent_mean, before[0])
    assert torch.equal(after.latent_std, before[1])


def test_judges_get_an_image_for_each_held_out_caption(saved: Path) -> None:
    task = prepared(recipe(saved))
    made = outputs(task)
    source = made.open({}, task.data("valid"))
    items = [source.keyed(index, None) for index in range(3)]
    keys = torch.zeros(3, dtype=torch.int64)
    group = made.make(items, Batch(made.collate(items), [0, 1, 2], keys))
    again = made.make(items[1:], Batch(made.collate(items[1:]), [1, 2], keys[1:]))
    for sample in (*group.originals, *group.outputs, *group.baselines["training"]):
        assert sample.dtype == torch.uint8
        assert sample.shape == (3, SIDE, SIDE)
    assert torch.equal(group.outputs[2], again.outputs[1])


# -- few steps ------------------------------------------------------------------------------------


def test_a_student_begins_as_its_teacher(run: Path, student: Path) -> None:
    """And needs nothing outside of its folder: teacher and tokenizer are inside."""
    settings = RunFolder.open(student).about["settings"]
    task = build(
        dataclasses.replace(
            from_json(type(recipes.flow_few_tiny()), settings),
            teacher=str(student / "frozen/teacher"),
        )
    )
    x, time = torch.randn(2, 4, 4, 4), torch.rand(2)
    known, text = torch.zeros(2, 1, 4, 4, dtype=torch.bool), torch.ones(2, 5, dtype=torch.int64)
    arguments = (x, time, known, text, None, known[:, 0, 0, 0])
    with torch.no_grad():
        taught = task.teacher.eval()(*arguments)
        assert torch.allclose(task.model.eval()(*arguments, end=time + 0.1), taught, atol=1e-6)
    assert task.model.config == dataclasses.replace(task.teacher.config, jumps=True)
    assert (student / "frozen/teacher/tokenizer/model.safetensors").is_file()


def test_a_jump_learns_where_two_halves_go(run: Path) -> None:
    """With a field that points to one picture from everywhere, both agree exactly."""
    base = recipes.flow_few_tiny()
    images = dataclasses.replace(base.images, builtin_count=20, valid_limit=4, size=(SIDE, SIDE))
    teacher = quintet.load(run).save_pretrained(run.parent / "teacher")
    settings = dataclasses.replace(base, teacher=str(teacher), images=images, **FEW)
    task: Any = prepared(settings)
    items = [task.data("train").keyed(index, None) for index in range(16)]
    batch = Batch(task.collate(items), list(range(16)), torch.arange(16) * 7919)
    target = torch.randn(4, 8, 8)

    def straight(x: torch.Tensor, time: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return (target - x) / (1 - time).view(-1, 1, 1, 1)

    x, known, times, ends, aim = task.jump({"transformer": straight}, batch)
    expected = torch.where(known, aim, straight(x, times))
    assert torch.allclose(aim, expected, atol=1e-3, rtol=1e-3)
    assert (ends > times).all()
    assert ends.max() == 1
    assert len(set((ends - times).tolist())) > 4  # jumps of several lengths


def test_a_student_generates_in_a_step(student: Path, tmp_path: Path) -> None:
    model = quintet.load(student)
    assert model.config.jumps
    images = model.generate(["a star"], steps=1, cond_scale=7.0)
    assert torch.equal(images, model.generate(["a star"], steps=1))  # guidance is in its weights
    assert images.shape == (1, 3, SIDE, SIDE)
    again = ImageFlow.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert torch.equal(again.generate(["a star"], steps=1), images)


def test_the_trainer_of_few_steps_begins_as_its_teacher(model: ImageFlow, tmp_path: Path) -> None:
    items = [{"image": torch.rand(3, 16, 32), "text": f"number {n}"} for n in range(8)]
    few: dict[str, Any] = {**FEW, "valid_fraction": 0.0}
    trainer = ImageFlowFewTrainer(model, items, **few, run=tmp_path / "run")
    made = model.generate(["a"], steps=2, cond_scale=1.0)
    assert torch.allclose(trainer.generate(["a"], steps=2), made, atol=1e-5)
    assert trainer.train() == 2
    assert not torch.allclose(trainer.generate(["a"], steps=2), made, atol=1e-5)
    assert quintet.load(tmp_path / "run").config.jumps
    assert not model.config.jumps
    with pytest.raises(ValueError, match="the teacher makes few steps already: give the model"):
        ImageFlowFewTrainer(trainer.model, items)


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def sample(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*words: Any, source: Path = run) -> tuple[int, str, str]:
        status = 0
        capsys.readouterr()
        try:
            main(["sample", str(source), *map(str, words), "--out", str(tmp_path / "out")])
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def image_file(path: Path, size: tuple[int, int], box: tuple[int, ...] | None = None) -> Path:
    values = np.zeros((*size, 3), np.uint8)
    if box:
        values[box[0] : box[1], box[2] : box[3]] = 255
    else:
        values[:] = np.random.default_rng(0).integers(0, 255, values.shape, np.uint8)
    Image.fromarray(values).save(path)
    return path


def test_captions_become_files(sample: Callable[..., Any], tmp_path: Path) -> None:
    status, out, _ = sample("--text", "a star", "a ring", "--count", 2, "--steps", 2)
    assert status == 0
    names = [Path(line).name for line in out.split()]
    stars = ["00-a-star-000.png", "00-a-star-001.png"]
    assert names == [*stars, "01-a-ring-000.png", "01-a-ring-001.png", "sheet.png"]
    first = (tmp_path / "out/00-a-star-001.png").read_bytes()
    sample("--text", "a star", "--count", 3, "--steps", 2)
    assert (tmp_path / "out/00-a-star-001.png").read_bytes() == first


def test_painting_keeps_the_pixels_outside(sample: Callable[..., Any], tmp_path: Path) -> None:
    image = image_file(tmp_path / "a.png", (SIDE, SIDE))
    mask = image_file(tmp_path / "m.png", (SIDE, SIDE), (8, 16, 8, 16))
    status, out, _ = sample("--text", "a", "--image", image, "--mask", mask, "--count", 1)
    assert status == 0
    before, after = (np.asarray(Image.open(p)) for p in (image, out.split()[0]))
    outside = np.asarray(Image.open(mask)).max(-1) == 0
    assert (before[outside] == after[outside]).all()
    assert (before[~outside] != after[~outside]).any()


def test_an_image_is_changed_at_another_size(sample: Callable[..., Any], tmp_path: Path) -> None:
    image = image_file(tmp_path / "a.png", (40, 60))
    words = ["--like", image, "--strength", 0.3, "--size", 16, 32, "--count", 1, "--steps", 2]
    status, out, _ = sample("--text", "a", *words)
    assert status == 0
    with Image.open(out.split()[0]) as changed:
        assert changed.size == (32, 16)


def test_a_student_is_suggested_with_a_caption(student: Path, sample: Callable[..., Any]) -> None:
    words = example(recipes.flow_few_tiny(), student)
    assert words[0] == "--text"
    status, out, _ = sample(*words[:2], "--count", 1, source=student)
    assert status == 0
    assert len(out.split()) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", " "], "a caption is empty"),
        (["--text", "a", "--steps", "0"], "steps must be 1 or more"),
        (["--text", "a", "--image", "IMAGE"], "takes --image and --mask; give both"),
        (["--like", "IMAGE", "--strength", "2"], "--strength is 2.0; it must be above 0 and at"),
        (["--like", "IMAGE", "--image", "IMAGE", "--mask", "BLACK"], "give one of them"),
        (["--image", "IMAGE", "--mask", "BLACK"], "make the area to paint white"),
        (["--size", "30", "30"], "it must be divisible by the factor"),
        (["IMAGE"], "is a generator: give --text"),
    ],
)
def test_bad_input_is_answered_by_one_sentence(
    sample: Callable[..., Any], tmp_path: Path, words: list[str], sentence: str
) -> None:
    files = {"IMAGE": image_file(tmp_path / "a.png", (32, 32))}
    files["BLACK"] = image_file(tmp_path / "b.png", (32, 32), (0, 0, 0, 0))
    status, _, err = sample(*[files.get(word, word) for word in words])
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_room_is_named_by_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh = quintet.MeshAutoencoder(dim=16).save_pretrained(tmp_path / "mesh")
    words = ["train", "image/flow_tiny", "--tokenizer", mesh, "--run", tmp_path / "run"]
    with pytest.raises(SystemExit, match="2"):
        main([str(word) for word in words])
    err = " ".join(capsys.readouterr().err.split())
    assert f"{mesh} holds mesh/autoencoder: set --tokenizer to a run of 'quintet train" in err
    assert "image/autoencoder" in err
    assert not (tmp_path / "run").exists()
