"""Tokenizers are judged on the same pictures, crop and rounding."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quintet.engine.errors import RunError
from quintet.image.vqgan.model import VQGanVAE
from quintet.judges import tokenizers
from quintet.judges.base import Array, PairJudge
from quintet.judges.receipt import Receipt, Score
from quintet.judges.tokenizers import Judged, compare
from quintet.media.pixels import middle, read_image
from quintet.nn.similarity import psnr

Folder = list[Path]


def model(seed: int = 0, factor: int = 4, **keywords: Any) -> VQGanVAE:
    torch.manual_seed(seed)
    widths = tuple(1 for _ in range(int(math.log2(factor))))
    sizes: dict[str, Any] = {"dim": 8, "patch_size": 2, "channel_multipliers": widths}
    return VQGanVAE(**sizes, num_res_blocks=(1,), attention_layers=0, **keywords).eval()


@pytest.fixture
def files(tmp_path: Path) -> Folder:
    """Five pictures of different sizes; the smallest sides are 45 and 50."""
    sizes = [(45, 60), (70, 50), (64, 64), (48, 90), (51, 52)]
    paths = [tmp_path / f"{index}.png" for index in range(len(sizes))]
    for seed, (path, (height, width)) in enumerate(zip(paths, sizes)):
        ramp = np.add.outer(np.arange(height), np.arange(width))[:, :, None] * [1, 2, seed]
        Image.fromarray((ramp % 256).astype(np.uint8)).save(path)
    return paths


def test_the_crop_is_the_largest_that_suits_all_pictures_and_factors(files: Folder) -> None:
    result = compare(files, {"a": model(factor=4), "b": model(factor=8)}, batch_size=2)
    assert (result.size, result.multiple) == ((40, 48), 8)
    assert compare(files, {"a": model(factor=4)}).size == (44, 48)
    receipt = result.tokenizers[0].scores["psnr"].receipt
    assert receipt.preparation["size"] == "40 x 48"
    assert receipt.preparation["filter"] == "none"
    assert receipt.count == 5
    assert np.array_equal(result.originals[1], middle(read_image(files[1]), (40, 48)))


def test_the_scores_are_those_of_rounded_reconstructions(files: Folder) -> None:
    tokenizer = model()
    result = compare(files, {"a": tokenizer}, batch_size=2, shown=5)
    crops = np.stack([middle(read_image(path), result.size) for path in files])
    pictures = torch.from_numpy(crops).permute(0, 3, 1, 2) / 255
    rounded = (tokenizer.reconstruct(pictures) * 255).round() / 255
    score = result.tokenizers[0].scores["psnr"]
    assert score.value == pytest.approx(psnr(rounded, pictures).mean().item(), abs=1e-3)
    assert score.low is not None
    assert score.high is not None
    assert score.low <= score.value <= score.high
    shown = torch.from_numpy(np.stack(result.reconstructions["a"])).permute(0, 3, 1, 2) / 255
    assert psnr(shown, pictures).mean().item() == pytest.approx(score.value, abs=1e-3)


def test_rate_and_codes_are_counted(files: Folder) -> None:
    tokenizer = model(levels=(4, 4, 4))
    (judged,) = compare(files, {"a": tokenizer}).tokenizers
    assert judged.scores["bits_per_pixel"].value == pytest.approx(6 / 16)
    crops = np.stack([middle(read_image(path), (44, 48)) for path in files])
    ids = tokenizer.tokenize(torch.from_numpy(crops).permute(0, 3, 1, 2) / 255)
    assert judged.scores["codes_used"].value == pytest.approx(len(ids.unique()) / 64)
    speed = judged.scores["ms_per_picture"]
    assert speed.value > 0
    assert speed.receipt.facts["device"]
    assert speed.receipt.facts["batch"] == "5"


def test_continuous_latents_have_channels_and_no_rate(files: Folder) -> None:
    continuous = model(quantiser="kl", latent_channels=3)
    result = compare(files, {"kl": continuous, "fsq": model()})
    assert [one.name for one in result.tokenizers] == ["fsq", "kl"]
    scores = result.tokenizers[1].scores
    assert scores["channels_per_position"].value == 3
    assert scores["psnr"].receipt == result.tokenizers[0].scores["psnr"].receipt
    assert not {"bits_per_pixel", "codes_used"} & set(scores)
    assert result.tokenizers[1].as_json()["codebook_size"] is None
    assert set(result.receipts) >= {"bits_per_pixel", "codes_used", "channels_per_position"}


def test_batches_do_not_change_the_scores(files: Folder) -> None:
    one, many = (compare(files, {"a": model()}, batch_size=n).tokenizers[0] for n in (1, 4))
    for name in ("psnr", "ssim", "bits_per_pixel", "codes_used"):
        assert one.scores[name].value == pytest.approx(many.scores[name].value, rel=1e-5)
        assert one.scores[name].receipt == many.scores[name].receipt
    assert one.scores["ms_per_picture"].receipt != many.scores["ms_per_picture"].receipt
    assert one.weights == many.weights


def test_a_size_resamples_and_has_another_receipt(files: Folder) -> None:
    cropped, resampled = (
        compare(files, {"a": model()}, size=size).tokenizers[0].scores["psnr"].receipt
        for size in (None, (44, 48))
    )
    assert resampled.preparation["filter"].startswith("Lanczos")
    assert cropped.digest != resampled.digest
    with pytest.raises(RunError, match="both must be divisible by 8"):
        compare(files, {"a": model(factor=8)}, size=(44, 48))


def test_pictures_without_a_common_crop_are_refused(files: Folder, tmp_path: Path) -> None:
    Image.new("RGB", (50, 9)).save(tmp_path / "thin.png")
    with pytest.raises(RunError, match="no common crop"):
        compare([*files, tmp_path / "thin.png"], {"a": model()})


def test_damaged_files_are_named_and_do_not_count(files: Folder, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(b"no picture")
    result = compare([damaged, *files], {"a": model()})
    assert len(result.skipped) == 1
    assert "damaged.png" in result.skipped[0]
    assert result.tokenizers[0].scores["psnr"].receipt.count == 5
    with pytest.raises(RunError, match=r"none of 1 pictures can be read; the first: .*damaged"):
        compare([damaged], {"a": model()})


def test_reconstructions_that_are_not_finite_are_refused(files: Folder) -> None:
    broken = model()
    list(broken.decoder.parameters())[-1].data.fill_(torch.nan)
    with pytest.raises(RunError, match="reconstructions of b are not finite"):
        compare(files, {"a": model(), "b": broken})


class Absent(PairJudge):
    name, medium, about, better = "absent", "image", "Its weights are nowhere.", "lower"

    def problem(self) -> str | None:
        return "needs weights"

    def facts(self) -> dict[str, str]:
        return {}

    def rows(self, references: Any, outputs: Any) -> Array:
        raise AssertionError("asked without weights")


def test_a_judge_without_weights_is_left_out_and_named(files: Folder) -> None:
    result = compare(files, {"a": model()}, judges=[tokenizers.Psnr(), Absent()])
    assert result.missing == ["absent needs weights"]
    assert "absent" not in result.tokenizers[0].scores


def judged(name: str, rate: float, decibels: float) -> Judged:
    receipt = Receipt("", {}, "", {}, 1)
    values = {"bits_per_pixel": rate, "psnr": decibels}
    scores = {key: Score(value, None, None, receipt) for key, value in values.items()}
    return Judged(name, "", 8, 64, scores)


def test_the_order_is_by_rate_and_by_psnr_where_rates_are_similar() -> None:
    rows = [judged("d", 0.3, 30), judged("a", 0.105, 20), judged("b", 0.1, 21)]
    rows += [judged("c", 0.111, 25), judged("e", 0.32, 29)]
    assert [one.name for one in tokenizers.ordered(rows)] == ["b", "a", "c", "d", "e"]


def test_continuous_latents_come_last_by_numbers_per_pixel() -> None:
    def latents(name: str, channels: float, decibels: float) -> Judged:
        one = judged(name, 0.0, decibels)
        about = one.scores["psnr"].receipt
        scores = {"psnr": one.scores["psnr"]}
        scores["channels_per_position"] = Score(channels, None, None, about)
        return dataclasses.replace(one, codebook_size=None, scores=scores)

    rows = [latents("x", 16, 40), latents("y", 4, 20), latents("z", 4, 30), judged("a", 9.0, 10)]
    assert [one.name for one in tokenizers.ordered(rows)] == ["a", "z", "y", "x"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_scores_are_those_of_the_cpu(files: Folder) -> None:
    results = [compare(files, {"a": model().to(d)}).tokenizers[0].scores for d in ("cpu", "cuda")]
    for name in ("psnr", "ssim"):
        assert results[1][name].value == pytest.approx(results[0][name].value, rel=0.02)
    assert torch.cuda.get_device_name() == results[1]["ms_per_picture"].receipt.facts["device"]
