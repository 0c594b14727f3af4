"""Two stages: an autoencoder that is copied and frozen, and the transformer that is built on it."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import harness
import quintet
from harness import assert_same, lines, tensors, trajectory
from quintet.engine.errors import RunError, Stopped
from quintet.engine.machine.world import World
from quintet.engine.runs.cache import Cache
from quintet.engine.runs.frozen import digest
from quintet.media.meshes.files import read_mesh, write_mesh
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.autoencoder.model import MeshAutoencoder
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import BuiltinMeshes, Collate, open_data
from quintet.mesh.transformer.data import CodeData
from quintet.mesh.transformer.model import MeshTransformer
from quintet.mesh.transformer.task import TransformerTask

TRANSFORMER = "mesh/transformer_tiny"
TRAIN = ["train", TRANSFORMER, "--device", "cpu", "--workers", "0", "--trackers"]


def frozen_of(run: Path) -> Path:
    return run / "frozen/autoencoder"


def shards(cache: Path, kind: str = "mesh-codes") -> dict[str, dict[str, Tensor]]:
    return {path.name: load_file(path) for path in sorted((cache / kind).glob("*.safetensors"))}


# -- what a transformer is built on -----------------------------------------------------------


def test_a_transformer_asks_for_its_autoencoder_and_leaves_nothing(
    tmp_path: Path, cli: Callable
) -> None:
    result = cli(*TRAIN, "--run", tmp_path / "run")
    assert "--autoencoder" in result.sentence
    assert "mesh/autoencoder" in result.sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["nowhere", "empty", "a file"])
def test_an_autoencoder_that_is_none_is_named(what: str, tmp_path: Path, cli: Callable) -> None:
    path = tmp_path / "given"
    if what == "empty":
        path.mkdir()
    if what == "a file":
        path.write_text("x")
    result = cli(*TRAIN, "--run", tmp_path / "run", "--autoencoder", path)
    assert str(path) in result.sentence
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_kind_is_refused(
    tmp_path: Path, cli: Callable, transformer_run: Path
) -> None:
    vae = quintet.VQGanVAE(dim=8, channel_multipliers=(1, 2), num_res_blocks=1, levels=(4, 4))
    vae.save_pretrained(tmp_path / "vae")
    for path, kind in ((tmp_path / "vae", "image/vqgan"), (transformer_run, "mesh/transformer")):
        result = cli(*TRAIN, "--run", tmp_path / "run", "--autoencoder", path)
        assert f"{path} holds {kind}: set --autoencoder to a run of" in result.sentence
        assert "quintet train mesh/autoencoder" in result.sentence
        assert not (tmp_path / "run").exists()


def test_a_run_of_another_room_is_refused(tmp_path: Path, cli: Callable) -> None:
    arguments = ["--steps", 1, "--batch-size", 2, "--images.size", 16, 16, "--model.dim", 8]
    more = ["--images.valid-limit", 2, "--losses.adversarial", "none", "--trackers"]
    image = ["train", "image/vqgan_tiny", "--workers", 0, "--device", "cpu", *arguments, *more]
    assert cli(*image, "--run", tmp_path / "image").status == 0
    result = cli(*TRAIN, "--run", tmp_path / "run", "--autoencoder", tmp_path / "image")
    assert "image/vqgan" in result.sentence
    assert not (tmp_path / "run").exists()


def test_the_copy_holds_the_averaged_weights_and_its_digest_is_written_down(
    autoencoder_run: Path, transformer_run: Path
) -> None:
    copied = load_file(frozen_of(transformer_run) / "model.safetensors")
    files = tensors(autoencoder_run, 4)
    ema = "autoencoder.ema.safetensors:"
    averaged = {k.removeprefix(ema): v for k, v in files.items() if k.startswith(ema)}
    live = {k.partition(":")[2]: v for k, v in files.items() if k.startswith("autoencoder.saf")}
    assert averaged
    assert_same({name: copied[name] for name in averaged}, averaged)
    assert any(not copied[name].equal(live[name]) for name in averaged)
    about = json.loads((transformer_run / "config.json").read_text())
    assert about["frozen"] == {"autoencoder": digest(frozen_of(transformer_run))}
    assert not list((transformer_run / "frozen").glob(".*"))


def test_the_copy_is_written_once(
    transformer_copy: Path, train: Callable, transformer_recipe: Callable, autoencoder_run: Path
) -> None:
    files = [frozen_of(transformer_copy) / name for name in ("model.safetensors", "config.json")]
    before = [path.stat().st_mtime_ns for path in files]
    train(transformer_recipe(autoencoder_run, steps=5), transformer_copy, "resume")
    assert [path.stat().st_mtime_ns for path in files] == before


def test_an_exported_autoencoder_is_as_good_as_its_run(
    autoencoder_model: Path,
    transformer_run: Path,
    tmp_path: Path,
    train: Callable,
    transformer_recipe: Callable,
) -> None:
    train(transformer_recipe(autoencoder_model), tmp_path / "run")
    assert_same(tensors(tmp_path / "run", 4), tensors(transformer_run, 4))
    assert digest(frozen_of(tmp_path / "run")) == digest(frozen_of(transformer_run))


def test_a_run_in_two_parts_is_the_run_in_one(
    autoencoder_run: Path,
    transformer_run: Path,
    tmp_path: Path,
    train: Callable,
    transformer_recipe: Callable,
) -> None:
    with pytest.raises(Stopped):
        train(transformer_recipe(autoencoder_run, minutes=1e-9), tmp_path / "run")
    train(transformer_recipe(autoencoder_run), tmp_path / "run", "resume")
    assert_same(tensors(tmp_path / "run", 4), tensors(transformer_run, 4))
    assert trajectory(tmp_path / "run") == trajectory(transformer_run)


# -- alone ------------------------------------------------------------------------------------


@pytest.fixture
def alone(
    request: pytest.FixtureRequest,
    autoencoder_run: Path,
    tmp_path: Path,
    train: Callable,
    transformer_recipe: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A transformer's run, evaluated or not, whose autoencoder is gone, and whose codes are kept
    nowhere."""
    source = Path(shutil.copytree(autoencoder_run, tmp_path / "given"))
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "first cache"))
    train(transformer_recipe(source), tmp_path / "run", measured=request.param)
    shutil.rmtree(source)
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "second cache"))
    return tmp_path / "run"


@pytest.mark.parametrize("alone", [True], ids=["evaluated"], indirect=True)
def test_a_run_depends_on_nothing_but_its_own_folder(
    alone: Path, tmp_path: Path, cli: Callable
) -> None:
    """Every command, and each as if on another machine."""
    run = Path(shutil.move(alone, tmp_path / "moved"))
    reported = {r["step"]: r for r in lines(run) if "transformer/loss" in r}
    measured = json.loads(cli("evaluate", run, "--device", "cpu").out.splitlines()[-1])
    last = [r for r in lines(run) if "val/loss" in r][-1]
    assert measured["loss"] == pytest.approx(last["val/loss"], rel=1e-6)
    replayed = json.loads(cli("replay", run, "--step", 3).out.splitlines()[-1])
    loss = replayed["losses"]["transformer/loss"]
    assert loss == pytest.approx(reported[3]["transformer/loss"], rel=1e-6)
    result = cli("resume", run, "--steps", 5)
    assert result.status == 0, result.err
    assert [r["step"] for r in lines(run) if "transformer/loss" in r] == [1, 2, 3, 4, 5]
    result = cli("sample", run, "--text", "a box", "--count", 1, "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert list((tmp_path / "out").iterdir())
    result = cli("report", run)
    assert result.status == 0, result.err
    result = cli("export", run, tmp_path / "model")
    assert result.status == 0, result.err
    assert (tmp_path / "model/README.md").stat().st_size > 100


@pytest.mark.parametrize("alone", [False], ids=["unmeasured"], indirect=True)
def test_a_loaded_and_an_exported_transformer_write_the_same(alone: Path, tmp_path: Path) -> None:
    model = quintet.load(alone)
    assert isinstance(model, MeshTransformer)
    assert not model.training
    expected = load_file(frozen_of(alone) / "model.safetensors")
    assert_same(model.autoencoder.state_dict(), expected)
    again = MeshTransformer.from_pretrained(model.save_pretrained(tmp_path / "model"))
    for one, other in zip(model.generate(["a box"] * 2), again.generate(["a box"] * 2)):
        assert torch.equal(one.vertices, other.vertices)
        assert torch.equal(one.faces, other.faces)


TAMPERED = {
    "one byte of the weights": "model.safetensors",
    "a setting": "config.json",
    "no weights": "model.safetensors",
    "no folder": "",
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_frozen_model_that_was_tampered_with_is_named(
    how: str, transformer_copy: Path, cli: Callable
) -> None:
    folder = frozen_of(transformer_copy)
    path = folder / TAMPERED[how]
    if how == "one byte of the weights":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif how == "a setting":
        path.write_text(path.read_text().replace('"max_offset": 0.5', '"max_offset": 0.25'))
    elif how == "no weights":
        path.unlink()
    else:
        shutil.rmtree(folder)
    before = tensors(transformer_copy, 4)
    for arguments in (["resume", "--steps", 5], ["evaluate"], ["sample"], ["replay", "--step", 3]):
        result = cli(arguments[0], transformer_copy, *arguments[1:])
        assert str(folder) in result.sentence
    with pytest.raises(RunError, match=str(folder)):
        quintet.load(transformer_copy)
    assert_same(before, tensors(transformer_copy, 4))


# -- codes ------------------------------------------------------------------------------------


@pytest.fixture
def model(autoencoder_model: Path) -> MeshAutoencoder:
    return MeshAutoencoder.from_pretrained(autoencoder_model)


def prepare(recipe: Any) -> TransformerTask:
    """All that happens between the start of a run and its first step."""
    task = TransformerTask(recipe)
    task.prepare(World(recipe))
    return task


def test_the_second_run_on_the_same_data_encodes_nothing(
    autoencoder_model: Path, cache: Path, transformer_recipe: Callable
) -> None:
    prepare(transformer_recipe(autoencoder_model))
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    assert sum(len(shard) for shard in shards(cache).values()) == 32 + 2
    prepare(transformer_recipe(autoencoder_model, seed=3))
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_without_its_cache_a_run_goes_on_exactly(
    transformer_run: Path,
    transformer_copy: Path,
    cache: Path,
    autoencoder_run: Path,
    train: Callable,
    transformer_recipe: Callable,
) -> None:
    shutil.rmtree(transformer_copy / "checkpoints/step-00000004")
    train(transformer_recipe(autoencoder_run), transformer_copy, "resume")
    assert_same(tensors(transformer_copy, 4), tensors(transformer_run, 4))
    assert shards(cache)


def filled(source: Any, model: Any, recipe: Any, variants: int = 1) -> CodeData:
    actual = CodeData(source, variants, "weights")
    corners = model.config.corners
    actual.fill(model, Collate(recipe.meshes.max_faces, corners), World(recipe), 0)
    return actual


def test_a_changed_file_is_encoded_alone_and_another_autoencoder_encodes_all(
    chairs: Path,
    autoencoder_model: Path,
    other_autoencoder: Path,
    cache: Path,
    transformer_recipe: Callable,
) -> None:
    def go(autoencoder: Path = autoencoder_model) -> list[str]:
        before = shards(cache)
        prepare(transformer_recipe(autoencoder, data=str(chairs)))
        return [key for name, shard in shards(cache).items() if name not in before for key in shard]

    assert len(set(go())) == 16
    assert go() == []
    path = sorted(chairs.rglob("*.ply"))[0]
    vertices, faces = read_mesh(path)
    write_mesh(path, vertices * [1, 1, 0.5], faces)
    assert len(go()) == 1
    shutil.copy(path, path.with_name("another.ply"))
    assert len(go()) == 1
    everything = go(other_autoencoder)
    assert len(set(everything)) == len(everything) == 17
    assert len({key.split("/")[0] for shard in shards(cache).values() for key in shard}) == 2


def test_codes_in_the_data_are_those_of_the_autoencoder(
    model: MeshAutoencoder, cache: Path, transformer_recipe: Callable
) -> None:
    recipe = transformer_recipe(None)
    source = open_data(None, recipe.meshes, "train", 0)
    actual = filled(source, model, recipe)
    assert len(actual) == 32
    for index in (0, 7, 31):
        sample, item = source.keyed(index, None), actual.keyed(index, None)
        expected = model.tokenize(sample["vertices"][None], sample["faces"][None])[0]
        assert torch.equal(item["codes"].long(), expected)
        assert item["text"] == sample["text"] == actual.text(index)


def test_codes_of_another_precision_are_not_those_of_the_cache(
    model: MeshAutoencoder, cache: Path, transformer_recipe: Callable
) -> None:
    """A run in bf16 rounds products to TF32 on a GPU, and an id in a thousand is another."""
    recipe = transformer_recipe(None)
    source = open_data(None, recipe.meshes, "valid", 0)
    for precision, expected in (("fp32", 1), ("fp32", 1), ("bf16", 2)):
        filled(source, model, dataclasses.replace(recipe, precision=precision))
        ends = {key.rpartition("/")[2] for shard in shards(cache).values() for key in shard}
        assert len(ends) == expected
    assert ends == {"cpu-float32-highest", "cpu-float32-high"}
    World(recipe)  # sets the precision of products back


def test_each_epoch_shows_the_next_of_the_fixed_variants(
    model: MeshAutoencoder, cache: Path, transformer_recipe: Callable
) -> None:
    from quintet.engine.keys import Key

    recipe = transformer_recipe(None)
    source = open_data(None, recipe.meshes, "train", 0)
    actual = filled(source, model, recipe, variants=3)
    assert sum(len(shard) for shard in shards(cache).values()) == 3 * 32
    seen = [actual.keyed(6, Key(0, epoch, 6))["codes"] for epoch in range(6)]
    for epoch in range(3):
        assert torch.equal(seen[epoch], seen[epoch + 3])
        sample = source.variant(6, epoch)
        expected = model.tokenize(sample["vertices"][None], sample["faces"][None])[0]
        assert torch.equal(seen[epoch].long(), expected)
    assert torch.equal(seen[0], actual.keyed(6, None)["codes"])
    neighbour = actual.keyed(7, Key(0, 0, 7))["codes"]  # begins with the next one
    assert torch.equal(neighbour, actual.codes_of(7, 1))
    assert seen[0].shape != seen[1].shape or not torch.equal(seen[0], seen[1])


def test_codes_do_not_depend_on_what_else_is_in_the_batch(
    model: MeshAutoencoder, other_autoencoder: Path, some_meshes: Callable
) -> None:
    """Nor on the padding, for an autoencoder whose graph moves vertices, too."""
    meshes, cpu = some_meshes(12), torch.device("cpu")
    encode = CodeData([], 1, "").encode
    for one in (model, MeshAutoencoder.from_pretrained(other_autoencoder)):
        together = encode(one, Collate(24)(meshes), cpu)
        backwards = encode(one, Collate(24)(meshes[::-1]), cpu)[::-1]
        wide = encode(one, Collate(24, unit=500)(meshes), cpu)
        assert [len(rows) for rows in together] == [len(mesh["faces"]) for mesh in meshes]
        for index, mesh in enumerate(meshes):
            (alone,) = encode(one, Collate(24)([mesh]), cpu)
            for other in (backwards, wide):
                assert torch.equal(other[index], together[index])
            assert torch.equal(alone, together[index])
            padded = one.tokenize(mesh["vertices"][None], mesh["faces"][None])[0]
            assert torch.equal(padded.int(), alone)


def test_two_processes_make_the_codes_of_one(
    autoencoder_model: Path,
    tmp_path: Path,
    train: Callable,
    transformer_recipe: Callable,
    replaced: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stretch that no other test has, so that the processes' cache knows nothing of it."""
    recipe = replaced(transformer_recipe(autoencoder_model), meshes={"scale": 0.0625})
    recipe = dataclasses.replace(recipe, variants=2, batch_size=2, steps=2)
    before = shards(Path(Cache("mesh-codes").folder.parent))
    harness.run(recipe, tmp_path / "two", size=2, name=TRANSFORMER, measured=False)
    after = shards(Path(Cache("mesh-codes").folder.parent))
    new = [shard for name, shard in after.items() if name not in before]
    assert len(new) == 4  # both encoded a share of both sides
    actual = {key: value for shard in new for key, value in shard.items()}
    assert len(actual) == sum(map(len, new)) == 2 * 32 + 2
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    whole = dataclasses.replace(recipe, batch_size=4)
    train(whole, tmp_path / "one")
    alone = {k: v for shard in shards(tmp_path / "cache").values() for k, v in shard.items()}
    assert_same(actual, alone)
    orders = [[r["order"] for r in lines(tmp_path / n) if "order" in r] for n in ("one", "two")]
    assert orders[0] == orders[1]


def test_a_mesh_without_codes_says_why_and_the_others_have_theirs(
    chairs: Path, model: MeshAutoencoder, cache: Path, transformer_recipe: Callable
) -> None:
    (chairs / "box/broken.obj").write_text("v 0 0 0\nv nan 0 0\nv 0 1 0\nf 1 2 3\n")
    recipe = transformer_recipe(None)
    config = MeshDataConfig(max_faces=16, valid_fraction=0.0)
    source = open_data(chairs, config, "train", 0)
    actual = filled(source, model, recipe)
    names = [actual.name(index) for index in range(len(actual))]
    assert "box/broken.obj" in names
    for index, name in enumerate(names):
        if name == "box/broken.obj":
            with pytest.raises(ValueError, match=r"broken\.obj.*not finite"):
                actual.keyed(index, None)
        else:
            assert len(actual.keyed(index, None)["codes"])


class LargeCodes(nn.Module):
    """Stands in for an autoencoder of 2 ** 25 codes, all of them odd."""

    config = MeshAutoencoderConfig(quantiser="lfq", codebook_bits=25)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def tokenize(self, vertices: Tensor, faces: Tensor, **tables: Tensor) -> Tensor:
        return torch.where(faces[..., :1] >= 0, 2**24 + 1, -1).expand(-1, -1, 6)


def test_large_codes_stay_exact_beside_a_mesh_that_has_none(
    chairs: Path, cache: Path, transformer_recipe: Callable
) -> None:
    (chairs / "box/broken.obj").write_text("no mesh")
    source = open_data(chairs, MeshDataConfig(max_faces=16, valid_fraction=0.0), "train", 0)
    actual = filled(source, LargeCodes(), transformer_recipe(None))
    names = [actual.name(index) for index in range(len(actual))]
    index = next(i for i, name in enumerate(names) if "broken" not in name)
    assert set(actual.keyed(index, None)["codes"].flatten().tolist()) == {2**24 + 1}


def test_built_in_codes_of_the_two_sides_never_meet() -> None:
    config = MeshDataConfig(max_faces=24, builtin_count=32, valid_limit=32)
    sides = [BuiltinMeshes(config, side) for side in ("train", "valid")]
    digests = [{side.digest(index) for index in range(32)} for side in sides]
    assert len(digests[0]) == len(digests[1]) == 32
    assert not digests[0] & digests[1]
