"""The image generator on a small tokenizer: cached ids, in-painting, files, and bad input."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet
from harness import assert_same
from quintet import MaskGit, MaskGitTrainer, VQGanVAE
from quintet.cli import main
from quintet.engine.errors import RunError
from quintet.engine.machine.world import World
from quintet.engine.task import Batch
from quintet.image import recipes
from quintet.image.data import open_data
from quintet.image.maskgit.outputs import outputs
from quintet.image.maskgit.sample import example
from quintet.image.maskgit.task import MaskGitTask
from quintet.image.painting import touched
from quintet.image.sheets import PictureSheet
from quintet.shared.generation.data import in_floats

MODEL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "text_length": 64}
FEW: dict[str, Any] = {
    "steps": 2,
    "batch_size": 4,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
}
SIDE = 32
"""Of the pictures of runs."""
GENERATION = dataclasses.replace(recipes.maskgit_tiny().generation, sampling_steps=4)


@pytest.fixture(scope="module")
def vae() -> VQGanVAE:
    torch.manual_seed(0)
    return VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), levels=(8, 5)).eval()


@pytest.fixture(scope="module")
def saved(vae: VQGanVAE, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vae.save_pretrained(tmp_path_factory.mktemp("vae"))


@pytest.fixture
def model(vae: VQGanVAE) -> MaskGit:
    torch.manual_seed(1)
    return MaskGit(vae, image_size=(16, 32), **MODEL).eval()


@pytest.fixture(scope="module")
def run(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator of two steps, trained by the command line."""
    path = tmp_path_factory.mktemp("maskgit") / "run"
    words = ["train", "image/maskgit_tiny", "--tokenizer", saved, "--run", path, "--steps", 2]
    words += ["--workers", 0, "--images.builtin-count", 16, "--images.valid-limit", 4]
    words += ["--generation.count", 2, "--generation.reference-count", 4, "--batch-size", 4]
    words += ["--model.dim", 32, "--model.layers", 1, "--device", "cpu", "--trackers"]
    words += ["--images.size", SIDE, SIDE, "--generation.sampling-steps", 2]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    return path


def recipe(tokenizer: Path, **changes: Any) -> Any:
    base = recipes.maskgit_tiny()
    images = dataclasses.replace(base.images, builtin_count=20, valid_limit=4, size=(SIDE, SIDE))
    small = dataclasses.replace(base.model, dim=32, layers=1)
    return dataclasses.replace(
        base,
        tokenizer=str(tokenizer),
        images=images,
        model=small,
        **{"generation": GENERATION, **FEW, **changes},
    )


def test_cached_ids_are_those_of_the_tokenizer(saved: Path, vae: VQGanVAE) -> None:
    settings = recipe(saved, variants=2)
    for _ in range(2):  # computed, then read
        task = MaskGitTask(settings)
        task.prepare(World(settings))
        ids = task.data("train")
        source = open_data(None, settings.images, "train", settings.seed)
        assert len(ids) == 20
        for index in (0, 7, 19):
            sample = source.keyed(index, None)
            fresh = vae.tokenize(in_floats(sample["image"][None], vae))
            assert torch.equal(ids.keyed(index, None)["codes"].long(), fresh.flatten())
            assert ids.text(index) == sample["text"]


def test_ids_of_several_digits_are_cached_whole_and_generated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    levels = (8,) * 12  # 36 bits
    vae = VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), levels=levels).eval()
    settings = recipe(vae.save_pretrained(tmp_path / "vae"))
    task = MaskGitTask(settings)
    task.prepare(World(settings))
    sample = open_data(None, settings.images, "train", settings.seed).keyed(3, None)
    fresh = vae.tokenize(in_floats(sample["image"][None], vae))
    cached = task.data("train").keyed(3, None)["codes"]
    assert fresh.max() > 2**31
    assert torch.equal(cached, fresh.flatten())
    model = MaskGit(vae, image_size=(16, 32), **MODEL).eval()
    assert model.config.digits == (512,) * 4
    assert model.generate(["a disc"], steps=2).shape == (1, 3, 16, 32)


def test_an_image_does_not_depend_on_its_batch(model: MaskGit) -> None:
    texts = [f"number {index}" for index in range(40)]  # two blocks
    together = model.generate(texts, steps=2)
    assert torch.equal(model.generate(texts[33:], steps=2, first=33), together[33:])
    with pytest.raises(ValueError, match="texts is empty"):
        model.generate([])


def test_painting_changes_no_id_outside_of_the_mask(model: MaskGit, vae: VQGanVAE) -> None:
    image, mask = torch.rand(3, 16, 32), torch.zeros(16, 32, dtype=torch.bool)
    mask[5:7, 9:18] = True  # touches the patches of one row and columns 2 to 4
    made = model.generate(["a"], count=3, image=image, mask=mask, steps=4, return_ids=True)
    before = vae.tokenize(image[None])
    inside = torch.zeros(4, 8, dtype=torch.bool)
    inside[1, 2:5] = True
    assert torch.equal(made[:, ~inside], before[:, ~inside].expand(3, -1))
    assert torch.equal(touched(mask, model.tokenizer.factor), inside)
    assert not torch.equal(made[0], made[1])


@pytest.mark.parametrize(
    ("image", "mask", "sentence"),
    [
        ((3, 16, 32), (16, 16), r"the mask is \(16, 16\), but the image has 16 x 32 pixels"),
        ((3, 32, 32), (16, 32), r"paints images of 16 x 32 pixels: give \(c, 16, 32\)"),
        ((3, 16, 32), None, "takes an image and a mask: give both"),
    ],
)
def test_images_and_masks_of_another_size_are_refused(
    model: MaskGit, image: Any, mask: Any, sentence: str
) -> None:
    given = None if mask is None else torch.ones(mask, dtype=torch.bool)
    with pytest.raises(ValueError, match=sentence):
        model.generate(["a"], image=torch.rand(image), mask=given)


def test_a_tokenizer_of_another_kind_is_refused(vae: VQGanVAE, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="takes a VideoTokenizer"):
        quintet.VideoMaskGit(vae, image_size=16, frames=5)
    video = quintet.VideoTokenizer(init_dim=16, max_dim=16, layers=("residual",), levels=(8, 5))
    path = video.save_pretrained(tmp_path / "video")
    with pytest.raises(RunError, match="holds video/tokenizer, not image/vqgan"):
        MaskGitTask(recipe(path))


@pytest.mark.parametrize("quantiser", ["kl", "bounded"])
def test_a_tokenizer_without_ids_is_refused(quantiser: Any, tmp_path: Path) -> None:
    continuous = VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), quantiser=quantiser)
    sentence = rf"has no ids \(its quantiser is {quantiser}\): train one with fsq"
    with pytest.raises(ValueError, match=sentence):
        MaskGit(continuous, image_size=16)
    with pytest.raises(RunError, match=sentence):
        MaskGitTask(recipe(continuous.save_pretrained(tmp_path / "vae")))


def test_exhibits_show_the_nearest_training_picture(saved: Path) -> None:
    settings = recipe(saved, generation=dataclasses.replace(GENERATION, reference_count=12))
    task = MaskGitTask(settings)
    task.prepare(World(settings))
    train, valid = task.data("train"), task.data("valid")
    known = torch.stack([train.codes_of(index) for index in (3, 11)])
    distances, codes = task._nearest(task.decode(known))
    assert torch.equal(codes, known)
    assert distances.max() < 1e-3
    batch = Batch(task.collate([valid.keyed(n, None) for n in range(2)]), [0, 1], torch.zeros(2))
    (sheet,) = task.exhibit({}, batch)
    assert isinstance(sheet, PictureSheet)
    assert sheet.titles == ["validation", "nearest to 1", *(f"generated {n}" for n in (1, 2, 3))]
    for row, caption, number in zip(sheet.rows, sheet.texts, batch.ids, strict=True):
        (again,) = task.generate([caption], [number])
        assert torch.equal(row[2], again)
        assert torch.equal(row[1], task.decode(task._nearest(again[None])[1])[0])


def test_a_generated_picture_is_compared_with_the_held_out_one_of_its_caption(saved: Path) -> None:
    task = MaskGitTask(recipe(saved, generation=dataclasses.replace(GENERATION, count=5)))
    task.prepare(World(task.recipe))
    # A training picture among held-out ones: nothing generated is nearer than it.
    items = [task.data("train").keyed(0, None)]
    items += [task.data("valid").keyed(number, None) for number in range(4)]
    batch = Batch(task.collate(items), list(range(5)), torch.zeros(5))
    rows = {n: m.values for n, m in task.measure_generation(batch).items()}
    assert rows["nearest_validation"][0] < 1e-3
    assert rows["nearer"][0] == 0
    expected = rows["nearest_generated"] < rows["nearest_validation"]
    assert torch.equal(rows["nearer"], expected.float())


def test_a_size_that_does_not_fit_the_tokenizer_is_refused(vae: VQGanVAE) -> None:
    with pytest.raises(ValueError, match="not divisible by the downsampling factor 4"):
        MaskGit(vae, image_size=18)


def test_a_model_and_its_tokenizer_survive_a_folder(model: MaskGit, tmp_path: Path) -> None:
    again = MaskGit.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert_same(dict(model.state_dict()), dict(again.state_dict()))
    settings: dict[str, Any] = {"steps": 3, "seed": 5}
    first, second = (each.generate(["a"], **settings) for each in (model, again))
    assert torch.equal(first, second)
    assert first.shape == (1, 3, 16, 32)
    assert first.min() >= 0
    assert first.max() <= 1


def test_the_trainer_learns_a_data_set_of_pictures_and_captions(
    vae: VQGanVAE, tmp_path: Path
) -> None:
    """From Python, with the tokenizer in memory; resumed, it is where it was."""
    items = [{"image": torch.rand(3, 16, 16), "text": f"number {n}"} for n in range(12)]
    model = MaskGit(vae, image_size=16, **MODEL)
    keywords = {
        **FEW,
        "run": tmp_path / "run",
        "valid_fraction": 0.25,
        "count": 2,
        "sampling_steps": 2,
    }
    trainer = MaskGitTrainer(model, items, **keywords)
    assert trainer.train() == 2
    made = trainer.generate(["number 3"], steps=2)
    assert made.shape == (1, 3, 16, 16)
    assert (tmp_path / "run/frozen/tokenizer/model.safetensors").is_file()
    assert trainer.evaluate()["loss"] > 0


def test_data_of_another_size_than_the_model_is_refused(vae: VQGanVAE, tmp_path: Path) -> None:
    model = MaskGit(vae, image_size=16, **MODEL)
    items = [torch.rand(3, 32, 32) for _ in range(8)]
    trainer = MaskGitTrainer(model, items, **FEW, run=tmp_path / "run", valid_fraction=0.0)
    with pytest.raises(RunError, match=r"a sample has 64 ids, but the grid \(4, 4\) has 16"):
        trainer.train()


def test_subfolders_are_classes(saved: Path, tmp_path: Path) -> None:
    for name in ("red_fox/a.png", "red_fox/b.png", "owl/c.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(len(name)).integers(0, 255, (40, 40, 3), np.uint8)
        Image.fromarray(values).save(path)
    settings = recipe(saved, data=str(tmp_path / "photos"))
    settings = dataclasses.replace(
        settings, images=dataclasses.replace(settings.images, valid_fraction=0.0)
    )
    task = MaskGitTask(settings)
    task.prepare(World(settings))
    train = task.data("train")
    texts = {train.name(index): train.keyed(index, None)["text"] for index in range(3)}
    assert texts == {"red_fox/a.png": "red fox", "red_fox/b.png": "red fox", "owl/c.png": "owl"}


def photos_of(folder: Path, *captions: str) -> Path:
    """A picture for each caption; without a row in the metadata where it is empty."""
    folder.mkdir()
    for number in range(len(captions)):
        image_file(folder / f"{number:02d}.png", (32, 32), (0, 32, 0, number + 1))
    rows = [{"file_name": f"{n:02d}.png", "text": text} for n, text in enumerate(captions) if text]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_a_folder_without_captions_is_refused_before_its_ids_are_computed(
    saved: Path, tmp_path: Path
) -> None:
    settings = recipe(saved, data=str(photos_of(tmp_path / "photos", *[""] * 12)))
    task = MaskGitTask(settings)
    sentence = r"photos: none of its 9 images for training has a caption; give metadata\.jsonl with"
    with pytest.raises(RunError, match=f"{sentence}.*--model.text none"):
        task.prepare(World(settings))
    assert not task.codes
    without = dataclasses.replace(settings.model, text="none")
    MaskGitTask(dataclasses.replace(settings, model=without)).prepare(World(settings))


def test_captions_that_are_missing_cut_or_of_no_file_are_counted(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = photos_of(tmp_path / "photos", "x " * 20, *["a star", ""] * 5)
    with (photos / "metadata.jsonl").open("a") as metadata:
        metadata.write('\n{"file_name": "gone.png", "text": "nothing"}')
    settings = recipe(saved, data=str(photos))
    MaskGitTask(settings).prepare(World(settings))
    err = capsys.readouterr().err
    assert err.count("names files that do not exist: 1, gone.png is the first") == 1
    assert "5 of 11 images have no caption, 0" in err
    assert (
        "1 of 6 captions have more than 15 words, the longest 20, and are cut there; a lar" in err
    )


def test_judges_get_an_image_for_each_held_out_caption(saved: Path) -> None:
    settings = recipe(saved)
    task = MaskGitTask(settings)
    task.prepare(World(settings))
    made = outputs(task)
    source = made.open({}, task.data("valid"))
    items = [source.keyed(index, None) for index in range(3)]
    keys = torch.zeros(3, dtype=torch.int64)
    group = made.make(items, Batch(made.collate(items), [0, 1, 2], keys))
    again = made.make(items[1:], Batch(made.collate(items[1:]), [1, 2], keys[1:]))
    for sample in (*group.originals, *group.outputs, *group.baselines["training"]):
        assert sample.dtype == torch.uint8
        assert sample.shape == (3, SIDE, SIDE)
    assert torch.equal(group.originals[0], items[0]["image"])
    assert torch.equal(group.outputs[2], again.outputs[1])


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def sample(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*words: Any) -> tuple[int, str, str]:
        status = 0
        capsys.readouterr()
        try:
            main(["sample", str(run), *map(str, words), "--out", str(tmp_path / "out")])
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


def test_a_long_caption_is_cut_with_a_line(sample: Callable[..., Any], tmp_path: Path) -> None:
    status, _, err = sample("--text", "x " * 16, "--count", 1, "--steps", 1)
    assert status == 0
    assert "has 16 words; the model reads the first 15, as in training" in err


def test_painting_keeps_the_pixels_outside(sample: Callable[..., Any], tmp_path: Path) -> None:
    image = image_file(tmp_path / "a.png", (SIDE, SIDE))
    mask = image_file(tmp_path / "m.png", (SIDE, SIDE), (8, 16, 8, 16))
    status, out, _ = sample("--text", "a", "--image", image, "--mask", mask, "--count", 1)
    assert status == 0
    before, after = (np.asarray(Image.open(p)) for p in (image, out.split()[0]))
    outside = np.asarray(Image.open(mask)).max(-1) == 0
    assert (before[outside] == after[outside]).all()
    assert (before[~outside] != after[~outside]).any()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", " "], "a caption is empty"),
        (["--text", "a", "--steps", "0"], "steps must be 1 or more"),
        (["--text", "a", "--image", "IMAGE"], "takes --image and --mask; give both"),
        (["--text", "a", "--image", "IMAGE", "--mask", "SMALL"], "has 16 x 16 pixels, but"),
        (["--text", "a", "--image", "IMAGE", "--mask", "BLACK"], "make the area to paint white"),
        (["IMAGE"], "is a generator: give --text"),
    ],
)
def test_bad_input_is_answered_by_one_sentence(
    sample: Callable[..., Any], tmp_path: Path, words: list[str], sentence: str
) -> None:
    files = {"IMAGE": image_file(tmp_path / "a.png", (32, 32))}
    files["SMALL"] = image_file(tmp_path / "m.png", (16, 16))
    files["BLACK"] = image_file(tmp_path / "b.png", (32, 32), (0, 0, 0, 0))
    status, _, err = sample(*[files.get(word, word) for word in words])
    assert status == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_room_is_named_by_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not by its copy in a run that was never made."""
    mesh = quintet.MeshAutoencoder(dim=16).save_pretrained(tmp_path / "mesh")
    words = ["train", "image/maskgit_tiny", "--tokenizer", mesh, "--run", tmp_path / "run"]
    with pytest.raises(SystemExit, match="2"):
        main([str(word) for word in words])
    err = " ".join(capsys.readouterr().err.split())
    assert f"{mesh} holds mesh/autoencoder: set --tokenizer to a run of 'quintet train" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("builtin", "text"), [("figure", "a large yellow ring"), ("figures", "two red stars")]
)
def test_the_suggested_caption_is_one_of_the_data(builtin: Any, text: str) -> None:
    images = dataclasses.replace(recipes.maskgit_tiny().images, builtin=builtin)
    words = example(dataclasses.replace(recipes.maskgit_tiny(), images=images), Path("run"))
    assert words[0] == "--text"
    assert words[1].startswith(text)


def test_a_changed_caption_is_named_on_resume_and_the_suggested_one_is_of_the_folder(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, run = photos_of(tmp_path / "photos", *["a red fox"] * 8), tmp_path / "run"
    words = ["train", "image/maskgit_tiny", photos, "--tokenizer", saved, "--run", run]
    words += ["--steps", 1, "--workers", 0, "--batch-size", 4, "--evaluate-every", 0]
    words += ["--model.dim", 32, "--model.layers", 1, "--device", "cpu", "--trackers"]
    words += ["--images.size", 32, 32, "--generation.count", 1, "--generation.sampling-steps", 2]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    assert f"quintet sample {run} --text 'a red fox' --count 4" in capsys.readouterr().out
    first = next(iter(json.loads((run / "data.json").read_text())["train"]))
    metadata = photos / "metadata.jsonl"
    rows = metadata.read_text().splitlines()
    metadata.write_text(
        "\n".join(r.replace("red", "blue") if first in r else r for r in rows[::-1])
    )
    with pytest.raises(SystemExit, match="0"):
        main(["resume", str(run), "--steps", "2"])
    assert f"changed since the last start: 1 with another text ({first})" in capsys.readouterr().err
