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


@pytest.mark.slow
def test_the_speed_of_retopology_is_a_row_for_each_recipe() -> None:
    words = ["--size", "tiny", "--train", "--steps", "1", "--workers", "0"]
    command = [sys.executable, "benchmarks/retopology_speed.py", *words]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["what"] for row in rows] == ["mesh/retopology", "mesh/retopology_large"]
    for row in rows:
        assert row["codes_per_second"]["batch_8"] > 0
        assert row["training"]["ms_per_step"] > 0


def test_a_missed_goal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from goals import short_of  # type: ignore[import-not-found]

    assert short_of("image/vqgan", {"ms": 28.2, "seconds_to_tenth_step": 8.2}) == []
    late = short_of("image/vqgan", {"ms": 28.2, "seconds_to_tenth_step": 20.5})
    assert late == ["image/vqgan: seconds_to_tenth_step is 20.5, to reach 15"]
    assert len(short_of("video/tokenizer", {"error": "out of memory"})) == 2
    codes = {"batch_1": 5_603, "batch_8": 44_830, "batch_32": 100_000}
    assert short_of("generation", codes) == ["generation: batch_32 is 100000, to reach 130000"]
    assert short_of("image/vqgan_tiny", {"ms": 1e9}) == []


def test_goals_of_real_data_can_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from learning import REAL, misses  # type: ignore[import-not-found]

    goals = REAL["speech/vocoder"].floors
    row = {"share_of_mel_error": 0.41, "share_of_pitch_error": 0.45, "seconds": 243.3}
    assert misses(goals, {**row, "alarms": []}) == []
    assert misses(goals, {**row, "share_of_mel_error": 0.51, "alarms": []}) == [
        "share_of_mel_error"
    ]
    assert misses(goals, {**row, "seconds": 601, "alarms": ["x"]}) == ["seconds", "alarms"]
    unjudged = {"duration_error": 0.1, "seconds": 1, "alarms": []}
    assert len(misses(REAL["speech/voicebox_medium"].floors, unjudged)) == 3  # not there: missed


@pytest.mark.parametrize("words", [["--real", "a", "b", "music/mulan"], ["speech/voicebox_medium"]])
def test_a_recipe_without_goals_is_refused(words: list[str]) -> None:
    command = [sys.executable, "benchmarks/learning.py", *words]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "has goals of" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_are_sent_once_a_step(accumulate: int) -> None:
    command = [sys.executable, "benchmarks/scaling.py", "traffic", "image/vqgan_tiny"]
    words = ["--accumulate", str(accumulate)]
    result = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["megabytes"].keys() == {"all_reduce"}
    sent, parameters = found["megabytes"]["all_reduce"] * 1e6, sum(found["parameters"].values())
    assert 4 * parameters <= sent < 4 * parameters + 1000  # the rest are losses and counters
    assert found["overlap"] > 0
