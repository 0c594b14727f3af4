"""Super-resolution on two small tokenizers: what the coarse ids do, cached pairs, files, bad
input."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet
from harness import assert_same
from quintet import MaskGit, MaskGitUp, MaskGitUpTrainer, VQGanVAE
from quintet.cli import main
from quintet.engine.errors import RunError
from quintet.engine.machine.world import World
from quintet.engine.task import Batch
from quintet.image import recipes
from quintet.image.maskgit_up import shrunk
from quintet.image.maskgit_up_task import MaskGitUpTask
from quintet.image.outputs import outputs
from quintet.shared.maskgit.data import in_floats

MODEL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "text_length": 64}
FEW: dict[str, Any] = {
    "steps": 1,
    "batch_size": 4,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
}


def tokenizer(seed: int, **config: Any) -> VQGanVAE:
    torch.manual_seed(seed)
    return VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), **config).eval()


@pytest.fixture(scope="module")
def fine() -> VQGanVAE:
    return tokenizer(0, levels=(8, 5))


@pytest.fixture(scope="module")
def coarse() -> VQGanVAE:
    return tokenizer(1, levels=(5, 5))


@pytest.fixture
def model(fine: VQGanVAE, coarse: VQGanVAE) -> MaskGitUp:
    torch.manual_seed(2)
    model = MaskGitUp(fine, coarse, image_size=(16, 32), coarse_size=(8, 16), **MODEL)
    return awake(model).eval()


def awake(model: Any) -> Any:
    """With residual branches that are not zero, as they are before training."""
    for parameter in model.parameters():
        if parameter.ndim == 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def test_a_coarse_id_changes_predictions_of_its_own_cell_most(model: MaskGitUp) -> None:
    assert model.config.coarse_grid == (2, 4)
    assert model.config.coarse_digits == (25,)
    ids = model.blank_ids(2)
    coarse = torch.zeros(2, 8, dtype=torch.int64)
    coarse[1, 5] = 7  # row 1, column 1: fine rows 2 and 3, columns 2 and 3
    hidden = model.hidden(ids, model.with_coarse(model.encode_text(2), coarse))
    change = (hidden[1] - hidden[0]).abs().sum(-1).detach().unflatten(0, (4, 8))
    assert change.min() > 0
    inside = torch.zeros(4, 8, dtype=torch.bool)
    inside[2:, 2:4] = True
    assert change[inside].min() > change[~inside].max()


def test_an_image_does_not_depend_on_its_batch(model: MaskGitUp) -> None:
    texts = [f"number {index}" for index in range(20)]  # of 32 ids: three blocks of eight
    small = torch.randint(25, (20, 2, 4), generator=torch.Generator().manual_seed(0))
    together = model.generate(texts, small, steps=2, return_ids=True)
    alone = model.generate(texts[13:], small[13:], steps=2, first=13, return_ids=True)
    assert torch.equal(alone, together[13:])
    other = model.generate(texts, (small + 1) % 25, steps=2, return_ids=True)
    assert not torch.equal(other, together)


def test_images_stand_for_their_coarse_ids(model: MaskGitUp, coarse: VQGanVAE) -> None:
    images = torch.rand(2, 3, 16, 32)
    ids = coarse.tokenize(shrunk(images, (8, 16)))
    made = model.generate("a", images, steps=2)
    assert made.shape == (2, 3, 16, 32)
    assert torch.equal(made, model.generate("a", ids, steps=2))


def test_a_saved_model_has_both_tokenizers(model: MaskGitUp, tmp_path: Path) -> None:
    again = quintet.load(model.save_pretrained(tmp_path / "model"))
    assert_same(dict(model.state_dict()), dict(again.state_dict()))
    images = torch.rand(1, 3, 8, 16)
    first, second = (each.generate(None, images, steps=2) for each in (model, again))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("small", "texts", "sentence"),
    [
        (torch.zeros(1, 4, 8, dtype=torch.int64), ["a"], r"takes \(b, 2, 4\): give ids"),
        (torch.full((1, 2, 4), 25), ["a"], "must be from 0 to 24: they are those of another"),
        (torch.rand(3, 8, 16), ["a"], r"images are \(b, c, H, W\), not \(3, 8, 16\)"),
        (torch.zeros(3, 2, 4, dtype=torch.int64), ["a", "b"], "2 texts do not match the count 3"),
    ],
)
def test_bad_coarse_input_is_refused(
    model: MaskGitUp, small: torch.Tensor, texts: list[str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        model.generate(texts, small)


def test_grids_that_do_not_divide_are_refused(fine: VQGanVAE, coarse: VQGanVAE) -> None:
    with pytest.raises(ValueError, match=r"\(4, 4\), is no multiple of that of coarse ids, \(3, 3"):
        MaskGitUp(fine, coarse, image_size=16, coarse_size=12, **MODEL)


# -- training -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings(fine: VQGanVAE, coarse: VQGanVAE, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizers")
    base = recipes.maskgit_up_tiny()
    small = dataclasses.replace(base.model, dim=32, layers=1)
    return dataclasses.replace(
        base,
        tokenizer=str(fine.save_pretrained(folder / "fine")),
        coarse_tokenizer=str(coarse.save_pretrained(folder / "coarse")),
        coarse_size=(16, 16),
        model=small,
        images=dataclasses.replace(base.images, size=(32, 32), builtin_count=8, valid_limit=3),
        **FEW,
    )


def test_cached_pairs_are_those_of_the_tokenizers(
    settings: Any, fine: VQGanVAE, coarse: VQGanVAE
) -> None:
    for _ in range(2):  # computed, then read
        task = MaskGitUpTask(settings)
        task.prepare(World(settings))
        pairs, source = task.data("train"), task.open("train")
        for index in (0, 7):
            image = in_floats(source.keyed(index, None)["image"][None], fine)
            ids = fine.tokenize(image), coarse.tokenize(shrunk(image, (16, 16)))
            fresh = torch.cat([part.flatten() for part in ids])
            assert torch.equal(pairs.keyed(index, None)["codes"].long(), fresh)


def test_judges_get_an_image_for_each_held_out_caption(settings: Any) -> None:
    task = MaskGitUpTask(settings)
    task.prepare(World(settings))
    made: Any = outputs(task)
    source = made.open({}, task.data("valid"))
    items = [source.keyed(index, None) for index in range(2)]
    batch = Batch(made.collate(items), [0, 1], torch.zeros(2, dtype=torch.int64))
    group = made.make(items, batch)
    valid = task.data("valid")
    codes = torch.stack([valid.codes_of(index) for index in range(2)])
    cached = task.generate([item["text"] for item in items], [0, 1], codes=codes)
    assert torch.equal(group.outputs[1], made.shown(cached[1]))


def test_sizes_that_do_not_divide_are_refused_before_training(settings: Any) -> None:
    with pytest.raises(RunError, match="is no multiple of that of coarse ids"):
        MaskGitUpTask(dataclasses.replace(settings, coarse_size=(12, 12)))


def test_the_trainer_copies_both_tokenizers(
    fine: VQGanVAE, coarse: VQGanVAE, tmp_path: Path
) -> None:
    items = [{"image": torch.rand(3, 16, 16), "text": f"number {n}"} for n in range(8)]
    model = MaskGitUp(fine, coarse, image_size=16, coarse_size=8, **MODEL)
    keywords = {**FEW, "run": tmp_path / "run", "valid_fraction": 0.25, "count": 2}
    trainer = MaskGitUpTrainer(model, items, **keywords)
    assert trainer.train() == 1
    small = torch.zeros(1, 2, 2, dtype=torch.int64)
    assert trainer.generate(["number 3"], coarse=small, steps=2).shape == (1, 3, 16, 16)
    for name in ("tokenizer", "coarse_tokenizer"):
        assert (tmp_path / f"run/frozen/{name}/model.safetensors").is_file()


# -- the command line -----------------------------------------------------------------------------


def test_one_command_from_a_caption_to_a_large_image(
    model: MaskGitUp,
    coarse: VQGanVAE,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    up = model.save_pretrained(tmp_path / "up")
    base = MaskGit(coarse, image_size=(8, 16), **MODEL).eval()
    small = base.save_pretrained(tmp_path / "base")
    other = MaskGit(coarse, image_size=8, **MODEL).save_pretrained(tmp_path / "other")
    Image.fromarray(np.zeros((8, 16, 3), np.uint8)).save(tmp_path / "a.png")

    def sample(run: Path, *words: object) -> tuple[int, str]:
        out = ["--text", "a star", "--count", "2", "--steps", "2", "--out", str(tmp_path / "out")]
        status = 0
        try:
            main(["sample", str(run), *map(str, words), *out])
        except SystemExit as ended:
            status = int(ended.code or 0)
        output = capsys.readouterr()
        return status, " ".join((output.err if status else output.out).split())

    status, printed = sample(up, "--base", small)
    assert status == 0
    path = Path(printed.split()[1])
    assert path.name == "00-a-star-001.png"
    device = "cuda" if torch.cuda.is_available() else "cpu"  # as the command takes it
    ids = base.to(device).generate(["a star"], count=2, steps=2, return_ids=True)
    expected = model.to(device).generate(["a star"], ids, steps=2)[1].cpu()
    written = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
    assert (written - expected * 255).abs().max() <= 1
    assert sample(up, "--image", tmp_path / "a.png")[0] == 0

    for run, words, sentence in (
        (up, [], "give --base or --image, no --mask"),
        (up, ["--base", other], "has another tokenizer, or another size"),
        (up, ["--base", up / "tokenizer"], "is no generator: train one"),
        (small, ["--base", small], "is no super-resolution generator: drop --base"),
    ):
        status, printed = sample(run, *words)
        assert status == 2
        assert sentence in printed
