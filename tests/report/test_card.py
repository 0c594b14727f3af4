"""The model card of an export."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from quintet.engine.runs import checkpoint
from quintet.media.folder import listing
from quintet.report.card import copy_samples, model_card

SETTINGS = {
    "steps": 9,
    "seed": 3,
    "data": "/home/somebody/private/cats",
    "init_from": "/home/x/older",
    "model": {"text_path": "/home/x/t5", "windows": "C:\\Users\\x\\t5"},
}


def make_run(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    about = {"recipe": "image/vqgan", "quintet": "0.1.0", "global_batch": 8, "settings": SETTINGS}
    (folder / "config.json").write_text(json.dumps({**about, **changes}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "cats")


def write_metrics(run: Path, **numbers: float) -> None:
    first = {"step": 9, "samples": 72, "seconds": 12.5, "samples_per_second": 5.0}
    second = {"step": 9, "val_live/psnr": 1.0, **{f"val/{n}": v for n, v in numbers.items()}}
    (run / "metrics.jsonl").write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")


def header_of(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n")[1])


class VQGanVAE(nn.Linear):
    """A stand-in: only its name matters."""


def test_the_card_states_how_the_model_was_trained(run: Path) -> None:
    write_metrics(run, psnr=21.25)
    state = {"samples": 72, "seconds": 12.5, "processes": 2, "device": "cuda"}
    (run / "checkpoints").mkdir()
    more = {"precision": "bf16", "versions": {"torch": "2.13.0"}}
    files = {"vae": {"x": torch.ones(2)}, "vae.ema": {"x": torch.ones(2)}}
    checkpoint.write(run / "checkpoints", 9, files, {**state, **more})
    card = model_card(run, nn.Linear(10, 10))
    assert "exponential moving average" in card
    assert "# Linear: cats\n" in card
    for text in ("`image/vqgan`", "9 steps of 8 samples", "seed 3", "the data set cats:"):
        assert text in card
    assert "72 samples in 12.5 seconds on 2 process(es), cuda, bf16, torch 2.13.0." in card
    assert "the weights of older" in card
    assert "Validation metrics at step 9" in card
    assert "Licence" in card


@pytest.mark.parametrize(
    ("data", "words"),
    [(None, "Quintet's built-in data"), ("python:Own", "a Python data set")],
)
def test_the_card_names_the_training_data(data: str, words: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", settings={**SETTINGS, "data": data})
    assert f"on {words}:" in model_card(run, nn.Linear(1, 1))


def test_metrics_are_listed_with_their_baselines(run: Path) -> None:
    write_metrics(run, psnr=21.25, psnr_mean_colour=13.0, ssim=0.5, psnr_bicubic=16.0)
    card = model_card(run, nn.Linear(1, 1))
    assert "| psnr | 21.25 | mean\\_colour 13, bicubic 16 |" in card
    assert "| ssim | 0.5 |  |" in card


def test_the_header_is_valid_yaml_for_the_hub(run: Path) -> None:
    from huggingface_hub import ModelCard

    write_metrics(run, psnr=21.25, psnr_mean_colour=13.0, no=1.0)
    card = model_card(run, VQGanVAE(1, 1))
    header = header_of(card)
    assert header["library_name"] == "quintet"
    assert header["license"] == "unknown"
    assert header["pipeline_tag"] == "image-feature-extraction"
    assert header["tags"] == ["quintet", "image"]
    assert header["metrics"] == ["psnr", "no"]  # unquoted YAML would read it as false
    assert ModelCard(card).data.to_dict() == header


def test_the_card_contains_no_local_path(run: Path) -> None:
    card = model_card(run, nn.Linear(1, 1))
    for word in ("/home", "Users", "somebody", "private"):
        assert word not in card
    assert '"text_path": "t5"' in card


def test_a_run_without_an_evaluation_is_reported_as_such(run: Path) -> None:
    assert "Not evaluated." in model_card(run, nn.Linear(1, 1))


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    evil = '](javascript:x)\n---\n<script>alert(1)</script> | ``` \x1b[2J `code` "'
    settings = {**SETTINGS, "data": f"/a/{evil}", "seed": evil, "note": evil}
    run = make_run(tmp_path / "run", recipe=evil, settings=settings, global_batch=evil)
    write_metrics(run, **{evil: 3.0})
    card = model_card(run, nn.Linear(1, 1))
    header_of(card)
    assert "\x1b" not in card
    body = card.split("\n---\n", 1)[1]
    prose, _, block = body.partition("```json\n")
    outside = re.sub(r"`[^`]*`", "", prose.replace("\\`", ""))  # a code span shows what it holds
    assert "<script>" not in outside
    assert "](javascript" not in outside
    assert block.count("```") == 1
    assert json.loads(block.split("\n```")[0])["note"]


def test_samples_are_copied_embedded_and_linked(run: Path, tmp_path: Path) -> None:
    for step in ("step-00000003", "step-00000009"):
        (run / "exhibits" / step).mkdir(parents=True)
    folder = run / "exhibits/step-00000009"
    for name in ("a.png", "b.wav", "c.glb", "evil](x).png", "d.html"):
        (folder / name).write_bytes(name.encode())
    (run / "exhibits/step-00000003/old.png").write_bytes(b"old")
    (folder / "secret.png").symlink_to("/etc/hostname")
    names = copy_samples(run, tmp_path / "out")
    assert names == ["a.png", "b.wav", "c.glb"]
    assert sorted(p.name for p in (tmp_path / "out/samples").glob("[!.]*")) == names
    assert listing(tmp_path / "out", [".png", ".wav", ".glb"]).outputs == 3  # no training data
    card = model_card(run, nn.Linear(1, 1), names)
    assert "![a](samples/a.png)" in card
    assert "- [b.wav](samples/b.wav)" in card
    assert "- [c.glb](samples/c.glb)" in card
