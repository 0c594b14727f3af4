"""The model card of an export."""

import json
from pathlib import Path

import pytest
from torch import nn

from quintet.report.card import model_card


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "cats"
    folder.mkdir()
    settings = {"steps": 9, "seed": 3, "data": "/home/somebody/private", "init_from": "/home/x"}
    about = {"recipe": "image/vqgan", "quintet": "0.1.0", "global_batch": 8, "settings": settings}
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def test_the_card_says_how_the_model_came_about(run: Path) -> None:
    (run / "metrics.jsonl").write_text(
        '{"step": 3, "val/psnr": 20.0}\n{"step": 9, "val/psnr": 21.25, "val_live/psnr": 1.0}\n'
    )
    card = model_card(run, nn.Linear(10, 10))
    assert card.startswith("---\nlibrary_name: quintet\n---\n# Linear of cats\n")
    for words in ("`image/vqgan`", "9 steps of 8 samples", "seed 3", "a data set of its own"):
        assert words in card
    assert "| psnr | 21.25 |" in card
    assert "Numbers at step 9" in card


def test_the_card_holds_no_path_of_the_machine_it_was_made_on(run: Path) -> None:
    assert "/home" not in model_card(run, nn.Linear(1, 1))


def test_a_run_that_was_not_measured_says_so(run: Path) -> None:
    assert "Not measured." in model_card(run, nn.Linear(1, 1))
