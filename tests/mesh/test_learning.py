"""A short proof that both stages learn; the floors of the whole recipes are in benchmarks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
from harness import lines
from quintet.engine.data.stream import Fixed
from quintet.engine.evaluate import measure
from quintet.engine.machine.world import World
from quintet.mesh import agreement as judge
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import BuiltinMeshes

SHARED: dict[str, Any] = {
    "warmup_steps": 10,
    "ema_decay": 0.9,
    "evaluate_every": 0,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "trackers": (),
    "progress": False,
}


def before_and_after(
    run: Path, steps: int, rate: float, **model: Any
) -> tuple[dict[str, float], dict[str, float]]:
    """Held-out measures of a small autoencoder, untrained and trained."""
    torch.manual_seed(0)
    layers = {"message_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
    trainer = quintet.MeshAutoencoderTrainer(
        quintet.MeshAutoencoder(dim=32, **layers, **model),
        meshes=MeshDataConfig(max_faces=24, builtin_count=512, valid_limit=64),
        steps=steps,
        batch_size=16,
        learning_rate=rate,
        save_every=steps,
        run=run,
        **SHARED,
    )
    task, world = trainer.task(trainer.recipe), World(trainer.recipe)
    fixed = Fixed(task.data("valid"), task.collate, 16, world, 0)
    nets = {"autoencoder": trainer.model.eval()}
    with torch.no_grad():
        untrained = measure(task, nets, fixed, world)
    trainer.train()
    last = [line for line in lines(run) if "val/loss" in line][-1]
    return untrained, {name: last[f"val/{name}"] for name in untrained}


@pytest.mark.slow
def test_an_autoencoder_with_scarce_codes_learns_what_they_leave_out(tmp_path: Path) -> None:
    """64 steps for 128 bins: a code says where, and the faces around it say where exactly."""
    before, after = before_and_after(tmp_path / "run", 100, 4e-3, levels=(8, 8, 8))
    assert after["loss"] < 0.85 * before["loss"]
    assert after["exact"] > before["exact"] + 0.02
    assert after["within_one"] > 0.99


@pytest.mark.slow  # learned codes learn in autoencoder/test_model.py as well
def test_an_autoencoder_with_a_learned_codebook_learns_from_nothing(tmp_path: Path) -> None:
    settings = {"quantiser": "vq", "codebook_bits": 8, "latent_dim": 16, "depth": 1}
    before, after = before_and_after(tmp_path / "run", 60, 1e-2, **settings)
    assert after["loss"] < 0.7 * before["loss"]
    assert after["within_one"] > 1.3 * before["within_one"]
    assert after["chamfer_bins"] < 0.8 * before["chamfer_bins"]


@pytest.mark.slow  # benchmarks/learning.py trains the recipe itself, mesh/autoencoder_compact_tiny
def test_an_autoencoder_learns_the_bits_that_pointers_leave_out(tmp_path: Path) -> None:
    settings = {"quantiser": "pointer", "depth": 1, "cell_bits": 2, "pointers": (2, 16, 64)}
    before, after = before_and_after(tmp_path / "run", 60, 4e-3, **settings)
    assert after["bits_per_face"] < 26
    assert after["loss"] < 0.8 * before["loss"]
    assert after["exact"] > before["exact"] + 0.03


def of_each_kind(count: int) -> list[dict[str, Any]]:
    """Solids of at most twelve faces, no two of a kind."""
    data = BuiltinMeshes(MeshDataConfig(max_faces=12, builtin_count=200), "train")
    actual: dict[str | None, dict[str, Any]] = {}
    for index in range(len(data)):
        actual.setdefault(data.shape(index).kind, data.keyed(index, None))
    return list(actual.values())[:count]


def test_a_transformer_learns_four_meshes_by_their_captions(tmp_path: Path) -> None:
    shapes = of_each_kind(4)
    captions = [shape["text"] for shape in shapes]
    assert len(set(captions)) == 4
    torch.manual_seed(0)
    layers = {"message_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
    autoencoder = quintet.MeshAutoencoder(dim=32, **layers, levels=(12, 12, 12))
    coarse = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16}
    fine = {"fine_layers": 1, "fine_heads": 2, "fine_head_dim": 16}
    text = {"text_layers": 1, "text_length": 40}
    trainer = quintet.MeshTransformerTrainer(
        quintet.MeshTransformer(autoencoder, **coarse, **fine, **text, max_faces=12),
        shapes,
        valid_fraction=0.0,
        steps=80,
        batch_size=4,
        learning_rate=1e-2,
        text_drop=0.0,
        save_every=80,
        log_every=10,
        run=tmp_path / "run",
        **SHARED,
    )
    trainer.train()
    losses = [r["transformer/loss"] for r in lines(tmp_path / "run") if "transformer/loss" in r]
    assert losses[-1] < 0.05 * losses[0]
    for order in (captions, captions[::-1]):
        for caption, mesh in zip(order, trainer.generate(order, temperature=0)):
            assert judge.agrees(caption, mesh.vertices.numpy(), mesh.faces.numpy()), caption
            assert judge.valid(mesh.vertices.numpy(), mesh.faces.numpy())
    loaded = quintet.load(tmp_path / "run")
    codes = loaded.generate(captions, temperature=0, return_codes=True)
    for row, shape in zip(codes, shapes):
        expected = autoencoder.tokenize(shape["vertices"][None], shape["faces"][None])[0]
        assert torch.equal(row[: len(expected)], expected)
        assert (row[len(expected) :] == -1).all()
