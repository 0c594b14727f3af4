"""The page of results shows what the files of results say, and its tool runs a row."""

import importlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quintet.media.sheets import grid

ROOT = Path(__file__).parents[1]
RECIPES = ["image/vqgan", "video/tokenizer", "speech/voicebox"]


def score(value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    receipt = {"judge": "psnr", "facts": {}, "reference": "ab", "preparation": {}, "count": 7}
    return {"value": value, "low": low, "high": high, "receipt": receipt, "digest": "0123456789ab"}


def row(recipe: str, **metrics: Any) -> dict[str, Any]:
    split = {"files": 40, "bytes": 2_000_000, "digest": "feedbeef", "sources": [["kit", "CC0", 40]]}
    return {
        "recipe": recipe,
        "commands": [f"quintet train {recipe} real/images/train --run runs/a"],
        "commit": "abc123",
        "device": "a GPU",
        "versions": {"torch": "2.11"},
        "precision": "bf16",
        "steps": 1234,
        "batch": 8,
        "samples": {"train": 39, "valid": 7},
        "seconds": {"steps": 50.0, "train": 61.0, "stage": 0.0, "judge": 4.0},
        "judges": {"psnr": {"about": "", "better": "higher", "unit": "dB"}},
        "metrics": {"samples": 7, **metrics},
        "data": {"train": split, "held": {**split, "files": 7}},
    }


def pack(folder: Path, facts: dict[str, Any], losses: dict[str, float], *more: Path) -> None:
    (folder / "results").mkdir(parents=True, exist_ok=True)
    texts = {"row.json": json.dumps(facts), "metrics.jsonl": json.dumps({"step": 5, **losses})}
    with tarfile.open(folder / "results" / f"{facts['recipe'].replace('/', '-')}.tar", "w") as tar:
        for name, text in texts.items():
            (folder / name).write_text(text)
            tar.add(folder / name, name)
        for path in more:
            tar.add(path, path.name)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("results_page")
    (tmp_path / "docs/images").mkdir(parents=True)
    monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    return module


def test_the_page_shows_the_numbers_of_the_files_and_names_failures(
    page: Any, tmp_path: Path
) -> None:
    blue, red = (np.full((64, 64, 3), colour, np.uint8) for colour in ((0, 0, 255), (255, 0, 0)))
    sheet = grid([[blue, red, red]] * 5, ["original", "r", "d"])
    Image.fromarray(sheet).save(tmp_path / "reconstructions.png")
    judges = {"judges": {"psnr": score(21.5, 20.5, 22.5)}}
    others = {"baselines": {"bicubic": {"psnr": score(23.75)}, "limit": {"psnr": score(50.0)}}}
    measured = {"psnr": 21.53, "psnr_bicubic": 23.71, "psnr_mean_colour": 12.25}
    facts = row("image/vqgan", **measured, **judges, **others)
    facts["judges"]["fid"] = {"about": "", "better": "lower", "unit": ""}
    pack(tmp_path, facts, {"vae/loss": 0.5}, tmp_path / "reconstructions.png")
    assert page.write_page(tmp_path, RECIPES) == 0
    text = (tmp_path / "docs/results.md").read_text()
    assert "| 21.53 (**not better than bicubic**) | bicubic 23.71, mean colour 12.25 |" in text
    assert "| 21.5 (20.5 to 22.5) (**not better than bicubic**) | bicubic 23.75, limit 50 |" in text
    assert "Not judged, without their weights: `fid`." in text
    assert "1,234 steps of 8 samples on a GPU" in text
    assert "40 (`feedbeef`)" in text
    assert "kit 80 (CC0)" in text
    assert "not results" not in text  # no tiny recipe
    for link in re.findall(r"\]\(((?:images|results|sounds)/[^)]+)\)", text):
        assert (tmp_path / "docs" / link).is_file(), link
    with Image.open(tmp_path / "docs/images/results-image-vqgan.png") as picture:
        expected = grid([[blue] * 5, [red] * 5])
        assert np.array_equal(np.asarray(picture.convert("RGB")), expected)
    assert json.loads((tmp_path / "docs/results/image-vqgan.json").read_text()) == facts


def test_rows_that_the_folder_does_not_have_stay_as_they_are(page: Any, tmp_path: Path) -> None:
    docs, first, second = tmp_path / "docs", tmp_path / "first", tmp_path / "second"
    pack(first, row("image/vqgan", psnr=21.53), {})
    pack(first, row("speech/voicebox", mel_error=0.8), {})
    page.write_page(first, RECIPES)
    before = (docs / "results.md").read_text()
    for name in ("results-image-vqgan-1.png", "results-speech-voicebox.png", "other.png"):
        (docs / "images" / name).write_bytes(b"")
    pack(second, row("image/vqgan", psnr=25.25), {})
    page.write_page(second, RECIPES)
    after = (docs / "results.md").read_text()
    assert "21.53" in before
    assert "21.53" not in after
    assert "25.25" in after
    heading = "speech/voicebox"
    assert page.sections_of(after)[heading] == page.sections_of(before)[heading]
    assert "| [`speech/voicebox`](#speechvoicebox) |" in after
    names = {path.name for path in (docs / "images").iterdir()}
    assert names == {"results-speech-voicebox.png", "other.png"}
    page.write_page(tmp_path / "nothing", RECIPES)
    assert (docs / "results.md").read_text() == after


def test_sounds_can_be_listened_to(page: Any, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    wav = np.sin(np.arange(8000) / 10)
    files = [tmp_path / f"speech-0-{kind}.wav" for kind in ("original", "from-text")]
    for path in files:
        soundfile.write(path, wav, 8000)
    (tmp_path / "speech-0.txt").write_text("ab | cd\noriginal | from-text\n")
    copying = {"mel_error": 0.8, "mel_error_copied": 1.0, "mel_error_interpolated": 0.9}
    losses = {"voicebox/flow": 1.0}
    pack(tmp_path, row("speech/voicebox", **copying), losses, *files, tmp_path / "speech-0.txt")
    page.write_page(tmp_path, RECIPES)
    text = (tmp_path / "docs/results.md").read_text()
    assert "| ab / cd | <audio" in text
    assert "**not better" not in text
    [sound] = (tmp_path / "docs/sounds").glob("*from-text.ogg")
    assert abs(soundfile.read(sound)[0][: len(wav)] - wav).max() < 0.2


def test_a_record_that_was_not_verified_or_misses_its_bar_says_so(
    page: Any, tmp_path: Path
) -> None:
    facts = {"benchmark": "learning", "recipe": "image/vqgan", "missed": [], "commit": "abc123"}
    facts |= {"device": "a GPU", "required": {"psnr": 27.0, "seconds": 300}, "psnr": 27.1}
    facts |= {"seconds": 250.0, "bar": {"psnr": 27.65}, "reached": False}
    checked = {"verified": False, "steps": [7, 9], "largest_difference": 0.5, "differs": ["x"]}
    (tmp_path / "records").mkdir()
    goals = {"required": {"over_bicubic": 5.5, "share_of_still": 0.7}, "over_bicubic": 5.6}
    real = {**facts, "data": "real", "flags": "--steps 9", "missed": ["share_of_still"], **goals}
    lines = ["a line of a log", json.dumps({**facts, "verification": checked}), json.dumps(real)]
    (tmp_path / "records/image.jsonl").write_text("\n".join(lines))
    (tmp_path / "docs/sounds").mkdir()
    for name in ("voice-0.ogg", "results-old.ogg"):
        (tmp_path / "docs/sounds" / name).write_bytes(b"")
    page.write_page(tmp_path, RECIPES)
    kept = [path.name for path in (tmp_path / "docs/sounds").iterdir()]
    assert kept == ["voice-0.ogg"]  # of another page
    text = (tmp_path / "docs/results.md").read_text()
    assert "psnr 27.1 (≥ 27), seconds 250 (≤ 300)" in text
    goal = "| `image/vqgan` `--steps 9` | over_bicubic 5.6 (≥ 5.5), share_of_still – (≤ 0.7) |"
    assert goal in text.partition("## Built-in data")[0]
    assert (
        "psnr 27.1 (**bar missed**) | 250 | a GPU | `abc123` | **differs**: x (steps 7, 9" in text
    )


@pytest.mark.slow
def test_a_row_is_trained_judged_and_packed(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("held", 8)):
        folder = tmp_path / "real/images" / split
        folder.mkdir(parents=True)
        rows = [{"file_name": f"{n}.png", "source": "kit", "license": "CC0"} for n in range(count)]
        (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
        for number in range(count):
            noise = np.random.default_rng(number).integers(0, 255, (80, 70, 3), np.uint8)
            Image.fromarray(noise).save(folder / f"{number}.png")
    command = [sys.executable, "benchmarks/results.py", "train", "image/vqgan", "--tiny"]
    command += [
        "--steps",
        "2",
        "--flags",
        "--images.size 32 32",
        "--data",
        str(tmp_path / "real"),
        "--out",
        str(tmp_path / "out"),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    with tarfile.open(tmp_path / "out/results/image-vqgan.tar") as tar:
        assert {"row.json", "metrics.jsonl", "reconstructions.png"} <= set(tar.getnames())
        file = tar.extractfile("row.json")
        assert file is not None
        facts = json.load(file)
    assert facts["samples"] == {"train": 20, "valid": 8}
    assert facts["data"]["held"]["sources"] == [["kit", "CC0", 8]]
    assert facts["metrics"]["judges"]["psnr"]["receipt"]["count"] == 8
    assert str(tmp_path) not in json.dumps(facts)
