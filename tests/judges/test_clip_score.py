"""CLIPScore, against transformers itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import adopting
from adopting import Library, folder
from quintet.engine.errors import RunError
from quintet.judges import runs
from quintet.judges.choosing import chosen
from quintet.judges.clip_score import ClipScore
from quintet.judges.media import image as images
from quintet.shared.adopt.folder import quiet
from quintet.shared.outputs import Group

transformers: Any = Library("transformers")

SIDE = 32
TEXTS = ["a red circle", "two stars on white", "a", "blue", "a tree", "nine grey squares"]


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the judge, a link to a CLIPModel."""
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    (tmp_path / "clip").symlink_to(folder("CLIPModel"))
    return tmp_path / "clip"


def drawn(height: int = SIDE, width: int = SIDE) -> list[Tensor]:
    draw = np.random.default_rng(0)
    noise = [draw.integers(0, 256, (3, height, width), np.uint8) for _ in TEXTS]
    return [torch.from_numpy(one) for one in noise]


@torch.no_grad()
def cosines(pictures: Sequence[Tensor]) -> Tensor:
    """By transformers and Pillow, of pictures and their texts."""
    ids = adopting.clip_tokenizer()(TEXTS, padding="max_length", return_tensors="pt")
    pixels = torch.stack([torch.from_numpy(prepared(one)) for one in pictures]) / 255
    mean, std = (torch.tensor(values) for values in adopting.CLIP_PIXELS.values())
    with quiet():
        model = transformers.CLIPModel.from_pretrained(folder("CLIPModel"))
    output = model(**ids, pixel_values=((pixels - mean) / std).permute(0, 3, 1, 2))
    return (output.image_embeds * output.text_embeds).sum(1)


def prepared(picture: Tensor) -> np.ndarray[Any, Any]:
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    scale = SIDE / min(image.size)
    width, height = (int(length * scale) for length in image.size)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.array(resized.crop((left, top, left + SIDE, top + SIDE)))


def test_the_score_is_100_times_the_cosine_of_transformers_or_0(clip: Path) -> None:
    negative = 0
    for size in ((SIDE, SIDE), (80, 64), (16, 24)):
        pictures = drawn(*size)
        expected = 100 * cosines(pictures)
        rows = ClipScore().rows(TEXTS, [images.sample_of(one) for one in pictures])
        np.testing.assert_allclose(rows, expected.clamp_min(0).numpy(), atol=1e-4)
        negative += int((expected < -1).sum())
    assert negative


def judged(texts: Sequence[str]) -> dict[str, Any]:
    pictures, others = drawn(), drawn()[::-1]
    sheet = runs.Sheet([ClipScore(), Mean()])
    for start in (0, 4):
        part = slice(start, start + 4)
        baselines = {"training": others[part]}
        group = Group(pictures[part], others[part], baselines, captions=texts[part])
        sheet.add(group, images)
    return sheet.scores({})


class Mean(images.FrechetSets):
    """A judge of sets that needs nothing."""

    name, medium, about = "mean", "image", "Distance of mean colours."

    def facts(self) -> dict[str, str]:
        return {}

    def features(self, samples: Sequence[Any]) -> Any:
        return np.stack([sample.double().mean((1, 2)).numpy() for sample in samples])


def test_outputs_are_judged_by_their_captions_beside_the_originals(clip: Path) -> None:
    scores = judged(TEXTS)
    own, other = (100 * cosines(x).clamp_min(0).mean() for x in (drawn(), drawn()[::-1]))
    assert scores["originals"]["clip_score"].value == pytest.approx(float(own), abs=1e-4)
    assert scores["outputs"]["clip_score"].value == pytest.approx(float(other), abs=1e-4)
    assert set(scores["training"]) == set(scores["outputs"]) == {"clip_score", "mean"}
    assert set(scores["originals"]) == {"clip_score"}  # a set is no distance from itself
    receipt = scores["outputs"]["clip_score"].receipt
    assert receipt.facts["weights"] == ClipScore().facts()["weights"]
    assert "100 x max(cosine, 0)" in receipt.facts["score"]
    changed = judged([*TEXTS[:-1], "ten grey squares"])["outputs"]
    assert changed["clip_score"].receipt.reference != receipt.reference
    assert changed["mean"].receipt == scores["outputs"]["mean"].receipt


def test_captions_and_weights_that_are_missing_are_named(clip: Path) -> None:
    samples = [images.sample_of(one) for one in drawn()]
    with pytest.raises(RunError, match=r"1 of 6 have none; give metadata\.jsonl"):
        ClipScore().rows([*TEXTS[:-1], " "], samples)
    with pytest.raises(RunError, match="clip_score compares captions, and there are none here"):
        chosen("image", ["clip_score"], "sets")
    clip.unlink()
    with pytest.raises(RunError, match=f"needs a folder of a transformers CLIPModel .* as {clip}"):
        chosen("image", ["clip_score"], "captions")
    clip.symlink_to(folder("AutoencoderTiny"))
    with pytest.raises(RunError, match=f"the judge clip_score needs a folder .* as {clip}: "):
        ClipScore().facts()
