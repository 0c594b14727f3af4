"""A short proof that it learns; the floors of the whole recipes are in benchmarks/learning.py."""

import json
from pathlib import Path

import pytest

from quintet.cli import main

SETTINGS = {
    "--steps": "80",
    "--batch-size": "8",
    "--workers": "0",
    "--images.valid-limit": "32",
    "--evaluate-every": "80",
    "--save-every": "0",
    "--losses.adversarial": "none",
    "--model.dim": "32",
}
SMALL = [word for pair in SETTINGS.items() for word in pair]
SMALL += ["--images.size", "32", "32", "--trackers"]


def test_a_minute_part_of_the_tiny_recipe_beats_the_mean_colour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "image/vqgan_tiny", "--run", str(tmp_path / "run"), *SMALL])
    assert ended.value.code == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in lines if "val/psnr" in line]
    assert last["val/psnr"] > last["val/psnr_mean_colour"] + 1.5
    assert last["val/codebook_usage"] > 0.1


@pytest.mark.slow
def test_the_tiny_recipe_reaches_its_floors(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = Path(__file__).parents[2] / "benchmarks/learning.py"
    subprocess.run([sys.executable, str(script), "image/vqgan_tiny"], check=True)
