"""Autoencoders of diffusers, adopted: what is trained, what is exported, what is refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adopting
import harness
import quintet
from adopting import CLIPS, IMAGES, folder
from quintet import rooms
from quintet.engine.errors import RunError, Stopped
from quintet.engine.launch import start
from quintet.engine.models.pretrained import read_weights
from quintet.image.adopt.model import AdoptedImages
from quintet.image.adopt.task import ImageAdoptTask
from quintet.image.recipes import adopt_tiny
from quintet.video.adopt.model import AdoptedClips

diffusers: Any = adopting.Library("diffusers")

SIZE = 32
FRAMES = {"AutoencoderKLMochi": 7}
"""Frames of a clip that a class returns as many of; 9 suit the others."""
# One adapter reads all classes: one of each kind by default (Gaussian latents, ids, plain latents,
# clips).
QUICK = ("AutoencoderKL", "VQModel", "AutoencoderTiny", "AutoencoderKLWan")
CLASSES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in (*IMAGES, *CLIPS)
]
EVERY = pytest.mark.parametrize("name", CLASSES)
# Of one kind each: continuous codes, ids, an autoencoder whose parts are not all used. The others
# take the same code through classes that the tests of reconstructions load as well.
TRAINED = ("AutoencoderKL", "VQModel", "AsymmetricAutoencoderKL", "AutoencoderTiny")
TRAINABLE = [
    pytest.param(name, marks=() if name in TRAINED else pytest.mark.slow)
    for name in (*IMAGES, *CLIPS)
]


def pixels(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def adopted(name: str) -> tuple[Any, Tensor]:
    """In the room of its medium, and pixels that it takes."""
    if name in IMAGES:
        return AdoptedImages.from_pretrained(folder(name)), pixels(2, 3, SIZE, SIZE)
    frames = FRAMES.get(name, 9)
    return AdoptedClips.from_pretrained(folder(name)), pixels(2, 3, frames, SIZE, SIZE)


def loss(model: Any, batch: Tensor) -> Tensor:
    shape = model.noise_shape(batch)
    noise = () if shape is None else (torch.zeros(len(batch), *shape),)
    out = model(batch, *noise)
    return (out.output - batch).square().mean() + out.quantiser_loss


def own_reconstruction(name: str, network: Any, batch: Tensor) -> Tensor:
    """By the methods of diffusers alone."""
    encoded = network.encode(batch * 2 - 1)[0]
    latents = encoded if isinstance(encoded, Tensor) else encoded.mode()
    return network.decode(latents)[0] * 0.5 + 0.5


# -- the adapter -------------------------------------------------------------------------------


@pytest.mark.by_default("AutoencoderKL", "AutoencoderTiny", "VQModel")
@pytest.mark.parametrize(
    "name", [p for p in CLASSES if p.values != ("AutoencoderKLTemporalDecoder",)]
)
def test_an_adopted_model_reconstructs_as_diffusers_does(name: str) -> None:
    model, batch = adopted(name)
    network = getattr(diffusers, name).from_pretrained(folder(name))
    with torch.no_grad():
        if name == "AutoencoderKLQwenImage":  # a class of clips, for images
            expected = own_reconstruction(name, network, batch[:, :, None])[:, :, 0]
        else:
            expected = own_reconstruction(name, network, batch)
        torch.testing.assert_close(model(batch).output, expected)
        codes = model.to_codes(batch)
        torch.testing.assert_close(model.decode_from_codes(codes), expected.clamp(0, 1))


@pytest.mark.by_default("AutoencoderKL", "VQModel")
@pytest.mark.parametrize("name", TRAINABLE)
def test_what_is_trained_gets_gradients_and_the_rest_none(name: str) -> None:
    model, batch = adopted(name)
    for part in ("decoder", "encoder", "all", "lora"):
        model.zero_grad(set_to_none=True)
        unused = model.train_only(part, tuple(batch.shape[1:]), rank=2)
        loss(model.train(), batch).backward()
        chosen = {n for n, p in model.named_parameters() if p.requires_grad}
        assert chosen == {n for n, p in model.named_parameters() if p.grad is not None}
        assert not chosen & set(unused)
        if part == "lora":
            assert chosen == set(model.state_dict())
            assert {n.split(".")[0] for n in chosen} == {"low_rank"}
            continue
        halves = {n.split(".")[1] for n in chosen} & {"encoder", "decoder"}
        assert halves == ({"encoder", "decoder"} if part == "all" else {part})


@pytest.mark.by_default("AutoencoderKL", "VQModel")
@EVERY
def test_an_export_is_what_diffusers_wrote_byte_for_byte(name: str, tmp_path: Path) -> None:
    model, _ = adopted(name)
    model.save_pretrained(tmp_path)
    for file in folder(name).iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
    assert_equal_states(
        getattr(diffusers, name).from_pretrained(folder(name)),
        getattr(diffusers, name).from_pretrained(tmp_path),
    )


def assert_equal_states(first: Any, second: Any) -> None:
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    assert all(one[n].dtype == other[n].dtype and one[n].equal(other[n]) for n in one)


def test_half_precision_weights_come_back_in_half_precision(tmp_path: Path) -> None:
    adopting.network("AutoencoderKL").half().save_pretrained(tmp_path / "half")
    AdoptedImages.from_pretrained(tmp_path / "half").save_pretrained(tmp_path / "again")
    first, second = (
        read_weights(tmp_path / at / "diffusion_pytorch_model.safetensors")
        for at in ("half", "again")
    )
    assert {t.dtype for t in second.values()} == {torch.float16}
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def test_files_that_mix_types_come_back_with_the_type_of_each_tensor(tmp_path: Path) -> None:
    mixed = adopting.network("AutoencoderKL")
    mixed.encoder.half()
    mixed.decoder.to(torch.bfloat16)
    mixed.save_pretrained(tmp_path / "mixed")
    AdoptedImages.from_pretrained(tmp_path / "mixed").save_pretrained(tmp_path / "again")
    file = "diffusion_pytorch_model.safetensors"
    first, second = (read_weights(tmp_path / at / file) for at in ("mixed", "again"))
    assert {value.dtype for value in first.values()} == {
        torch.float32,
        torch.float16,
        torch.bfloat16,
    }
    assert first.keys() == second.keys()
    assert all(
        value.equal(second[n]) and value.dtype == second[n].dtype for n, value in first.items()
    )


def test_caches_of_a_class_are_cleared_after_each_call() -> None:
    model, batch = adopted("AutoencoderKLWan")
    with torch.no_grad():
        first = model(batch).output
        model(1 - batch)
        assert model(batch).output.equal(first)
    assert not any(isinstance(kept, Tensor) for kept in model.network._feat_map)


@pytest.mark.slow
def test_a_class_first_imported_where_tensors_have_no_values_gets_its_constants() -> None:
    """As in a fresh process that resumes a run: Cosmos has wavelets in its module."""
    code = """
import torch
from quintet.shared.adopt.config import OriginalConfig
from quintet.shared.adopt.folder import class_of
with torch.device("meta"):
    kind = class_of(OriginalConfig(class_name="AutoencoderKLCosmos"))
import diffusers.models.autoencoders.autoencoder_kl_cosmos as cosmos
assert not any(value.is_meta for value in cosmos._WAVELETS.values())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_batch_norms_and_the_frozen_half_stay_in_eval() -> None:
    model, batch = adopted("AutoencoderKLFlux2")
    model.train_only("decoder", tuple(batch.shape[1:]))
    model.train()
    assert not model.network.encoder.training
    assert not model.network.bn.training
    assert model.network.decoder.training


def test_parameters_that_nothing_depends_on_are_named() -> None:
    model, batch = adopted("AsymmetricAutoencoderKL")
    unused = model.train_only("all", tuple(batch.shape[1:]))
    assert len(unused) == 10
    assert all(name.startswith("network.decoder.condition_encoder.") for name in unused)


# -- runs --------------------------------------------------------------------------------------


def small(name: str, **changes: Any) -> Any:
    from campaign.subjects import replaced

    wanted = {"size": (SIZE, SIZE), "dim": 8, "workers": 0, "trackers": (), "valid_limit": 4}
    wanted |= {"builtin_count": 16, "log_every": 1, "batch_size": 2, "device": "cpu"}
    wanted |= {"warm_discriminator": 0}
    recipe = replaced(adopt_tiny(), wanted)
    return replaced(recipe, {"autoencoder": str(folder(name)), "steps": 4, **changes})


def trained(name: str, path: Path, **changes: Any) -> Path:
    """In this process: another would import diffusers anew."""
    recipe, task = small(name, **changes), harness.task_of("image/adopt_tiny", measured=False)
    start(task, recipe, path, name="image/adopt_tiny", load=rooms.load, progress=False)
    return path


@pytest.mark.by_default("VQModel")
@pytest.mark.parametrize("name", ["AutoencoderKL", "VQModel"])
def test_training_the_decoder_leaves_every_byte_of_the_encoder(
    name: str, tmp_path: Path, cli: Any
) -> None:
    run = trained(name, tmp_path / "run", warm_discriminator=1)
    assert cli("export", run, tmp_path / "out").status == 0
    kind = getattr(diffusers, name)
    before, after = kind.from_pretrained(folder(name)), kind.from_pretrained(tmp_path / "out")
    old, new = before.state_dict(), after.state_dict()
    assert old.keys() == new.keys()
    changed = {n for n in old if not old[n].equal(new[n])}
    assert changed
    assert {n.partition(".")[0] for n in changed} <= {"decoder", "post_quant_conv"}
    config = (tmp_path / "out/config.json").read_bytes()
    assert config == (folder(name) / "config.json").read_bytes()
    assert f"diffusers.{name}.from_pretrained" in (tmp_path / "out/README.md").read_text()


def test_a_lora_leaves_the_original_and_resumes_bit_for_bit(tmp_path: Path, cli: Any) -> None:
    name = "image/adopt_tiny"
    recipe = small("AutoencoderKL", train="lora", lora_rank=2, save_every=2, keep_last=9)

    def go(path: str, mode: Any, **changes: Any) -> None:
        task, settings = harness.task_of(name, measured=False), replace(recipe, **changes)
        where = {"name": name, "mode": mode, "load": rooms.load, "progress": False}
        start(task, settings, tmp_path / path, **where)  # type: ignore[arg-type]

    go("straight", "new")
    for mode in ("new", "resume"):
        with pytest.raises(Stopped):
            go("cut", mode, minutes=1e-9)
    go("cut", "resume")
    straight = tmp_path / "straight"
    weights = harness.tensors(straight, 4)
    harness.assert_same(weights, harness.tensors(tmp_path / "cut", 4))
    assert all(":low_rank." in name for name in weights if name.startswith("vae.safetensors"))

    model = quintet.load(straight)
    own = AdoptedImages.from_pretrained(straight)
    assert cli("export", straight, tmp_path / "out").status == 0
    before = diffusers.AutoencoderKL.from_pretrained(folder("AutoencoderKL")).state_dict()
    merged = AdoptedImages.from_pretrained(tmp_path / "out")
    after, inside = merged.network.state_dict(), model.network.state_dict()
    assert all(inside[name].equal(before[name]) for name in before)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == set(model.low_rank.shapes)
    ranks = (
        torch.linalg.matrix_rank((after[n] - before[n]).flatten(1), rtol=0.01) for n in changed
    )
    assert {rank.item() for rank in ranks} <= {1, 2}
    with torch.no_grad():
        batch = pixels(1, 3, SIZE, SIZE)
        expected = merged(batch).output
        assert own(batch).output.equal(expected)
        torch.testing.assert_close(model(batch).output, expected)  # channels last
    model.save_stage(tmp_path)
    stage = AdoptedImages.from_pretrained(tmp_path).state_dict()
    assert all(stage[f"network.{name}"].equal(value) for name, value in after.items())


def test_a_run_needs_the_original_no_more_and_can_be_adopted(tmp_path: Path) -> None:

    original = tmp_path / "original"
    shutil.copytree(folder("AutoencoderKL"), original)
    run = trained("AutoencoderKL", tmp_path / "run", autoencoder=str(original), steps=2)
    shutil.rmtree(original)
    model = quintet.load(run)
    assert isinstance(model, AdoptedImages)
    again = trained("AutoencoderKL", tmp_path / "again", autoencoder=str(run), steps=1)
    kept = AdoptedImages.from_pretrained(again / "frozen/autoencoder").state_dict()
    assert all(kept[name].equal(value) for name, value in model.state_dict().items())


def test_discriminators_are_warmed_against_the_frozen_autoencoder(tmp_path: Path) -> None:
    run = trained(
        "AutoencoderKL", tmp_path / "run", warm_discriminator=2, keep_last=9, save_every=1
    )
    records = [r for r in harness.lines(run) if "discriminator/loss" in r]
    assert [r["step"] for r in records] == [1, 2, 3, 4]
    assert ["vae/loss" in r for r in records] == [False, False, True, True]
    assert ["vae/adversarial" in r for r in records] == [False, False, True, True]
    weights = [harness.tensors(run, step) for step in (1, 2, 3)]
    vae = "vae.safetensors:network.decoder.conv_in.weight"
    discriminator = next(n for n in weights[0] if n.startswith("discriminator.safetensors:"))
    assert weights[0][vae].equal(weights[1][vae])
    assert not weights[1][vae].equal(weights[2][vae])
    assert not weights[0][discriminator].equal(weights[1][discriminator])


def test_the_unused_are_reported_by_a_run(tmp_path: Path, capfd: Any) -> None:
    task = ImageAdoptTask(small("AsymmetricAutoencoderKL"))
    assert len(task.unused) == 10
    task.prepare(type("World", (), {"is_main": True})())  # type: ignore[arg-type]
    assert "10 parameters of the autoencoder are not used" in capfd.readouterr().err


SHORT = "--steps 1 --workers 0 --batch-size 2 --images.size 32 32 --images.valid-limit 2 --trackers"


# -- the command line ------------------------------------------------------------------------


def test_from_names_the_folder(tmp_path: Path, cli: Any) -> None:
    source = ["--from", folder("AutoencoderKL"), "--run", tmp_path / "run"]
    said = cli("train", "image/adopt_tiny", *source, *SHORT.split())
    assert said.status == 0
    assert "a run of 1 steps is too short for warm_discriminator 20" in said.err
    records = harness.lines(tmp_path / "run")
    assert any("vae/loss" in record for record in records)
    about = json.loads((tmp_path / "run/config.json").read_text())
    assert about["settings"]["autoencoder"] == str(folder("AutoencoderKL"))


def test_a_name_of_the_hub_is_taken_from_its_cache_or_answered_with_the_download(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    train = ["train", "image/adopt_tiny", "--from", "org/vae", *SHORT.split()]
    remedy = "nothing is downloaded from the Hub automatically; name vae after: hf download org/vae"
    for command in (train, ["sample", "org/vae"], ["compare", tmp_path, "org/vae"]):
        refused = cli(*command)
        assert refused.status == 2
        assert remedy in refused.err
    with pytest.raises(RunError, match=remedy):
        quintet.load("org/vae")
    cached(folder("AutoencoderKL"), tmp_path / "cache/models--org--vae")
    assert cli(*train).status == 0
    assert isinstance(quintet.load("org/vae"), AdoptedImages)


def cached(model: Path, place: Path) -> None:
    """As the client of the Hub stores a model: links to files that are named by their content."""
    snapshot = place / "snapshots" / ("a" * 40)
    for path in (place / "refs", place / "blobs", snapshot):
        path.mkdir(parents=True)
    (place / "refs/main").write_text("a" * 40)
    for file in model.iterdir():
        shutil.copy(file, place / "blobs" / file.stem)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.stem}")


def test_compare_takes_folders_of_diffusers(tmp_path: Path, cli: Any) -> None:
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for index in range(2):
        Image.effect_noise((40, 40), 50 + index).convert("RGB").save(
            tmp_path / f"photos/{index}.png"
        )
    names = ["AutoencoderKL", "VQModel", "AutoencoderKLQwenImage"]
    said = cli("compare", tmp_path / "photos", *map(folder, names))
    result = json.loads(said.out.splitlines()[-1])
    sizes = {one["name"]: one["codebook_size"] for one in result["tokenizers"]}
    assert sizes == dict(zip(map(str, map(folder, names)), [None, 32, None]))


# -- what is refused -------------------------------------------------------------------------


def test_a_recipe_without_a_folder_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"set --autoencoder to a folder with config.json"):
        harness.start(
            lambda settings: rooms.build(settings),
            adopt_tiny(),
            tmp_path / "run",
            name="image/adopt_tiny",
            load=rooms.load,
            progress=False,
        )


def test_pickled_weights_are_refused_with_the_remedy(tmp_path: Path) -> None:
    original = adopting.network("AutoencoderKL")
    original.save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(RunError, match=r"a pickle can run code; .*save_pretrained\(FOLDER\)"):
        quintet.load(tmp_path)
    diffusers.AutoencoderKL.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert_equal_states(original, quintet.load(tmp_path).network)


def test_a_class_that_only_tiles_is_refused(tmp_path: Path) -> None:
    small = {"block_out_channels": (8, 8, 8, 8), "latent_channels": 4, "norm_num_groups": 2}
    diffusers.AutoencoderKLAllegro(**small, layers_per_block=1).save_pretrained(tmp_path)
    with pytest.raises(RunError, match="AutoencoderKLAllegro cannot be adopted for clips: Encod"):
        AdoptedClips.from_pretrained(tmp_path)


def test_a_pipeline_is_refused_with_the_folder_to_name(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(RunError, match="is a pipeline; name the folder of its autoencoder"):
        quintet.load(tmp_path)


def test_models_of_another_kind_are_refused_with_their_class(tmp_path: Path, cli: Any) -> None:
    for name, why in {
        "CLIPModel": "a CLIPModel cannot be adopted for images; give a folder",
        "DacModel": "a DacModel is a codec of sounds, not of images; adopt it with music/adopt",
    }.items():
        said = cli("train", "image/adopt_tiny", "--from", folder(name), "--run", tmp_path / name)
        assert said.status == 2
        assert why in said.err


def test_an_adopted_model_has_no_exported_graph(tmp_path: Path, cli: Any) -> None:
    run = trained("AutoencoderTiny", tmp_path / "run", steps=1)
    said = cli("export", run, tmp_path / "out", "--format", "onnx")
    assert said.status == 2
    assert "image/adopt does not support export as a graph (--format safetensors" in said.err


def test_other_models_and_custom_code_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(
        (folder("AutoencoderKL") / "diffusion_pytorch_model.safetensors").read_bytes()
    )
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    with pytest.raises(RunError, match="holds the class UNet2DModel, which no family adopts"):
        quintet.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "A", "auto_map": {"A": "b"}}))
    with pytest.raises(RunError, match="custom code"):
        quintet.load(tmp_path)


@pytest.mark.slow  # many lengths are tried
def test_frames_that_a_class_does_not_keep_are_refused_with_those_that_it_does() -> None:
    model = AdoptedClips.from_pretrained(folder("AutoencoderKLMochi"))
    with pytest.raises(RunError, match=r"makes 7 frames of 9; set --videos.frames to 13, 19, 25"):
        model.train_only("decoder", (3, 9, SIZE, SIZE))
