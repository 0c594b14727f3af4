"""Commands that Quintet suggests run as printed, also where paths have spaces and quotes."""

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from command import TINY, Quintet, picture

import quintet as library
from quintet.cli.train import best_exhibit

FEW = "--workers 0 --device cpu --precision fp32 --trackers --log-every 1 --steps 1"
MESHES = f"{FEW} --batch-size 4 --meshes.max-faces 12 --meshes.valid-limit 2"
MESHES += " --meshes.builtin-count 16 --model.dim 32"
SPEECH = f"speech/voicebox_tiny {FEW} --batch-size 2 --recordings.valid-limit 2 --sampling.count 1"
SPEECH += " --recordings.max-seconds 1.5 --sampling.steps 2"
SPEECH += " --recordings.builtin-count 16 --model.dim 32 --model.depth 1 --model.heads 1"
AUTOENCODER = f"mesh/autoencoder_tiny {MESHES} --model.message-dim 16"
TRANSFORMER = f"mesh/transformer_tiny {MESHES} --model.layers 1 --model.text-layers 1"
TRANSFORMER += " --generation.count 1 --generation.reference-count 8"
GENERATOR = f"{FEW} --batch-size 4 --model.dim 32 --model.layers 1 --generation.count 1"
GENERATOR += " --generation.reference-count 4 --generation.sampling-steps 2"
RECIPES = {
    "image": f"image/vqgan_tiny {' '.join(TINY)}",
    "video": f"video/tokenizer_tiny {FEW} --batch-size 2 --videos.frames 5 --videos.size 16 16"
    " --videos.valid-limit 2 --model.init-dim 16 --model.max-dim 16 --losses.adversarial none",
    "image generator": f"image/maskgit_tiny {GENERATOR} --images.builtin-count 8"
    " --images.valid-limit 2 --images.size 32 32",
    "video generator": f"video/maskgit_tiny {GENERATOR} --videos.builtin-count 8"
    " --videos.valid-limit 2 --videos.size 16 16 --videos.frames 5",
    "mesh autoencoder": AUTOENCODER,
    "mesh transformer": TRANSFORMER,
    "mesh transformer without text": f"{TRANSFORMER} --model.text none",
    "music": f"music/mulan_tiny {FEW} --batch-size 4 --sounds.valid-limit 4 --model.dim 32"
    " --sounds.builtin-count 16 --model.layers 1 --model.heads 1 --model.text-dim 32"
    " --model.text-layers 1 --model.text-heads 1",
    "speech": SPEECH,
    "speech without text": f"{SPEECH} --model.text none",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a person who puts spaces and quotes into names."""
    path = tmp_path / 'Ann\'s "work"'
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from quintet.cli import main

    path = tmp_path_factory.mktemp("codes") / "run"
    with pytest.raises(SystemExit) as ended:
        main(["train", *AUTOENCODER.split(), "--run", str(path)])
    assert not ended.value.code
    return path


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    image = library.VQGanVAE(dim=16, patch_size=4, channel_multipliers=(1,), levels=(8, 5))
    layers = ("residual", "compress_time")
    video = library.VideoTokenizer(init_dim=16, max_dim=16, patch_size=4, layers=layers)
    models = {"image": image, "video": video}
    return {n: m.save_pretrained(tmp_path_factory.mktemp(n)) for n, m in models.items()}


@pytest.fixture
def follow(quintet: Quintet) -> Callable[..., str]:
    """Runs a command as printed, with further arguments to make it short."""

    def call(command: str, *more: object) -> str:
        name, *words = shlex.split(command)
        assert name == "quintet"
        said = quintet(*words, *more)
        assert said.status == 0, f"{command}\n{said.err}"
        return said.out

    return call


def next_commands(out: str) -> list[str]:
    return [line.strip() for line in out.partition("Next:\n")[2].splitlines()]


# Each with the commands of another, less or more one flag.
SLOW = {"mesh transformer without text", "speech without text", "video generator"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in RECIPES]
)
def test_the_commands_after_training_run_as_printed(
    name: str,
    folder: Path,
    autoencoder: Path,
    tokenizers: dict[str, Path],
    quintet: Quintet,
    follow: Callable[..., str],
) -> None:
    run = "Ann's run"
    stage: list[object] = ["--autoencoder", autoencoder] if "transformer" in name else []
    if "generator" in name:
        stage = ["--tokenizer", tokenizers[name.split()[0]]]
    said = quintet("train", *RECIPES[name].split(), *stage, "--run", run)
    assert said.status == 0, said.err
    shown = re.search(r"^Look at (.*)$", said.out, re.MULTILINE)
    assert shown
    assert Path(shown[1]).suffix == ".png"
    sample, export = next_commands(said.out)
    assert any(Path(line).is_file() for line in follow(sample).splitlines())
    assert json.loads(exported(follow(export)))["model"] == library.load(run).label()


def exported(out: str) -> str:
    """config.json of an export, found by the Python line that it prints."""
    line = next(line for line in out.splitlines() if line.startswith("load it with "))
    model = eval(line.removeprefix("load it with "), {"quintet": library})
    assert not model.training
    return Path("model/config.json").read_text()


def test_a_run_without_validation_data_suggests_what_works(
    folder: Path, quintet: Quintet, follow: Callable[..., str]
) -> None:
    picture(folder / "photos/only.png", 1)
    words = ["photos", "--run", "run", *TINY, "--batch-size", 1, "--steps", 1]
    said = quintet("train", "image/vqgan_tiny", *words)
    (export,) = next_commands(said.out)
    follow(export)


def test_the_remedies_with_resume_run_as_printed(
    folder: Path, quintet: Quintet, follow: Callable[..., str]
) -> None:
    run = folder / "it's mine"
    train = ["train", "image/vqgan_tiny", *TINY, "--run", run]
    stopped = quintet(*train, "--minutes", 1e-9)
    follow(stopped.err.partition("Resume with: ")[2].splitlines()[0])
    assert (run / "checkpoints/step-00000006").is_dir()
    refused = quintet(*train)
    assert refused.status == 2
    follow(in_backquotes(refused.err))
    os.truncate(run / "checkpoints/step-00000006/vae.safetensors", 100)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{")
    doctor = quintet("doctor", run)
    assert doctor.status == 2
    (run / "checkpoints/step-00000006").rename(folder / "away")
    commands = {match[1] for match in re.finditer(r"`(quintet [^`]*)`", doctor.out)}
    assert len(commands) == 1
    follow(commands.pop())


def in_backquotes(text: str) -> str:
    match = re.search(r"`(quintet [^`]*)`", text)
    assert match
    return match[1]


def test_the_command_after_packing_and_the_help_of_a_run_name_it_in_quotes(
    folder: Path, quintet: Quintet, follow: Callable[..., str]
) -> None:
    for number in range(6):
        picture(folder / "my photos" / f"{number}.png", number)
    packed = quintet("pack", "my photos", "my shards", "--room", "image")
    train = packed.out.partition("as from a folder: ")[2].splitlines()[0]
    follow(train, *TINY, "--steps", 1, "--run", "my run")
    assert next(iter(Path("my run").glob("checkpoints/*")))
    for verb in ("sample", "resume"):
        first = quintet(verb, "my run", "--help").out.splitlines()[0]
        assert shlex.split(first)[:3] == ["quintet", verb, "my run"]
    refused = quintet("doctor", "my photos")
    assert refused.status == 2
    follow(refused.err.partition("room first: ")[2].partition(" (rooms")[0])


def test_a_picture_is_shown_before_clips_sounds_meshes_and_texts(tmp_path: Path) -> None:
    assert best_exhibit(tmp_path) is None
    old, new = (tmp_path / "exhibits" / f"step-0000000{step}" for step in (1, 2))
    for path in (old, new):
        path.mkdir(parents=True)
    (old / "a.png").touch()
    for name in ("z.txt", "a.glb", "b.wav", "c.gif", "d.png"):
        (new / name).touch()
        assert best_exhibit(tmp_path) == new / name
