"""`quintet encode`, and generators that train from its shards."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Quintet, Said, picture

import quintet as library
import small
from harness import assert_same, lines, tensors, trajectory
from quintet.media.meshes.files import write_mesh
from quintet.mesh.shapes import build, compose

ASKED: dict[str, Any] = {"size": (16, 16), "variants": 2, "shard_samples": 4, "device": "cpu"}
FEW: list[object] = [
    *("--steps", 3, "--batch-size", 4, "--workers", 0, "--precision", "fp32", "--device", "cpu"),
    *("--model.dim", 16, "--model.layers", 1, "--generation.count", 0, "--log-every", 1),
    *("--images.size", 16, 16, "--images.valid-limit", 4, "--trackers"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer with ids, another one, and one with latents."""
    small: dict[str, Any] = {"dim": 8, "patch_size": 4, "channel_multipliers": (1,)}
    torch.manual_seed(0)
    made = {
        "image/maskgit": library.VQGanVAE(**small, levels=(8, 5)),
        "other": library.VQGanVAE(**small, levels=(8, 5)),
        "image/flow": library.VQGanVAE(**small, quantiser="kl", latent_channels=4),
    }
    return {
        n: m.save_pretrained(tmp_path_factory.mktemp("model") / "saved") for n, m in made.items()
    }


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of metadata and of folders; one file is damaged."""
    folder = tmp_path_factory.mktemp("pictures")
    for index in range(23):
        picture(folder / f"{'a_class/' if index > 15 else ''}{index:02d}.png", index)
    (folder / "05.png").write_bytes((folder / "05.png").read_bytes()[:200])
    rows = [{"file_name": f"{index:02d}.png", "text": f"number {index}"} for index in range(16)]
    (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def words(model: Path, data: Path, out: object, *more: object) -> list[str]:
    """The command in shards of four samples."""
    few = ("--size", 16, 16, "--variants", 2, "--shard-samples", 4, "--workers", 0)
    asked = ("encode", model, data, "--out", out, *few, "--device", "cpu", *more)
    return [str(word) for word in asked]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.by_default("image/maskgit")
@pytest.mark.parametrize("recipe", ["image/maskgit", "image/flow"])
def test_training_from_shards_of_codes_equals_training_from_the_pixels(
    recipe: str, quintet: Quintet, models: dict[str, Path], pictures: Path, tmp_path: Path
) -> None:
    said = quintet(*words(models[recipe], pictures, tmp_path / "coded"))
    assert said.status == 0, said
    assert "23 images in 6 shards" in said.out
    assert f"quintet train {recipe} {tmp_path / 'coded'} --tokenizer" in said.out
    for data, run in ((pictures, tmp_path / "pixels"), (tmp_path / "coded", tmp_path / "codes")):
        few = [*FEW, "--max-damaged", 1, "--variants", 2, "--tokenizer", models[recipe]]
        trained = quintet("train", f"{recipe}_tiny", data, "--run", run, *few)
        assert trained.status == 0, trained
    assert trajectory(tmp_path / "pixels") == trajectory(tmp_path / "codes")
    assert lines(tmp_path / "codes")[0]["step"] == 1
    assert_same(tensors(tmp_path / "pixels", 3), tensors(tmp_path / "codes", 3))


def test_shards_are_the_same_whoever_writes_them(
    quintet: Quintet, models: dict[str, Path], pictures: Path, tmp_path: Path
) -> None:
    """All at once; as two processes, one after the other; and after a stop with half of a shard."""
    model = models["image/maskgit"]
    about = library.encode(model, pictures, tmp_path / "once", **ASKED)
    assert about["samples"] == 23
    for part in (0, 1):
        library.encode(model, pictures, tmp_path / "two", part=(part, 2), **ASKED)
        if part == 0:
            assert len(list((tmp_path / "two").glob("*.index"))) == 3
    once = content(tmp_path / "once")
    assert content(tmp_path / "two") == once
    assert len(once) == 13
    (tmp_path / "two" / "shard-000001.index").unlink()
    kept = (tmp_path / "two" / "shard-000002.tar").stat().st_mtime_ns
    assert quintet(*words(model, pictures, tmp_path / "two")).status == 0
    assert content(tmp_path / "two") == once
    assert (tmp_path / "two" / "shard-000002.tar").stat().st_mtime_ns == kept


def refusal(said: Said) -> str:
    assert said.status == 2, said
    return said.err


def test_shards_of_another_model_are_refused(
    quintet: Quintet, models: dict[str, Path], pictures: Path, tmp_path: Path
) -> None:
    own, other, out = models["image/maskgit"], models["other"], tmp_path / "coded"
    assert quintet(*words(own, pictures, out)).status == 0
    again = refusal(quintet(*words(other, pictures, out)))
    assert "begun with another model" in again
    assert "choose another --out" in again
    fewer = quintet(*words(own, pictures, out, "--shard-samples", 5))
    assert "another shard_samples, 4 and not 5" in refusal(fewer)
    train = ("train", "image/maskgit_tiny", out, "--run", tmp_path / "run", *FEW)
    said = refusal(quintet(*train, "--tokenizer", other))
    assert "of another model than the tokenizer of this run, or of another checkpoint" in said
    assert f"they are of {own}" in said
    many = refusal(quintet(*train, "--tokenizer", own, "--variants", 3))
    assert "has 2 variants of each sample" in many
    pixels = quintet("train", "image/vqgan_tiny", out, "--run", tmp_path / "run")
    assert "no shard holds images" in refusal(pixels)
    for suffix in ("index", "tar"):
        (out / f"shard-000003.{suffix}").unlink()
    assert "1 of 6 shards are missing" in refusal(quintet(*train, "--tokenizer", own))


def test_what_cannot_be_encoded_is_refused(
    quintet: Quintet, models: dict[str, Path], pictures: Path, tmp_path: Path
) -> None:
    model, out = models["image/maskgit"], tmp_path / "out"
    for said, asked in {
        "does not exist": words(model, tmp_path / "nothing", out),
        "is not empty and has no encoded.json": words(model, pictures, pictures),
        "give a folder here": words(model, pictures, "memory://b/o"),
        "the tokenizer has ids and no latents": words(
            model, pictures, out, "--recipe", "image/flow"
        ),
        "variants is 0; give 1 or more": words(model, pictures, out, "--variants", 0),
        "cannot be encoded for": words(model, pictures, out, "--recipe", "image/vqgan"),
    }.items():
        assert said in refusal(quintet(*asked))
    assert not out.exists()


@pytest.mark.slow
def test_meshes_are_encoded_as_well(quintet: Quintet, tmp_path: Path) -> None:
    model = small.autoencoder().save_pretrained(tmp_path / "model")
    (tmp_path / "shapes").mkdir()
    for index in range(12):
        vertices, faces = build(compose(index, 0, 40))
        write_mesh(tmp_path / "shapes" / f"{index:02d}.obj", vertices, faces)
    out = tmp_path / "coded"
    few = ("--shard-samples", 5, "--variants", 2, "--device", "cpu")
    said = quintet("encode", model, tmp_path / "shapes", "--out", out, *few)
    assert said.status == 0, said
    for data, run in ((tmp_path / "shapes", "pixels"), (out, "codes")):
        steps = ["--steps", 3, "--batch-size", 2, "--workers", 0, "--device", "cpu", "--trackers"]
        shapes = ["--meshes.max-faces", 100, "--meshes.valid-limit", 2, "--model.dim", 16]
        shapes += ["--generation.count", 0]
        stage = [
            "--autoencoder",
            model,
            "--variants",
            2,
            "--generation.count",
            0,
            "--model.text",
            "none",
        ]
        asked = ("train", "mesh/transformer_tiny", data, "--run", tmp_path / run)
        trained = quintet(*asked, *steps, *shapes, *stage)
        assert trained.status == 0, trained
    assert_same(tensors(tmp_path / "pixels", 3), tensors(tmp_path / "codes", 3))


@pytest.mark.slow
def test_kills_leave_the_bytes_of_undisturbed_shards(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Two processes are killed at random moments and started again."""
    for index in range(200):
        picture(tmp_path / "many" / f"{index:03d}.png", index, 20, 20)
    model, out, chance = models["image/maskgit"], tmp_path / "killed", random.Random(0)
    library.encode(model, tmp_path / "many", tmp_path / "once", **ASKED)
    run = [sys.executable, "-m", "quintet", *words(model, tmp_path / "many", out)]
    for attempt in range(4):
        children = [
            subprocess.Popen(run, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"})
            for rank in range(2)
        ]
        waiting = len(list(out.glob("*.index"))) + chance.randint(1, 12)
        while attempt < 3 and any(child.poll() is None for child in children):
            if len(list(out.glob("*.index"))) >= waiting:
                time.sleep(0.05 * chance.random())
                for child in children:
                    child.send_signal(signal.SIGKILL)
            time.sleep(0.002)
        if [child.wait(100) for child in children] == [0, 0]:
            break
    assert attempt == 3
    assert content(out) == content(tmp_path / "once")
