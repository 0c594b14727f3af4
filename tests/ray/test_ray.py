"""Training and encoding on Ray: what is refused without it, and what losses on a cluster leave."""

import dataclasses
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet.ray
from harness import assert_same, run, tensors
from quintet import VQGanVAE, rooms
from quintet.engine.errors import RunError
from quintet.engine.settings import updated
from quintet.ray.__main__ import answered
from quintet.ray.cluster import seats

LOSSES = Path(__file__).parent / "losses.py"
sys.path.insert(0, str(LOSSES.parent))  # so that it can be imported


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": (3, 2)}, r"workers is \(3, 2\); give a number above 0, or the fewest"),
        ({"restarts": -1}, "restarts is -1"),
        ({"batchsize": 3}, "has no setting batchsize; did you mean batch_size"),
    ],
)
def test_wrong_calls_are_refused_before_ray_starts(
    keywords: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=said):
        quintet.ray.train("image/vqgan_tiny", run=tmp_path / "run", **keywords)


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'quintet\[ray\]'"):
        quintet.ray.train("image/vqgan_tiny", run=tmp_path / "run")
    with pytest.raises(ImportError, match=r"pip install 'quintet\[ray\]'"):
        quintet.ray.encode("ready/image", tmp_path, tmp_path / "out")


def test_words_of_the_command_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match="there is no sample on Ray; there are train, encode"):
        answered(["sample"])
    with pytest.raises(RunError, match="--run is missing"):
        answered(["train", "image/vqgan_tiny"])
    with pytest.raises(RunError, match="there is no recipe 'image/vqgn'"):
        answered(["train", "image/vqgn", "--run", "runs/a", "--workers", "2:8"])
    assert answered(["train", "--help"]) == 0
    assert "--storage" in capsys.readouterr().out


def test_the_commands_of_the_page_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to Ray itself, which is taken away."""
    monkeypatch.setitem(sys.modules, "ray", None)
    page = (Path(__file__).parents[2] / "docs/scaling.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("python -m quintet.ray")]
    assert len(lines) == 2
    for line in lines:
        with pytest.raises(ImportError, match="needs an extra"):
            answered(shlex.split(line)[3:])


def test_as_many_processes_train_as_divide_the_global_batch() -> None:
    recipe = dataclasses.replace(rooms.recipe_function("image/vqgan_tiny")(), batch_size=2)
    found = {size: seats(recipe, 16, size) for size in range(1, 10)}
    counts = [count for count, _ in found.values()]
    assert counts == [1, 2, 2, 4, 4, 4, 4, 8, 8]
    assert all(r.global_batch(count) == 16 for count, r in found.values())
    with pytest.raises(RunError, match="the global batch is 15; batch_size 2 must divide it"):
        seats(recipe, 15, 4)


@pytest.mark.slow
def test_lost_workers_and_nodes_change_neither_weights_nor_shards(tmp_path: Path) -> None:
    """Against one process without Ray: two train, later one, each with the same global batch."""
    from losses import ENCODED, FEW, RECIPE, SETTINGS

    (tmp_path / "pictures").mkdir()
    for index in range(80):
        values = np.random.default_rng(index).integers(0, 255, (20, 20, 3), np.uint8)
        Image.fromarray(values).save(tmp_path / "pictures" / f"{index:02d}.png")
    torch.manual_seed(0)
    small: dict[str, Any] = {"dim": 8, "patch_size": 4, "channel_multipliers": (1,)}
    VQGanVAE(**small, levels=(8, 5)).save_pretrained(tmp_path / "model")
    words = [sys.executable, str(LOSSES), str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert said.returncode == 0, said.stdout + said.stderr
    blows = [line for line in said.stdout.splitlines() if line.startswith("killed")]
    assert len(blows) == 6, said.stdout
    assert "failed more than 0 times" in said.stdout
    assert "at step 60" in said.stdout

    asked = {**FEW, "workers": FEW["readers"], "accumulate": 2, **SETTINGS}
    del asked["readers"]
    recipe = updated(rooms.recipe_function(RECIPE)(), asked)
    run(recipe, tmp_path / "straight", name=RECIPE)
    assert_same(tensors(tmp_path / "straight", 60), tensors(tmp_path / "run", 60))

    quintet.encode(tmp_path / "model", tmp_path / "pictures", tmp_path / "once", **ENCODED)
    once, coded = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("once", "coded")
    )
    assert coded == once
