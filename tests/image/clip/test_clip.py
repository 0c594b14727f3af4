"""A CLIPModel of transformers, adopted."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import adopting
import quintet
from adopting import Library, folder
from campaign.subjects import replaced
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.models.pretrained import read_weights
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.image.clip.task import ClipTask
from quintet.image.recipes import clip_tiny
from quintet.judges.clip_score import ClipScore
from quintet.nn.contrastive import global_loss
from quintet.shared import ranking
from quintet.shared.adopt.clip import TOWERS, AdoptedClip
from quintet.shared.adopt.folder import quiet

transformers: Any = Library("transformers")

SIDE, TEXTS = 32, ["a red circle", "two stars on white", "a", "blue"]
CLIP = "CLIPModel"


def images() -> Tensor:
    return torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def normalised() -> Tensor:
    mean, std = (
        torch.tensor(adopting.CLIP_PIXELS[k])[:, None, None] for k in ("image_mean", "image_std")
    )
    return (images() - mean) / std


def library(path: Path) -> Any:
    with quiet():
        return transformers.CLIPModel.from_pretrained(path)


@torch.no_grad()
def own_embeds(path: Path) -> tuple[Tensor, Tensor]:
    """Of images and texts, by transformers."""
    ids = adopting.clip_tokenizer()(TEXTS, padding="max_length", return_tensors="pt")
    output = library(path)(**ids, pixel_values=normalised())
    return output.image_embeds, output.text_embeds


def test_embeddings_are_those_of_the_original() -> None:
    image, text = own_embeds(folder(CLIP))
    model = quintet.load(folder(CLIP))
    torch.testing.assert_close(model.embed_image(images()), image)
    torch.testing.assert_close(model.embed_text(TEXTS), text)
    torch.testing.assert_close(model.embed_text(TEXTS[0]), text[0])
    torch.testing.assert_close(model.similarity(images(), TEXTS), image @ text.T)
    assert image.std(0).max() > 1e-2
    assert text.std(0).max() > 1e-2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_text_is_embedded_alike_whatever_it_shares_a_block_with(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = quintet.load(folder(CLIP)).to(device)
    texts = [*TEXTS, "a text of more than sixteen bytes", "x" * 100]
    expected = model.embed_text(texts)
    for rows in (1, 4):
        monkeypatch.setattr(ranking, "TEXT_ROWS", {"cpu": rows})
        at_once = ranking.embed_texts(model, texts)
        torch.testing.assert_close(at_once, expected)
        alone = [ranking.embed_texts(model, [text])[0] for text in texts]
        assert torch.equal(at_once, torch.stack(alone))


def small(**changes: Any) -> Any:
    wanted = {"workers": 0, "trackers": (), "valid_limit": 4, "builtin_count": 8, "log_every": 1}
    wanted |= {"size": (SIDE, SIDE), "device": "cpu", "batch_size": 2, "steps": 1}
    return replaced(clip_tiny(), wanted | {"clip": str(folder(CLIP))} | changes)


def batch(task: ClipTask, rows: slice) -> Batch:
    texts = TEXTS[rows]
    data = {"image": images()[rows], "texts": texts, "text": task.model.tokenize(texts)[0]}
    return Batch(data, list(range(len(texts))), torch.arange(len(texts)))


def test_the_loss_is_that_of_the_whole_batch() -> None:
    task = ClipTask(small())
    halves = [batch(task, slice(0, 2)), batch(task, slice(2, 4))]
    outputs = [task.model(*task.inputs(half)).pairs for half in halves]
    loss = global_loss("softmax", outputs, lambda value: value, 0).loss
    image, text = own_embeds(folder(CLIP))
    logits = image @ text.T * task.model.network.logit_scale.detach().exp()
    right = torch.arange(len(TEXTS))
    expected = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("part", TOWERS)
def test_a_step_moves_exactly_what_is_trained(part: Any, tmp_path: Path) -> None:
    recipe = small(train=part, learning_rate=1e-3, warmup_steps=0)
    run = Run(ClipTask(recipe), recipe, World(recipe), RunFolder(tmp_path))
    take_step(run)
    run.close()
    old = library(folder(CLIP)).state_dict()
    new: Any = run.parts["clip"].module.network
    moved = {name for name, value in new.state_dict().items() if not value.equal(old[name])}
    trained = {n for n, _ in new.named_parameters() if n.partition(".")[0] in TOWERS[part]}
    assert moved == trained | {"logit_scale"}


def test_recomputed_blocks_give_the_same_step(tmp_path: Path) -> None:
    weights = []
    for recomputes in (False, True):
        recipe = small(checkpoint_activations=recomputes)
        run = Run(ClipTask(recipe), recipe, World(recipe), RunFolder(tmp_path / str(recomputes)))
        take_step(run)
        run.close()
        weights.append(run.parts["clip"].module.state_dict())
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_export_without_training_is_the_original_to_the_byte(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    adopting.network(CLIP).to(dtype).save_pretrained(original)
    adopting.write_clip_processor(original)
    quintet.load(original).save_pretrained(tmp_path / "out")
    for file in original.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def pictures(path: Path, captions: int = 6) -> Path:
    from PIL import Image

    path.mkdir()
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 255, (40, 48, 3), np.uint8)
        Image.fromarray(noise).save(path / f"{number}.png")
    for number in range(captions):
        (path / f"{number}.txt").write_text(TEXTS[number % 4], encoding="utf-8")
    return path


def test_a_run_is_exported_in_the_format_of_its_original_and_judges_as_its_export(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, run, out = pictures(tmp_path / "photos"), tmp_path / "run", tmp_path / "out"
    original = tmp_path / "original"
    shutil.copytree(folder(CLIP), original)
    flags = f"--images.size {SIDE} {SIDE} --train image --steps 2 --batch-size 2 --workers 0"
    words = [*flags.split(), "--device", "cpu", "--optim.ema-decay", "0"]
    begun = cli("train", "image/clip_tiny", photos, "--from", original, "--run", run, *words)
    assert begun.status == 0, begun
    shutil.rmtree(original)  # the run keeps its own copy
    assert cli("export", run, out).status == 0
    old, new = (read_weights(path / "model.safetensors") for path in (folder(CLIP), out))
    assert {n: value.dtype for n, value in old.items()} == {n: v.dtype for n, v in new.items()}
    changed = {n.partition(".")[0] for n in old if not old[n].equal(new[n])}
    assert changed == {"vision_model", "visual_projection", "logit_scale"}
    image, text = own_embeds(out)
    for path in (run, out):
        torch.testing.assert_close(quintet.load(path).embed_image(images()), image)
    torch.testing.assert_close(AdoptedClip.from_pretrained(run).embed_text(TEXTS), text)
    found = cli("sample", run, photos, "--text", "blue", "--out", tmp_path / "found")
    assert found.status == 0, found
    ranking = json.loads((tmp_path / "found/ranking.json").read_text())
    assert len(ranking[0]["best"]) == 6
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path / "weights"))
    facts = []
    for path in (run, out):
        shutil.copytree(path, tmp_path / "weights/clip")
        facts.append(ClipScore().facts())
        shutil.rmtree(tmp_path / "weights")
    assert facts[0] == facts[1]


def test_captions_come_from_metadata_or_text_files_and_images_without_are_skipped(
    tmp_path: Path,
) -> None:
    photos = pictures(tmp_path / "photos", captions=3)
    row = {"file_name": "5.png", "text": "a caption\nof two lines"}
    (photos / "metadata.jsonl").write_text(json.dumps(row), encoding="utf-8")
    task = ClipTask(small(data=str(photos), valid_fraction=0.25))
    with pytest.warns(UserWarning, match="2 of 6 images have no caption"):
        data = task.data("train")
    with pytest.warns(UserWarning, match="2 of 6 images have no caption"):
        held_out = task.data("valid")
    texts = {d.name(i): d.text(i) for d in (data, held_out) for i in range(len(d))}
    expected = {f"{number}.png": TEXTS[number] for number in range(3)}
    assert texts == expected | {"5.png": "a caption of two lines"}
    with pytest.raises(Exception, match="2 of 6 images have no caption"):
        ClipTask(small(data=str(photos), max_missing=0.1)).data("train")


# -- what is refused -------------------------------------------------------------------------


def answer(cli: Any, source: object, run: Path, *words: object) -> str:
    said = cli("train", "image/clip_tiny", "--from", source, "--run", run, *words)
    assert said.status == 2
    assert "Traceback" not in said.err
    return said.err


def copied(path: Path, *without: str) -> Path:
    shutil.copytree(folder(CLIP), path)
    for file in without:
        (path / file).unlink()
    return path


def test_what_cannot_be_adopted_is_refused_with_a_sentence(tmp_path: Path, cli: Any) -> None:
    run = tmp_path / "run"
    pickled = copied(tmp_path / "pickled", "model.safetensors")
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert "a pickle can run code; where you trust it" in answer(cli, pickled, run)
    bare = copied(tmp_path / "bare", "tokenizer.json", "tokenizer_config.json")
    assert "has no tokenizer" in answer(cli, bare, run)
    plain = copied(tmp_path / "plain", "preprocessor_config.json")
    assert "has no image_mean and image_std" in answer(cli, plain, run)
    assert "takes images of 32 x 32; set --images.size 32 32" in answer(cli, folder(CLIP), run)
    assert "AutoencoderTiny is not a joint embedding of images" in answer(
        cli, folder("AutoencoderTiny"), run
    )
