"""The short form of benchmarks/soak.py: a run of many steps holds what it held at its start."""

import runpy
from pathlib import Path

SOAK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/soak.py"))


def test_memory_files_and_disk_do_not_grow_over_hundreds_of_steps(tmp_path: Path) -> None:
    taken = SOAK["soak"](400, tmp_path / "run", samples=8)
    assert len(taken) >= 6
    assert not [said for said in SOAK["grown"](taken) if not said.startswith("ms_per_step")]


def test_growth_is_seen() -> None:
    sample = SOAK["Sample"]
    leaking = [sample(step, 100.0 + step, 30 + step, 8.0, 1.0) for step in range(40)]
    said = " ".join(SOAK["grown"](leaking))
    assert "memory_mb grew" in said
    assert "files grew" in said
    assert "disk_kb" not in said
    for each, grew in ((8, True), (16, False)):  # in 20 samples three files more, and one
        slowly = [sample(step, 100.0, 30 + step // each, 8.0, 1.0) for step in range(40)]
        assert bool(SOAK["grown"](slowly)) == grew
