"""README's table and the page of results show the files of results; their tool runs a row."""

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

ROOT = Path(__file__).parents[1]
README = "before\n<!-- results -->\nold\n<!-- /results -->\nafter\n"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("results_page")
    for folder in ("images", "sounds", "results"):
        (tmp_path / "docs" / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text(README)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def facts(name: str, recipe: str, seed: int, beside: int = 0, **metrics: float) -> dict[str, Any]:
    split = {"files": 40, "bytes": 2_000_000, "digest": "feedbeef", "sources": [["kit", "CC0", 40]]}
    return {
        "row": name,
        "recipe": recipe,
        "seed": seed,
        "commands": [f"quintet train {recipe} real/images/train --seed {seed}"],
        "commit": "abc123",
        "device": "a GPU",
        "versions": {"torch": "2.11"},
        "precision": "bf16",
        "steps": 1234,
        "batch": 8,
        "samples": {"train": 39, "valid": 7},
        "beside": beside,
        "seconds": {"train": 61.0 + seed, "stage": 0.0},
        "metrics": {"samples": 7, **metrics},
        "receipts": {},
        "data": {"train": split, "held": {**split, "files": 7}},
    }


def pack(folder: Path, row: dict[str, Any], *files: Path) -> None:
    (folder / "results").mkdir(parents=True, exist_ok=True)
    (folder / "row.json").write_text(json.dumps(row))
    with tarfile.open(folder / "results" / f"{row['row']}-{row['seed']}.tar", "w") as tar:
        for path in (folder / "row.json", *files):
            tar.add(path, path.name)


def test_a_value_is_the_mean_of_all_seeds_between_the_lowest_and_the_highest(
    page: Any, tmp_path: Path
) -> None:
    sheet = np.random.default_rng(0).integers(0, 255, (200, 100, 3), np.uint8)
    Image.fromarray(sheet).save(tmp_path / "reconstructions.png")
    for seed, psnr in enumerate((25.0, 25.5, 26.9)):
        row = facts("image-vqgan", "image/vqgan", seed, seed, psnr=psnr, psnr_bicubic=20.5)
        pack(tmp_path, row, tmp_path / "reconstructions.png")
    page.write_page(tmp_path)
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n<!-- results -->\n| room |")
    assert readme.endswith("<!-- /results -->\nafter\n")
    assert "| PSNR, dB: 25.8 (25 – 26.9) | bicubic 20.5 | 61 |" in readme
    text = (tmp_path / "docs/results.md").read_text()
    assert "| PSNR, dB | 25.8 (25 – 26.9) | bicubic 20.5 |" in text
    assert "1,234 steps of 8 on one a GPU" in text
    assert "3 seeds" in text
    assert "kit 80 (CC0)" in text
    for link in re.findall(r"\]\(((?:images|results|sounds)/[^)]+)\)", text):
        assert (tmp_path / "docs" / link).is_file(), link
    runs = json.loads((tmp_path / "docs/results/image-vqgan.json").read_text())
    assert [run["metrics"]["psnr"] for run in runs] == [25.0, 25.5, 26.9]


def test_rows_that_the_folder_does_not_have_stay_and_times_beside_others_are_marked(
    page: Any, tmp_path: Path
) -> None:
    pack(tmp_path / "a", facts("image-vqgan", "image/vqgan", 0, psnr=21.5, psnr_bicubic=20.5))
    page.write_page(tmp_path / "a")
    clip = facts("video-tokenizer", "video/tokenizer", 1, 2, psnr=30.0, psnr_mean_frame=27.0)
    pack(tmp_path / "b", clip)
    page.write_page(tmp_path / "b")
    readme = (tmp_path / "README.md").read_text()
    assert "| PSNR, dB: 21.5 | bicubic 20.5 | 61 |" in readme
    assert "| PSNR, dB: 30 | bicubic –, mean frame 27 | 62* |" in readme


def test_sounds_can_be_listened_to(page: Any, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    wav = np.sin(np.arange(8000) / 10)
    files = [tmp_path / f"speech-0-{kind}.wav" for kind in ("original", "from-text")]
    for path in files:
        soundfile.write(path, wav, 8000)
    values = {"judge/cer": 0.2, "judge/cer/recordings": 0.15}
    pack(tmp_path, facts("speech-voicebox_medium", "speech/voicebox_medium", 0, **values), *files)
    page.write_page(tmp_path)
    text = (tmp_path / "docs/results.md").read_text()
    assert "| original | from text |" in text
    assert "20.0 % | the recordings 15.0 %" in text
    [sound] = (tmp_path / "docs/sounds").glob("*from-text.ogg")
    assert abs(soundfile.read(sound)[0][: len(wav)] - wav).max() < 0.2


def test_a_goal_is_missed_by_the_number_and_by_the_time(page: Any) -> None:
    row = page.ROWS["video-tokenizer"]
    metrics = {"psnr": 29.0, "psnr_mean_frame": 27.5, "psnr_bicubic": 19.0}
    metrics |= {"motion_error": 0.008, "motion_error_still": 0.01}
    slow = facts("video-tokenizer", "video/tokenizer", 300, **metrics)
    assert row.missed(slow) == [
        "psnr over psnr_mean_frame is 1.5, to reach 2",
        "motion_error is 0.8 of motion_error_still, at most 0.7",
        "361 seconds, at most 300",
    ]
    assert (
        row.missed(
            {
                **slow,
                "seconds": {"train": 200.0},
                "metrics": {**metrics, "psnr": 30, "motion_error": 0.005},
            }
        )
        == []
    )


def test_readme_and_the_page_are_those_of_the_files() -> None:
    """The real ones: nobody has edited a number by hand."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        module = importlib.import_module("results_page")
    finally:
        sys.path.pop(0)
    results = module.known(ROOT / "docs")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert module.with_table(readme, results) == readme
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert module.page_text(results, ROOT / "docs") == page


def test_rows_train_recipes_as_they_are() -> None:
    """Flags say only what the data needs; none changes the model, the losses or the length."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        rows = importlib.import_module("results_page").ROWS.values()
    finally:
        sys.path.pop(0)
    allowed = {"--meshes.too-large", "--model.phonemes", "--variants"}
    for row in rows:
        assert {word for word in row.flags.split() if word.startswith("--")} <= allowed


@pytest.mark.slow
def test_a_row_is_trained_and_packed(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("held", 8)):
        folder = tmp_path / "real/images" / split
        folder.mkdir(parents=True)
        rows = [{"file_name": f"{n}.png", "source": "kit", "license": "CC0"} for n in range(count)]
        (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
        for number in range(count):
            seed = [number, count]  # no picture is in both splits
            noise = np.random.default_rng(seed).integers(0, 255, (80, 70, 3), np.uint8)
            Image.fromarray(noise).save(folder / f"{number}.png")
    command = [sys.executable, "benchmarks/results.py", "train", "image-vqgan", "--seeds", "3"]
    small = "--steps 2 --images.size 32 32 --model.dim 16 --batch-size 4 --workers 0"
    command += ["--flags", small, "--data", str(tmp_path / "real"), "--out", str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "psnr over psnr_bicubic is" in ended.stdout
    with tarfile.open(tmp_path / "out/results/image-vqgan-3.tar") as tar:
        assert {"row.json", "reconstructions.png"} <= set(tar.getnames())
        file = tar.extractfile("row.json")
        assert file is not None
        row = json.load(file)
    assert row["samples"] == {"train": 20, "valid": 8}
    assert row["data"]["held"]["sources"] == [["kit", "CC0", 8]]
    assert str(tmp_path) not in json.dumps(row)
