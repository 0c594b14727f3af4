"""Trained models that travel with the package, and exports that are used like runs."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from command import TINY, Quintet
from safetensors.torch import load_file, save_file

import quintet as library
from quintet import rooms
from quintet.engine.errors import RunError
from quintet.engine.models import ready
from quintet.engine.models.pretrained import WEIGHTS, halve, weights_of
from quintet.engine.runs.folder import RunFolder

CARDS = ready.cards()
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
each_model = pytest.mark.parametrize("name", sorted(CARDS))


def close(metrics: dict[str, Any]) -> Any:
    """Other CPUs and numbers of threads round otherwise."""
    return pytest.approx(metrics, rel=0.02, abs=0.02)


# -- the models of the package ------------------------------------------------------------------


def test_every_room_has_a_ready_model() -> None:
    assert {card["recipe"].partition("/")[0] for card in CARDS.values()} == set(rooms.rooms())


def test_the_ready_models_are_small() -> None:
    files = [path for path in ready.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 25_000_000
    assert {path.name for path in files} <= {"config.json", "model.safetensors", ready.CARD}


@each_model
def test_a_card_says_how_its_model_was_trained(name: str) -> None:
    card = CARDS[name]
    assert shlex.split(card["command"])[:3] == ["quintet", "train", card["recipe"]]
    assert card["seconds"] > 0
    assert card["commit"] != "unknown"
    assert card["device"]
    assert card["data"]["builtin"]
    assert card["quick"]["metrics"].keys() <= card["metrics"].keys()


@pytest.mark.by_default(
    "ready/image*",
    "ready/mesh",
    "ready/music",
    "ready/speech",
    "ready/vocoder",
    "ready/video-tokenizer",
)
@each_model
def test_the_example_of_a_ready_model_writes_files(
    name: str, quintet: Quintet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = quintet(*shlex.split(CARDS[name]["example"])[1:])
    assert said.status == 0, said.err
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert max(sizes) > 1000


@pytest.mark.parametrize("name", ["ready/image", "ready/video", "ready/mesh"])
def test_an_export_has_an_example_as_its_run_had(name: str) -> None:
    folder = ready.found(Path(name))
    recipe = rooms.recipe_of(RunFolder.open(folder).about, folder)
    words = rooms.family_of(recipe).sample.example(recipe, folder)
    assert shlex.join(words) in CARDS[name]["example"]
    assert "--text" in words


@pytest.mark.by_default(
    "ready/image*", "ready/mesh-autoencoder", "ready/music", "ready/speech", "ready/video-tokenizer"
)
@each_model
def test_a_ready_model_has_the_quick_metrics_of_its_card(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from ready import metrics_of  # type: ignore[import-not-found]

    quick = CARDS[name]["quick"]
    assert metrics_of(ready.found(Path(name)), quick["settings"]) == close(quick["metrics"])


@pytest.mark.slow
@each_model
def test_a_ready_model_has_the_metrics_of_its_card(name: str, quintet: Quintet) -> None:
    said = quintet("evaluate", name, "--device", "cpu", "--json-line")
    assert json.loads(said.out.splitlines()[-1]) == close(CARDS[name]["metrics"])


# -- names, on a model of six steps -------------------------------------------------------------


@pytest.fixture
def packaged(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the one model ready/picture-tokenizer."""
    folder = tmp_path / "package" / "picture" / "tokenizer"
    shutil.copytree(exported, folder)
    card = {"recipe": "image/vqgan_tiny", "bytes": 12345, "example": "quintet sample …"}
    (folder / ready.CARD).write_text(json.dumps(card), encoding="utf-8")
    monkeypatch.setattr(ready, "FOLDER", tmp_path / "package")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_list_shows_the_ready_models(packaged: Path, quintet: Quintet) -> None:
    out = quintet("list").out
    assert "ready/picture-tokenizer" in out
    assert "quintet sample …" in out


def test_a_ready_name_is_a_model_for_all_commands(packaged: Path, quintet: Quintet) -> None:
    name = "ready/picture-tokenizer"
    own = library.load(packaged).state_dict()
    for model in (library.load(name), library.VQGanVAE.from_pretrained(name)):
        assert all(value.equal(own[key]) for key, value in model.state_dict().items())
    assert "is an export already" in quintet("export", name, "copy").err
    said = quintet("sample", name, "--count", "2", "--out", "out", "--device", "cpu")
    assert said.status == 0, said.err
    assert len([*Path("out").glob("*.reconstruction.png")]) == 2


@pytest.mark.slow  # tracing takes seconds, and finds the model as the commands above
def test_a_ready_model_is_exported_as_graphs(packaged: Path, quintet: Quintet) -> None:
    said = quintet("export", "ready/picture-tokenizer", "graphs", "--format", "torch-export")
    assert said.status == 0, said.err


def test_an_unknown_ready_name_is_refused(packaged: Path, quintet: Quintet) -> None:
    said = quintet("sample", "ready/picture-tokeniser", "--out", "out")
    assert said.status == 2
    assert "no ready model 'picture-tokeniser'; did you mean ready/picture-tokenizer?" in said.err
    assert "there are ready/picture-tokenizer" in quintet("evaluate", "ready/zzz").err


def test_a_folder_with_the_name_of_a_ready_model_is_ambiguous(
    packaged: Path, exported: Path, quintet: Quintet
) -> None:
    here = Path("ready/picture-tokenizer")
    shutil.copytree(exported, here)
    said = quintet("evaluate", here)
    assert said.status == 2
    assert f"{packaged} or {here.resolve()}" in said.err
    assert quintet("evaluate", here.resolve(), "--json-line").status == 0
    here.rename("ready/mine")  # the name of no model
    assert quintet("evaluate", "ready/mine", "--json-line").status == 0


# -- exports like runs --------------------------------------------------------------------------


def test_an_export_has_the_metrics_of_its_run(
    trained: Path, exported: Path, quintet: Quintet
) -> None:
    of_run, of_export = (
        json.loads(quintet("evaluate", path, "--json-line").out) for path in (trained, exported)
    )
    assert of_run.pop("step") == 6
    assert of_run == of_export


def test_an_export_of_own_data_names_no_recipe(
    photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    quintet("train", "image/vqgan_tiny", photos, "--run", tmp_path / "run", *TINY, "--steps", "1")
    assert quintet("export", tmp_path / "run", tmp_path / "model").status == 0
    assert "recipe" not in json.loads((tmp_path / "model/config.json").read_text())
    assert "name the run that it came from" in quintet("evaluate", tmp_path / "model").err


def test_an_export_in_half_precision_is_half_as_large_and_loads_as_fp32(
    trained: Path, exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    half = tmp_path / "half"
    assert quintet("export", trained, half, "--dtype", "fp16").status == 0
    assert (half / WEIGHTS).stat().st_size < 0.6 * (exported / WEIGHTS).stat().st_size
    whole = library.load(exported).state_dict()
    for name, value in library.load(half).state_dict().items():
        assert value.dtype == torch.float32
        assert value.equal(whole[name].half().float())
    said = quintet("export", trained, tmp_path / "graphs", "--dtype", "fp16", "--format", "onnx")
    assert "--dtype fp16 is for safetensors" in said.err


def test_weights_out_of_the_range_of_fp16_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.tensor([1e6]), "count": torch.tensor(1e6)}, tmp_path / WEIGHTS)
    with pytest.raises(RunError, match="a is out of range of fp16"):
        halve(tmp_path)
    save_file({"a": torch.tensor([1.0]), "count": torch.tensor(1e6)}, tmp_path / WEIGHTS)
    halve(tmp_path)
    assert load_file(tmp_path / WEIGHTS)["count"] == 1e6


# -- --init-from --------------------------------------------------------------------------------


def test_a_run_starts_from_the_weights_of_a_ready_model(
    packaged: Path, tmp_path: Path, quintet: Quintet
) -> None:
    still = ["--steps", "1", "--optim.learning-rate", "1e-30", "--optim.weight-decay", "0"]
    words = ["--init-from", "ready/picture-tokenizer", "--run", tmp_path / "run", *TINY, *still]
    said = quintet("train", "image/vqgan_tiny", *words)
    assert said.status == 0, said.err
    own = library.load(packaged).state_dict()
    for name, value in weights_of(tmp_path / "run", "vae").items():
        assert value.equal(own[name]), name
    about = json.loads((tmp_path / "run/config.json").read_text())
    assert about["settings"]["init_from"] == str(packaged)
    assert f"weights of {packaged}" in (tmp_path / "run/events.jsonl").read_text()
    first, again = (
        json.loads(quintet("evaluate", path, "--json-line").out)
        for path in (packaged, tmp_path / "run")
    )
    assert first["psnr"] == again["psnr"]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (
            ["--model.dim", "24"],
            "has shape (32,), but this model expects (48,)",
        ),
        (["--model.num-res-blocks", "2"], "names missing (decoder."),
    ],
)
def test_weights_of_another_model_are_refused_by_name(
    packaged: Path, tmp_path: Path, quintet: Quintet, flags: list[str], names: str
) -> None:
    words = ["--init-from", "ready/picture-tokenizer", "--run", tmp_path / "run", *TINY, *flags]
    said = quintet("train", "image/vqgan_tiny", *words)
    assert said.status == 2
    assert names in said.err
    assert not (tmp_path / "run").exists()
