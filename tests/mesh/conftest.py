"""A small autoencoder, a small transformer around it, and the command line in this process."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness
import quintet
from quintet.engine.config import OptimizerConfig
from quintet.engine.launch import start
from quintet.media.meshes.files import write_mesh
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig, MeshAutoencoderRecipe
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import BuiltinMeshes
from quintet.mesh.transformer.config import (
    GenerationConfig,
    MeshTransformerConfig,
    MeshTransformerRecipe,
)

AUTOENCODER, TRANSFORMER = "mesh/autoencoder_tiny", "mesh/transformer_tiny"
COMMON: dict[str, Any] = {
    "steps": 4,
    "batch_size": 4,
    "workers": 0,
    "log_every": 1,
    "evaluate_every": 4,
    "save_every": 2,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
    "meshes": MeshDataConfig(max_faces=12, builtin_count=32, valid_limit=2),
}
OPTIMISER = OptimizerConfig(learning_rate=2e-3, warmup_steps=2, ema_decay=0.9)


def _autoencoder_recipe(**changes: Any) -> MeshAutoencoderRecipe:
    model = MeshAutoencoderConfig(
        dim=32, message_dim=16, encoder_layers=1, decoder_layers=1, levels=(12, 12, 12)
    )
    settings = {**COMMON, "model": model, "optim": OPTIMISER}
    return MeshAutoencoderRecipe(**settings | changes)


def _transformer_recipe(autoencoder: Path | None, **changes: Any) -> MeshTransformerRecipe:
    model = MeshTransformerConfig(
        dim=32,
        layers=1,
        heads=2,
        head_dim=16,
        fine_layers=1,
        fine_heads=2,
        fine_head_dim=16,
        text_length=48,
        text_layers=1,
    )
    settings = {
        **COMMON,
        "autoencoder": None if autoencoder is None else str(autoencoder),
        "model": model,
        "generation": GenerationConfig(count=2, reference_count=4),
        "optim": OPTIMISER,
    }
    return MeshTransformerRecipe(**settings | changes)


def _train(recipe: Any, path: Path, mode: Any = "new", measured: bool = False) -> int:
    """Without evaluation, which would generate meshes for most of the time."""
    name = AUTOENCODER if isinstance(recipe, MeshAutoencoderRecipe) else TRANSFORMER
    go = harness.task_of(name, measured)
    return start(go, recipe, path, name=name, mode=mode, load=quintet.load, progress=False)


@pytest.fixture(scope="session")
def autoencoder_recipe() -> Callable[..., MeshAutoencoderRecipe]:
    return _autoencoder_recipe


@pytest.fixture(scope="session")
def transformer_recipe() -> Callable[..., MeshTransformerRecipe]:
    return _transformer_recipe


@pytest.fixture(scope="session")
def train() -> Callable[..., int]:
    """Trains a recipe into a folder."""
    return _train


@pytest.fixture(scope="session")
def autoencoder_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps. Never to be written to."""
    run = tmp_path_factory.mktemp("autoencoder") / "run"
    _train(_autoencoder_recipe(), run, measured=True)
    return run


@pytest.fixture(scope="session")
def autoencoder_model(autoencoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What it has learned, as an exported folder."""
    path = tmp_path_factory.mktemp("exported") / "autoencoder"
    return quintet.load(autoencoder_run).save_pretrained(path)


@pytest.fixture(scope="session")
def other_autoencoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, with other weights."""
    torch.manual_seed(7)
    model = quintet.MeshAutoencoder(_autoencoder_recipe().model)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.save_pretrained(tmp_path_factory.mktemp("other") / "autoencoder")


@pytest.fixture(scope="session")
def transformer_run(autoencoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps around that autoencoder. Never to be written to."""
    run = tmp_path_factory.mktemp("transformer") / "run"
    _train(_transformer_recipe(autoencoder_run), run)
    return run


@pytest.fixture
def transformer_copy(transformer_run: Path, tmp_path: Path) -> Path:
    """The same, to do with as one likes; its autoencoder's run is not where it was told."""
    return Path(shutil.copytree(transformer_run, tmp_path / "copied"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def some_meshes() -> Callable[[int], list[dict[str, Any]]]:
    """Built-in samples of at most 12 faces: vertices, faces and text."""

    def make(count: int, most: int = 12) -> list[dict[str, Any]]:
        data = BuiltinMeshes(MeshDataConfig(max_faces=most, builtin_count=count), "train")
        return [data.keyed(index, None) for index in range(count)]

    return make


@pytest.fixture
def chairs(tmp_path: Path) -> Path:
    """Sixteen sound files of three formats, with captions by sub-folder."""
    folder = tmp_path / "chairs"
    data = BuiltinMeshes(MeshDataConfig(max_faces=12, builtin_count=16), "train")
    for index in range(16):
        sample = data.keyed(index, None)
        path = folder / ("tall_box", "box")[index > 7]
        path.mkdir(parents=True, exist_ok=True)
        suffix = ("obj", "ply", "glb")[index - index // 3 * 3]
        write_mesh(path / f"{index:02d}.{suffix}", sample["vertices"], sample["faces"])
    return folder


@pytest.fixture(scope="session")
def replaced() -> Callable[..., Any]:
    """`dataclasses.replace` of a field of a field: replaced(recipe, meshes={"turn": 3.0})."""

    def change(recipe: Any, **groups: dict[str, Any]) -> Any:
        actual = {n: dataclasses.replace(getattr(recipe, n), **v) for n, v in groups.items()}
        return dataclasses.replace(recipe, **actual)

    return change


@pytest.fixture
def tetrahedron() -> tuple[np.ndarray, np.ndarray]:
    points = np.array([[0, 0, 0], [0.9, 0, 0], [0, 0.9, 0], [0, 0, 0.9]], np.float32)
    return points, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 encoder of random weights over few words, as transformers saves one."""
    transformers = pytest.importorskip("transformers", reason="needs quintet[text]")
    tokenizers = pytest.importorskip("tokenizers", reason="needs quintet[text]")
    path = tmp_path_factory.mktemp("t5")
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "box": 4, "pyramid": 5, "prism": 6}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=8, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    transformers.T5EncoderModel(config).save_pretrained(path)
    return path
