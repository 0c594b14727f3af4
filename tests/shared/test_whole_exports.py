"""Whole exports: the program beside the graphs generates what the model does, without torch."""

import copy
import os
import re
import subprocess
import sys
import wave
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import quintet
import small
from quintet.engine.keys import normal, uniform
from quintet.engine.models.export import Exportable, export, traced
from quintet.media.meshes.files import write_mesh
from quintet.media.meshes.points import read_points
from quintet.nn.text import tokenizer_of
from quintet.shared.export import run
from quintet.shared.flow.config import FlowConfig
from quintet.shared.flow.driver import times_of as driver_times
from quintet.shared.flow.few_steps import student_of
from quintet.shared.flow.solving import times_of
from quintet.shared.generation.generator import sample_keys
from quintet.shared.maskgit.decoding import KEY_STRIDE
from quintet.speech.text.markup import parse

BLOCKED = "import sys\nsys.modules['torch'] = sys.modules['quintet'] = None\n"


def filled(model: Any) -> Any:
    """A copy whose outputs depend on all of its weights: none of them are zero, as at first."""
    model = copy.deepcopy(model).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def measured(model: Any) -> Any:
    grid = (model.config.latent_channels, *model.config.grid)
    return model.measure_latents(torch.randn(4, *grid, generator=torch.Generator().manual_seed(1)))


def ending(model: Any, bias: float) -> Any:
    """Retopology that ends meshes more or less often."""
    nn.init.constant_(model.transformer.end_head.bias, bias)
    return model


FACES: dict[str, Any] = {"dim": 16, "heads": 1, "head_dim": 16, "fine_heads": 1}


def small_codes() -> Any:
    narrow: dict[str, Any] = {"dim": 16, "message_dim": 8, "encoder_layers": 1, "decoder_layers": 1}
    return quintet.MeshAutoencoder(levels=(6, 6, 6), **narrow)


MODELS: dict[str, Callable[[], Any]] = {
    "image.flow": lambda: measured(filled(small.image_flow())),
    "image.flow few": lambda: filled(student_of(measured(filled(small.image_flow())))),
    "video.flow": lambda: measured(filled(small.video_flow())),
    "video.flow few": lambda: filled(student_of(measured(filled(small.video_flow())))),
    "image.maskgit": lambda: filled(small.maskgit()),
    "image.maskgit plain": lambda: filled(
        quintet.MaskGit(small.vae(), image_size=16, dim=16, layers=1, heads=1, text="none")
    ),
    "video.maskgit": lambda: filled(small.video_maskgit()),
    "speech.voicebox": lambda: filled(small.voicebox()),
    "speech.vocoder": lambda: filled(small.vocoder()),
    "mesh.transformer": lambda: filled(quintet.MeshTransformer(small_codes(), layers=2, **FACES)),
    "mesh.transformer plain": lambda: filled(
        quintet.MeshTransformer(small_codes(), layers=1, text="none", head="codes", **FACES)
    ),
    "mesh.retopology": lambda: ending(filled(small.retopology()), -3.5),
}
PIXELS = [name for name in MODELS if name.startswith(("image", "video"))]


def exportable(name: str, model: Any) -> Exportable:
    return import_module(f"quintet.{name.split()[0]}.export").pieces(model, None)


class Direct(run.Model):
    """Runs the networks that are exported, and not their graphs."""

    def __init__(self, whole: Exportable, folder: Path, name: str) -> None:
        (folder / "export.json").write_text(whole.files["export.json"])
        super().__init__(folder)
        self.pieces = {piece.name: piece for piece in whole.pieces}
        self.name = name

    @property
    def driver(self) -> Any:
        return import_module(self.name)

    @torch.no_grad()
    def __call__(self, graph: str, **inputs: Any) -> list[Any]:
        piece = self.pieces[graph]
        assert {*piece.inputs} == {*inputs}
        for name, value in inputs.items():
            example = piece.inputs[name].traced
            assert torch.from_numpy(value).dtype == example.dtype, name
        outputs = piece.network(*(torch.from_numpy(inputs[name]) for name in piece.inputs))
        return [each.numpy() for each in ([outputs] if len(piece.outputs) == 1 else outputs)]


def differences(made: Any, expected: Any) -> list[float]:
    return [float(np.abs(a - b.numpy()).max()) for a, b in zip(made, expected, strict=True)]


CAPTIONS = ("a red star", None)
KEYWORDS: dict[str, list[dict[str, Any]]] = {
    "flow": [{}, {"method": "midpoint", "cond_scale": 1.0}],
    "maskgit": [{}, {"order": "halton", "cond_scale": 1.0}, {"temperature": 0.0}],
}


@pytest.mark.parametrize(
    # The loops of clips are those of images.
    "name",
    [pytest.param(n, marks=pytest.mark.slow if "video" in n else ()) for n in PIXELS],
)
def test_the_loop_of_pixels_makes_what_the_model_makes(name: str, tmp_path: Path) -> None:
    model, kind = MODELS[name](), re.split(r"[. ]", name)[1]
    driver = f"quintet.shared.{kind}.driver"
    direct = Direct(exportable(name, model), tmp_path, driver)
    for text in CAPTIONS if model.config.text != "none" else (None,):
        for more in KEYWORDS[kind]:
            settings: dict[str, Any] = {"count": 3, "seed": 5, "steps": 5, **more}
            expected = model.generate(text and [text], **settings)
            assert expected.std() > 0.05
            assert max(differences(direct.generate(text, **settings), expected)) < 1e-3


@pytest.mark.parametrize(
    "name", ["mesh.transformer", pytest.param("mesh.transformer plain", marks=pytest.mark.slow)]
)
def test_the_loop_of_meshes_makes_what_the_model_makes(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    direct = Direct(exportable(name, model), tmp_path, "quintet.mesh.transformer.driver")
    text = None if model.config.text == "none" else "a flat box"
    for more in ({}, {"cond_scale": 2.0, "top_k": 5}, {"temperature": 0.0}):
        settings: dict[str, Any] = {"seed": 5, "temperature": 0.8, "max_faces": 6, **more}
        expected = model.generate(text and [text], batch_size=3, **settings)
        assert sum(len(mesh.faces) for mesh in expected) > 6
        for made, mesh in zip(direct.generate(text, count=3, **settings), expected, strict=True):
            assert np.array_equal(made.faces, mesh.faces.numpy())
            assert np.abs(made.vertices - mesh.vertices.numpy()).max(initial=0) < 1e-3


def scan(folder: Path) -> Path:
    """A file of points with normals, in units of its own."""
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(300, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    path = folder / "scan.npy"
    np.save(path, np.concatenate((normals * [9, 6, 3] + 100, normals), 1).astype(np.float32))
    return path


def cleaned(model: Any, path: Path, **settings: Any) -> Any:
    points = read_points(path, 100_000, np.random.default_rng(0))
    return model.retopologise(points, settings.pop("faces", None), **settings)


def cleaner(folder: Path) -> tuple[Any, Direct]:
    """A model of retopology, and its networks under the program that is exported with them."""
    model = MODELS["mesh.retopology"]()
    whole = exportable("mesh.retopology", model)
    return model, Direct(whole, folder, "quintet.mesh.retopology.driver")


@pytest.mark.by_default("top_k")
@pytest.mark.parametrize(
    "more",
    [{}, {"faces": None}, {"temperature": 0.0}, {"top_k": 3}],
    ids=["nothing", "faces", "temperature", "top_k"],
)
def test_the_loop_of_retopology_makes_what_the_model_makes(
    more: dict[str, Any], tmp_path: Path
) -> None:
    (model, direct), path = cleaner(tmp_path), scan(tmp_path)
    settings: dict[str, Any] = {"count": 3, "seed": 5, "faces": 9, **more}
    expected = cleaned(model, path, **settings)
    assert max(len(faces) for _, faces in expected) > 4
    made = direct.generate(points=str(path), **settings)
    for mesh, (vertices, faces) in zip(made, expected, strict=True):
        assert np.array_equal(mesh.faces, faces)
        assert np.abs(mesh.vertices - vertices).max(initial=0) < 1e-5


@pytest.mark.slow
def test_the_loop_of_retopology_goes_on_from_window_to_window(tmp_path: Path) -> None:
    model, direct = cleaner(tmp_path)
    ending(model, -50.0)
    points = torch.rand(model.config.points, 6, generator=torch.Generator().manual_seed(0))
    codes = model.generate_codes(points.expand(2, -1, -1), torch.tensor([30, 30]), seed=2)
    assert codes.shape[1] > 2 * model.max_faces
    sampling = {"temperature": 1.0, "top_k": None}
    again = direct.driver.codes_of(direct, points.numpy(), 30, 2, 2, sampling)
    assert np.array_equal(again, codes.numpy())


def test_the_loop_of_retopology_asks_for_points(tmp_path: Path) -> None:
    (_, direct), path = cleaner(tmp_path), tmp_path / "scan.npy"
    with pytest.raises(SystemExit, match="give --points"):
        direct.generate()
    np.save(path, np.ones((300, 3)))
    with pytest.raises(SystemExit, match=r"\(n, 6\), finite and with normals, not \(300, 3\)"):
        direct.generate(points=str(path))


SPOKEN = "ba do ki, no!"


def assert_same_sound(made: Any, expected: torch.Tensor) -> None:
    """Griffin-Lim's momentum makes much of the rounding of some samples, where it is quiet."""
    apart = np.abs(made - expected.numpy().clip(-1, 1))
    assert np.median(apart) < 1e-4
    assert np.quantile(apart, 0.9) < 1e-2 < expected.std()


def test_the_loop_of_speech_makes_what_the_model_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = import_module("quintet.speech.voicebox.driver")
    model, vocoder = (MODELS[f"speech.{name}"]() for name in ("voicebox", "vocoder"))
    folders = [tmp_path / name for name in ("voicebox", "vocoder")]
    for folder in folders:
        folder.mkdir()
    direct = Direct(exportable("speech.voicebox", model), folders[0], driver.__name__)
    network = Direct(exportable("speech.vocoder", vocoder), folders[1], driver.__name__)
    monkeypatch.setattr(driver, "Model", lambda folder: network)
    marked = "ba <break 300ms> do [length 200ms]ki[/length], no!"
    more: list[tuple[str, dict[str, Any]]] = [
        (SPOKEN, {}),
        (SPOKEN, {"cond_scale": 1.0, "method": "euler"}),
        (SPOKEN, {"seconds": 0.7}),
        (SPOKEN, {"rate": 0.7}),
        (marked, {"seconds": 1.5}),
    ]
    for text, settings in more:
        marks = parse(text, settings.get("rate", 1.0))
        own = {name: value for name, value in settings.items() if name != "rate"}
        (expected,) = model.sample(texts=[marks], seed=3, steps=4, **own)
        (made,) = direct.generate(text, seed=3, steps=4, **settings)
        assert made.shape == expected.shape
        assert_same_sound(made.clip(-1, 1), expected)
    (expected,) = model.sample(texts=[SPOKEN], seed=3, steps=4, vocoder=vocoder)
    (made,) = direct.generate(SPOKEN, seed=3, steps=4, vocoder=str(folders[1]))
    assert np.abs(made - expected.numpy()).max() < 1e-3 < expected.std()


# -- without torch --------------------------------------------------------------------------------


def run_alone(folder: Path, *words: str) -> list[Path]:
    """Files of the program, in a process that can import neither torch nor the package."""
    blocker = folder.parent / "blocker"
    blocker.mkdir(exist_ok=True)
    (blocker / "sitecustomize.py").write_text(BLOCKED)
    called = [sys.executable, str(folder / "run.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(blocker)}
    said = subprocess.run(called, check=True, capture_output=True, text=True, env=environment)
    return [Path(line) for line in said.stdout.splitlines()]


def write(name: str, model: Any, folder: Path) -> Path:
    folder.mkdir()
    whole = exportable(name, model)
    assert all(checked.any_size for checked in export(whole, folder, "onnx"))
    for file, text in whole.files.items():
        (folder / file).write_text(text)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PIXELS)
def test_graphs_make_pixels_without_torch(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    folder = write(name, model, tmp_path / "whole")
    texts = None if model.config.text == "none" else ["two rings"]
    words = [*(("--text", *texts) if texts else ()), "--count", "3", "--seed", "7", "--steps", "4"]
    made = run_alone(folder, *words, "--out", str(tmp_path / "out"))
    expected = model.generate(texts, count=3, seed=7, steps=4)
    for path, sample in zip(made, expected, strict=True):
        with Image.open(path) as opened:
            frames: list[Any] = []
            for number in range(getattr(opened, "n_frames", 1)):
                opened.seek(number)
                frames.append(np.asarray(opened.convert("RGB")))
        pixels = np.moveaxis(np.array(frames if sample.ndim == 4 else frames[0]), -1, 0)
        assert np.abs(pixels - sample.numpy() * 255).max() < 0.5 + 255e-3


@pytest.mark.slow
def test_graphs_make_meshes_without_torch(tmp_path: Path) -> None:
    model = MODELS["mesh.transformer"]()
    folder = write("mesh.transformer", model, tmp_path / "whole")
    words = ["--text", "a flat box", "--count", "3", "--max-faces", "9", "--temperature", "0.7"]
    made = run_alone(folder, *words, "--out", str(tmp_path / "out"))
    settings: dict[str, Any] = {"max_faces": 9, "temperature": 0.7}
    expected = model.generate(["a flat box"], batch_size=3, **settings)
    for path, mesh in zip(made, [mesh for mesh in expected if len(mesh.faces)], strict=True):
        again, plain = tmp_path / "again.obj", [array.numpy() for array in mesh]
        write_mesh(again, *plain)
        lines = again.read_text().splitlines()[1:]
        own = path.read_text().splitlines()
        assert [line for line in own if line[0] == "f"] == [
            line for line in lines if line[0] == "f"
        ]
        points = [[line.split()[1:] for line in each if line[0] == "v"] for each in (own, lines)]
        assert np.allclose(*(np.array(rows, np.float64) for rows in points), atol=1e-3)


@pytest.mark.slow
def test_graphs_clean_scans_without_torch(tmp_path: Path) -> None:
    model, path = MODELS["mesh.retopology"](), scan(tmp_path)
    folder = write("mesh.retopology", model, tmp_path / "whole")
    words = ["--points", str(path), "--faces", "9", "--count", "2", "--seed", "4"]
    made = run_alone(folder, *words, "--out", str(tmp_path / "out"))
    expected = cleaned(model, path, faces=9, count=2, seed=4)
    for file, (vertices, faces) in zip(made, expected, strict=True):
        lines = [line.split() for line in file.read_text().splitlines()]
        points = np.array([line[1:] for line in lines if line[0] == "v"], np.float64)
        assert np.abs(points - vertices[:, [0, 2, 1]] * [1, 1, -1]).max() < 1e-5
        polygons = np.array([line[1:] for line in lines if line[0] == "f"], np.int64)
        assert np.array_equal(polygons - 1, faces)


@pytest.mark.slow
def test_graphs_speak_without_torch(tmp_path: Path) -> None:
    model, vocoder = (MODELS[f"speech.{name}"]() for name in ("voicebox", "vocoder"))
    folder = write("speech.voicebox", model, tmp_path / "whole")
    network = write("speech.vocoder", vocoder, tmp_path / "vocoder")
    words = ["--text", SPOKEN, "--seed", "3", "--steps", "4", "--out", str(tmp_path / "out")]
    for more, settings in (([], {}), (["--vocoder", str(network)], {"vocoder": vocoder})):
        (path,) = run_alone(folder, *words, *more)
        (expected,) = model.sample(texts=[SPOKEN], seed=3, steps=4, **settings)
        with wave.open(str(path)) as file:
            made = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
        assert_same_sound(made, expected)
        if settings:
            assert np.abs(made - expected.numpy().clip(-1, 1)).max() < 1e-3 + 1 / 32767


def test_the_program_draws_and_reads_as_the_package_does() -> None:
    keys = sample_keys(3, range(4), "flow")
    again = np.array([run.fold(3, "flow", number) for number in range(4)], np.uint64)
    assert again.tolist() == keys.tolist()
    assert np.array_equal(run.uniform(again, "u", (3, 4)), uniform(keys, "u", (3, 4)).numpy())
    noise = run.normal(again, "noise", (3, 4, 6))
    assert np.allclose(noise, normal(keys, "noise", (3, 4, 6)).numpy(), atol=1e-5)
    later = run.at_step(again, 7).view(np.int64)
    assert later.tolist() == (keys + torch.tensor(7) * KEY_STRIDE).tolist()
    for shift in (1.0, 4.0):
        assert np.array_equal(driver_times(7, shift), times_of(7, shift).numpy())
    texts = ["A red star, on white", "one two three four five six seven eight nine", "äö" * 9, ""]
    for kind in ("words", "bytes"):
        config = FlowConfig(text=kind, text_length=8, text_words=300)
        ids = [run.ids_of(text, kind=kind, length=8, words=300) for text in texts]
        assert ids == tokenizer_of(config).encode(texts).tolist()


@pytest.mark.parametrize(
    "name",
    ["image.flow", "image.maskgit", "mesh.transformer", "mesh.retopology", "speech.voicebox"],
)
def test_the_program_imports_neither_torch_nor_the_package(name: str) -> None:
    files = exportable(name, MODELS[name]()).files
    for file, source in files.items():
        named = {*re.findall(r"^(?:from|import) (\w+)", source, re.M)}  # as it is loaded
        known = {*sys.stdlib_module_names, "numpy"}
        own = {each.removesuffix(".py") for each in files}
        assert file.endswith(".json") or named <= known | own


def test_a_decoder_of_clips_takes_any_number_of_them() -> None:
    layers = ("residual", "compress_time")
    narrow: dict[str, Any] = {"init_dim": 8, "max_dim": 8, "patch_size": 4, "layers": layers}
    tokenizer = quintet.VideoTokenizer(quantiser="kl", latent_channels=4, **narrow)
    model = measured(quintet.VideoFlow(tokenizer, image_size=16, frames=5, **small.FLOW)).eval()
    decode = exportable("video.flow", model).pieces[-1]
    assert decode.name == "decode"
    assert traced(decode._replace(network=decode.network.requires_grad_(False)))[1]
