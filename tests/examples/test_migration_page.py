"""The Quintet scripts of docs/migration.md run, at small sizes."""

import re
from pathlib import Path

import pytest

from examples.made import put_media
from examples.old_parameters import SECTIONS
from examples.scripts import run_script
from examples.test_migration import section
from harness import lines

SMALLER = {
    "bins=128": "bins=128, dim=16, message_dim=8",
    "dim=512, max_faces=128": "dim=16, layers=1, heads=1, fine_heads=1, max_faces=16",
    "init_dim=64": "init_dim=8",
    "max_dim=512": "max_dim=8",
    "size=128": "size=32",
    "VQGanVAE(dim=64": "VQGanVAE(dim=8",
    "rate=16_000, dim=512, layers=6, heads=8": "rate=16_000, dim=16, layers=1, heads=1",
    "text_dim=512, text_layers=6, text_heads=8": "text_dim=16, text_layers=1, text_heads=1",
    "dim=512, depth=12, head_dim=64, heads=8": "dim=16, depth=1, head_dim=16, heads=1",
    'data="videos"': 'data="media", frames=5',
    'data="photos"': 'data="media"',
    "batch_size=4,": "batch_size=2,",
    "batch_size=16,": "batch_size=2,",
    "batch_size=32,": "batch_size=4,",
    "accumulate=8": "accumulate=1",
    "steps=100_000": "steps=2",
    "steps=50_000": "steps=2",
    "steps=20_000": "steps=2",
    "steps=5000": "steps=2",
}
BEFORE = """
import torch
from examples.made import Meshes, sound
dataset = DATASET
video, wavs = torch.rand(1, 3, 5, 32, 32), sound(0)[None]
"""
ITEMS = {
    "meshgpt-pytorch": "Meshes()",
    "musiclm-pytorch": "[(sound(n), 'a tone') for n in range(20)]",
    "voicebox-pytorch": "[(sound(n), 'a') for n in range(20)]",
}


def ours(package: str) -> str:
    (block,) = re.findall(r"^Quintet:\n\n```python\n(.*?)^```", section(package), re.M | re.S)
    return block


@pytest.mark.slow
@pytest.mark.parametrize("package", sorted(set(SECTIONS.values())))
def test_the_quintet_script_of_the_page_runs(package: str, tmp_path: Path) -> None:
    text = ours(package)
    for said, run in SMALLER.items():
        text = text.replace(said, run)
    text = text.replace('run="', 'workers=0, run="')
    put_media(tmp_path / "media")
    script = tmp_path / "ours.py"
    script.write_text(BEFORE.replace("DATASET", ITEMS.get(package, "None")) + text)
    answer = run_script(script, folder=tmp_path)
    assert answer.status == 0, answer.err
    assert [lines(run.parent)[-1]["step"] for run in tmp_path.glob("runs/*/metrics.jsonl")]


def test_every_substitution_still_applies() -> None:
    shown = "".join(ours(package) for package in set(SECTIONS.values()))
    assert [said for said in SMALLER if said not in shown] == []
