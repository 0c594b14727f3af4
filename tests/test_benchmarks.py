"""The speed benchmarks run as documented, at their smallest size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEEDS = ["image_speed", "video_speed", "music_speed", "speech_speed", "mesh_speed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEEDS)
def test_a_speed_benchmark_prints_a_row(name: str) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", "--size", "tiny", "--workers", "0"]
    small = ["--batch-size", "2", "--steps", "1"]
    if name == "mesh_speed":  # generation takes minutes on a CPU
        small += ["--only", "autoencoder", "transformer"]
    result = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert rows
    for row in rows:
        assert row["ms_per_step"] > 0
        assert row["seconds_to_tenth_step"] > 0
