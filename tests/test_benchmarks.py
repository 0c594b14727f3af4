"""The speed benchmarks run as documented, at their smallest size."""

import json
import os
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


def test_a_pair_misses_its_bar_in_either_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from pairs import verdict  # type: ignore[import-not-found]

    close = [[1.0, 1.01, 0.99, 1.005], [0.995, 1.0, 1.01, 0.99]]
    equal = verdict(close, 0.02)
    assert (equal["missed"], equal["shown"]) == (False, True)
    for factor in (0.97, 1.03):
        assert verdict([[value * factor for value in lane] for lane in close], 0.02)["missed"]
    noisy = verdict([[0.8, 1.0, 1.2], [0.9, 1.0, 1.1]], 0.02)
    assert (noisy["missed"], noisy["shown"]) == (False, False)
    assert not verdict([[1.0, 1.0]], 0.02)["shown"]  # of two values nothing is known


def test_lanes_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from pairs import cores_of, lanes_of  # type: ignore[import-not-found]

    assert lanes_of(cores_of("4-9,12"), 3) == [[4, 5], [6, 7], [8, 9]]
    with pytest.raises(SystemExit, match="3 lanes need as many cores; there are 2"):
        lanes_of([0, 1], 3)


def test_turns_are_compared_with_their_neighbours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from ray_turns import Failed, pace, ratios  # type: ignore[import-not-found]

    turns = [("torchrun", 10.0), ("ray", 9.0), ("ray", 18.0), ("torchrun", 20.0), ("failed", 0.0)]
    assert ratios(turns) == [[0.9], [0.9]]
    assert ratios(turns, same=True) == [[2.0]]
    times = {10: 30.0, 20: 31.0, 30: 31.5, 40: 32.5, 50: 99.0}  # slow until the first checkpoint
    rows = [{"step": step, "seconds": seconds} for step, seconds in times.items()]
    lines = [json.dumps(row) for row in [*rows, {"step": 40, "val/loss": 1.0}]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert pace(tmp_path, 20) == pytest.approx(20 / 1.5)
    with pytest.raises(Failed, match="50 steps are too few"):
        pace(tmp_path, 40)


@pytest.mark.parametrize(("ray", "status"), [(10.2, 0), (9.0, 1), (0.0, 1)])
def test_ray_must_be_as_fast_as_torchrun(
    ray: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import ray_turns  # type: ignore[import-not-found]

    order: list[str] = []

    def pace_of(options: object, name: str, *_: object) -> float:
        order.append(name)
        if name == "ray" and order.count("ray") == 2 and not ray:
            raise ray_turns.Failed("ray ended with status 1")
        return (ray or 10.0) if name == "ray" else 10.0

    monkeypatch.setattr(ray_turns, "pace_of", pace_of)
    monkeypatch.setattr(sys, "argv", ["ray_turns.py", "--minutes", "0"])
    with pytest.raises(SystemExit) as ended:
        ray_turns.main()
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended.value.code == status
    if ray:
        assert order == ["torchrun", "ray", "ray", "torchrun"]
        assert (row["ratio"]["median"], row["missed"]) == (ray / 10, bool(status))
    else:
        assert (row["failures"], row["missed"]) == (1, False)


PAIRS = {
    "stored_runs": ["--minutes", "0.01", "--steps", "2"],
    "ray_turns": ["--minutes", "0.01", "--seconds", "6", "--save-every", "2", "--batch-size", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_comparison_of_runs_has_a_verdict(name: str) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", *PAIRS[name], "--bar", "1000"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    variables = {**os.environ, "PYTHONPATH": paths}
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout.splitlines()[-1])
    assert row["benchmark"] == name
    assert row["ratio"]["median"] > 0
    assert row["control"]["count"] > 0
    assert not row["shown"]  # of so few values


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
