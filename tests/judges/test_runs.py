"""What runs make, as samples of judges: the same in memory and as files, each judged once."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quintet.engine.errors import RunError
from quintet.judges import runs
from quintet.judges.base import Array, Options, PairJudge, SetJudge
from quintet.judges.choosing import chosen, medium_of
from quintet.judges.media import image as images
from quintet.judges.media import mesh as meshes
from quintet.judges.media import speech
from quintet.judges.media import video as videos
from quintet.judges.receipt import check_comparable, content_digest
from quintet.media.meshes.files import Mesh
from quintet.shared.outputs import Group, Sound, eight_bits, sixteen_bits

CUBE = Mesh(
    np.float32([[x, y, z] for x in (0.1, 0.7) for y in (0.0, 0.5) for z in (0.2, 0.9)]),  # type: ignore[arg-type]
    np.array([[0, 1, 2], [1, 3, 2], [4, 6, 5], [5, 6, 7], [0, 2, 4], [2, 6, 4]]),
)


def made(medium: str) -> Any:
    draw = np.random.default_rng(0)
    if medium == "images":
        return torch.from_numpy(draw.integers(0, 256, (3, 21, 34), np.uint8))
    if medium == "videos":
        return torch.from_numpy(draw.integers(0, 256, (5, 3, 21, 34), np.uint8))
    if medium == "meshes":
        return CUBE
    return Sound(draw.integers(-32767, 32768, 12_000, np.int16), 24_000, "A text.")


@pytest.mark.parametrize(
    ("module", "name"),
    [(images, "images"), (videos, "videos"), (meshes, "meshes"), (speech, "speech")],
)
def test_a_sample_in_memory_is_that_of_its_file(module: Any, name: str, tmp_path: Path) -> None:
    sample, reader = made(name), module.reader(Options())[0]
    module.write(tmp_path / "a", sample)
    (path,) = (path for path in tmp_path.iterdir() if path.suffix in module.SUFFIXES)
    for one, other in zip(parts(module.sample_of(sample)), parts(reader(path))):
        assert np.array_equal(one, other)


def parts(sample: Any) -> Sequence[Any]:
    """Its arrays and its text; not the path of a recording."""
    return sample[:3] if isinstance(sample, tuple) else [sample]


def test_a_mesh_without_a_surface_is_judged_as_a_triangle(tmp_path: Path) -> None:
    empty = Mesh(np.zeros((0, 3)), np.zeros((0, 3), np.int64))
    flat = Mesh(np.ones((3, 3)), np.array([[0, 1, 2]]))
    chamfer = meshes.Chamfer()
    for bad in (empty, flat):
        (row,) = chamfer.rows([meshes.sample_of(CUBE)], [meshes.sample_of(bad)])
        assert row > 0.1
        meshes.write(tmp_path / "bad", bad)
        assert len(meshes.read(tmp_path / "bad.ply").faces) == 1


def test_what_is_not_finite_is_refused_and_rounding_is_to_nearest() -> None:
    assert eight_bits(torch.tensor([-1.0, 0.4999 / 255, 1.5 / 255, 2.0])).tolist() == [0, 0, 2, 255]
    wide = torch.tensor([0.5, 3.0])
    assert sixteen_bits(wide).tolist() == [16384, 32767]
    for convert in (eight_bits, sixteen_bits):
        with pytest.raises(RunError, match="not finite; name another checkpoint"):
            convert(torch.tensor([torch.nan]))


# -- several sets, group by group -----------------------------------------------------------


class Near(PairJudge):
    name, medium, about, better = "near", "toy", "Absolute difference.", "lower"

    def facts(self) -> dict[str, str]:
        return {}

    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        return np.abs(np.array(references) - np.array(outputs))


class Rank(Near):
    """Of each output among all: depends on the others."""

    name, joint = "rank", True

    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        return np.argsort(np.argsort(np.array(outputs))).astype(np.float64)


class Shift(SetJudge):
    name, medium, about, better = "shift", "toy", "Difference of the means.", "lower"

    def facts(self) -> dict[str, str]:
        return {}

    def features(self, samples: Sequence[Any]) -> Array:
        return np.array(samples, np.float64)

    def distance(self, references: Array, outputs: Array) -> float:
        return abs(float(references.mean() - outputs.mean()))


TOY: Any = SimpleNamespace(sample_of=float)


def sheet_of(values: Sequence[int], size: int, baseline: int = 100) -> dict[str, Any]:
    sheet = runs.Sheet([Near(), Rank(), Shift()])
    for start in range(0, len(values), size):
        group = list(values[start : start + size])
        more = [0] * len(group[: max(0, baseline - start)])
        sheet.add(Group(group, [x + x % 2 for x in group], {"zero": more}), TOY)
    return sheet.scores({"size": "1"})


def test_groups_of_any_size_and_order_give_the_same_scores() -> None:
    values = list(range(10))
    scores = sheet_of(values, 4)
    assert scores == sheet_of(values, 3)
    found = scores["outputs"]
    assert (found["near"].value, found["rank"].value, found["shift"].value) == (0.5, 4.5, 0.5)
    assert scores["zero"]["near"].value == 4.5
    assert found["near"].receipt.count == 10
    turned = sheet_of(values[::-1], 4)["outputs"]
    assert turned["near"].receipt == found["near"].receipt
    assert sheet_of([*values[:-1], 11], 4)["outputs"]["near"].receipt != found["near"].receipt
    check_comparable({"run": found["near"], "zero": scores["zero"]["near"]})


@pytest.mark.parametrize("count", [0, 5, 9])
def test_a_baseline_that_ran_out_is_left_out(count: int) -> None:
    assert set(sheet_of(range(10), 4, count)) == {"outputs"}
    assert set(sheet_of(range(10), 4, 10)) == {"outputs", "zero"}


def test_the_digest_of_a_sample_is_of_kind_shape_and_values() -> None:
    sound = Sound(np.arange(4, dtype=np.int16), 8000, "a")
    others = [
        sound._replace(text="b"),
        sound._replace(rate=16_000),
        sound._replace(wav=sound.wav[:3]),
        sound._replace(wav=sound.wav.astype(np.int32)),
    ]
    digests = {content_digest(one) for one in (sound, *others)}
    assert len(digests) == 5
    assert content_digest(sound._replace(wav=sound.wav.copy())) in digests
    picture = torch.zeros(3, 4, 5, dtype=torch.uint8)
    assert content_digest(picture) != content_digest(picture.transpose(1, 2))


# -- which judges ---------------------------------------------------------------------------


def test_all_are_those_that_work_and_the_others_are_named(no_weights: Path) -> None:
    judges, silent = chosen("image", ["all"])
    assert [judge.name for judge in judges] == ["psnr", "ssim"]
    assert silent == ["lpips_vgg", "lpips_alex", "fid", "kid", "frechet_vgg", "frechet_onnx"]
    assert {judge.name for judge in chosen("music", ["all"], "embeddings")[0]} == {
        f"recall_at_{k}{of}" for k in (1, 10) for of in ("", "_of_text", "_of_audio")
    }
    assert [judge.name for judge in chosen("image", ["ssim, psnr", "ssim"])[0]] == ["ssim", "psnr"]


def test_names_of_papers_are_those_of_judges(weights: Path) -> None:
    judges, _ = chosen("image", ["lpips,rfid,fid"])
    assert [judge.name for judge in judges] == ["lpips_alex", "fid"]


def test_sounds_are_of_the_medium_that_has_the_judges(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    assert medium_of(tmp_path) == medium_of(tmp_path, ["pitch,wer"]) == "speech"
    assert medium_of(tmp_path, ["fad_mel"]) == "music"


@pytest.mark.parametrize(
    ("medium", "names", "compares", "sentence"),
    [
        ("image", "wer", "both", "wer is a judge of speech; of image there are psnr"),
        ("speech", "psnr", "both", "psnr is a judge of image and video; of speech there are wer"),
        ("mesh", "chamfer", "sets", "chamfer compares pairs, .* there are coverage"),
        ("mesh", "coverage", "pairs", "coverage compares sets, .* there are chamfer"),
        ("speech", "wer", "sounds", "wer compares texts, .* there are speaker, mel, pitch"),
        ("music", "recall_at_1", "both", "recall_at_1 compares embeddings, .* there are fad"),
        ("music", "fad_mel", "embeddings", "fad_mel compares sets, .* there are recall_at_1"),
        ("image", "beauty", "both", "there is no judge 'beauty' of image; there are psnr"),
        ("image", "psnr,fid", "both", "the judge fid needs the Inception-v3 .*inception"),
        ("video", "fvd", "both", "the judge fvd needs I3D"),
        ("image", "all", "sets", "no judge of sets works here; quintet judges says why"),
        ("image", "pnsr", "both", "there is no judge 'pnsr' of image; did you mean psnr?"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused_in_a_sentence(
    medium: str, names: str, compares: Any, sentence: str, no_weights: Path
) -> None:
    with pytest.raises(RunError, match=sentence):
        chosen(medium, [names], compares)
