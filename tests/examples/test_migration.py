"""What docs/migration.md says holds: of each parameter, of each script, and of its own code."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
import small
from examples.made import Meshes, put_media, sound
from examples.old_parameters import PARAMETERS, SECTIONS, Made, Refused, Was
from examples.scripts import run_script
from harness import lines
from quintet.compat import models
from quintet.compat.keywords import OLD
from quintet.compat.trainer import REMEDIES
from quintet.engine.config import OptimizerConfig
from quintet.engine.errors import RunError
from quintet.engine.settings import keywords_of
from quintet.image.config import ImageDataConfig
from quintet.mesh.config import MeshDataConfig
from quintet.music.config import MusicDataConfig
from quintet.speech.config import SpeechDataConfig
from quintet.video.config import VideoDataConfig

PAGE = (Path(__file__).parents[2] / "docs/migration.md").read_text(encoding="utf-8")
SCRIPTS = Path(__file__).parent / "migrated"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def section(package: str) -> str:
    return PAGE.split(f"\n## {package}\n")[1].split("\n## ")[0]


# -- each parameter of the six constructors -----------------------------------------------------


# The model, its data, and what else a script has to say.
MADE: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "MeshAutoencoderTrainer": (small.autoencoder, Meshes(), {}),
    "MeshTransformerTrainer": (small.transformer, Meshes(), {}),
    "VideoTokenizerTrainer": (small.tokenizer, [torch.rand(3, 5, 16, 16)] * 20, {"size": 16}),
    "VQGanVAETrainer": (small.vae, None, {"size": 16}),
    "MuLaNTrainer": (small.mulan, [(sound(n), "a tone") for n in range(20)], {}),
    "VoiceBoxTrainer": (small.voicebox, [sound(n) for n in range(20)], {}),
}
FIRST = {
    "VideoTokenizerTrainer": "tokenizer",
    "VQGanVAETrainer": "vae",
    "MuLaNTrainer": "mulan",
    "VoiceBoxTrainer": "voicebox",
}
CASES = [
    pytest.param(trainer, name, was, id=f"{trainer}-{name}-{number}")
    for trainer, names in PARAMETERS.items()
    for name, cases in names.items()
    for number, was in enumerate(cases)
]


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts") / "media"
    put_media(folder)
    return folder


def build(trainer: str, name: str, was: Was, place: Path) -> Any:
    """The trainer, with this parameter under its old name beside what it cannot do without."""
    make, data, more = MADE[trainer]
    first = FIRST.get(trainer, "model")
    keywords: dict[str, Any] = {first: make(), "steps": 2, **more}
    keywords |= {"data": place} if data is None else {"dataset": data}
    keywords.pop("steps" if name == "num_epochs" else OLD.get(name), None)
    if name in ("model", "cfm_wrapper"):
        del keywords[first]
    if name == "dataset_folder":
        del keywords["dataset"]
    made = {Made.MODEL: make(), Made.DATASET: data, Made.FOLDER: place}
    keywords[name] = made[was.value] if isinstance(was.value, Made) else was.value
    return getattr(quintet, trainer)(**keywords)


@pytest.mark.parametrize(("trainer", "name", "was"), CASES)
def test_a_parameter_is_taken_mapped_or_refused_with_the_remedy(
    trainer: str, name: str, was: Was, media: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(was.said, Refused):
            with pytest.raises((TypeError, RunError), match=was.said.remedy):
                build(trainer, name, was, media)
        else:
            assert build(trainer, name, was, media).recipe.steps > 0
    said = [str(warning.message) for warning in caught]
    due = was.said.notice if isinstance(was.said, Refused) else was.said
    assert len(said) == isinstance(due, str), said
    assert not said or said[0].startswith(str(due)), said


@pytest.mark.parametrize("trainer", sorted(PARAMETERS))
def test_the_page_has_a_row_for_each_parameter(trainer: str) -> None:
    firsts = re.findall(r"^\| (`.*?) \|", section(SECTIONS[trainer]), re.MULTILINE)
    named = {name for cell in firsts for name in re.findall(r"`(\w+)`", cell)}
    assert set(PARAMETERS[trainer]) - named == set()


# -- what the page says beside the parameters of the trainers -------------------------------------

MODELS = {
    "MeshAutoencoder": ("meshgpt-pytorch", models.MESH_AUTOENCODER),
    "MeshTransformer": ("meshgpt-pytorch", models.MESH_TRANSFORMER),
    "VideoTokenizer": ("magvit2-pytorch", models.VIDEO_TOKENIZER),
    "VQGanVAE": ("muse-maskgit-pytorch", models.VQGAN_VAE),
    "MuLaN": ("musiclm-pytorch", models.MULAN),
    "VoiceBox": ("voicebox-pytorch", models.VOICEBOX),
}
UNNAMED = {"num_resnet_blocks", "num_tokens", "max_seq_len", "spec_n_fft", "depth", "dim_head"}
"""Renamed arguments in rows that list several models, or of a nested module."""


def rows(package: str) -> dict[str, str]:
    """The right cell of a table by each name in the left one."""
    cells = re.findall(r"^\| (`.*?) \| (.*) \|$", section(package), re.MULTILINE)
    return {name: right for left, right in cells for name in re.findall(r"`(\w+)`", left)}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_page_says_what_becomes_of_an_argument_of_a_model(model: str) -> None:
    package, table = MODELS[model]
    named, config = rows(package), getattr(quintet, model).Config.__dataclass_fields__
    for old, new in table.items():
        if isinstance(new, str):
            assert new in config
            if old not in UNNAMED:
                assert f"→ `{new}`" in named[old], old


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    limits = [
        f"{ImageDataConfig().valid_limit} images",
        f"{VideoDataConfig().valid_limit} clips",
        f"{MeshDataConfig().valid_limit} meshes",
        f"{MusicDataConfig().valid_limit} sounds",
        f"{SpeechDataConfig().valid_limit} recordings",
    ]
    assert f"at most `valid_limit`: {', '.join(limits)}" in PAGE
    optim = OptimizerConfig()
    speech = quintet.VoiceBoxTrainer(small.voicebox(), MADE["VoiceBoxTrainer"][1], steps=2)
    assert (
        f'`scheduler="{optim.scheduler}"` after {optim.warmup_steps} warm-up steps '
        f"(`VoiceBoxTrainer`: {speech.recipe.optim.warmup_steps})" in PAGE
    )
    assert f"the {speech.recipe.keep_last} newest checkpoints and the best stay" in PAGE
    assert f"`ema_decay={optim.ema_decay}` in all six" in PAGE
    assert f"at most `max_faces` ({MeshDataConfig().max_faces};" in PAGE


def test_the_settings_and_attributes_that_the_page_names_are_there() -> None:
    known = keywords_of(quintet.VQGanVAETrainer(small.vae(), steps=2, size=16).recipe)
    for name in ("keep_last", "keep_every", "fsdp", "project", "run_name", "entity", "tags"):
        assert f"`{name}=" in PAGE
        assert name in known
    for name in ("l1", "l2", "penalty_weight", "adversarial_share", "adversarial_cap"):
        assert f"`{name}`" in PAGE
        assert name in known
    attributes = next(line for line in PAGE.splitlines() if line.startswith("| attributes of"))
    there, remedies = attributes.split(" | ")[:2]
    for name in re.findall(r"`(\w+)(?:\(\))?`", there):
        assert hasattr(quintet.VQGanVAETrainer, name), name
    assert {*re.findall(r"`(\w+)`", remedies)} <= {*REMEDIES}


# -- a script for each package --------------------------------------------------------------------


def told(err: str) -> list[str]:
    return [
        line.split("FutureWarning: ")[1] for line in err.splitlines() if "FutureWarning" in line
    ]


def expected(script: Path) -> list[str]:
    """What a script's own last lines say that it is told."""
    text = script.read_text(encoding="utf-8")
    return re.findall(r"^# told: (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_of_each_package_runs_with_one_notice_for_each_old_spelling(
    name: str, media: Path, tmp_path: Path
) -> None:
    (tmp_path / "media").symlink_to(media)
    script = SCRIPTS / f"{name}.py"
    said = run_script(script, folder=tmp_path, action="default")
    assert said.status == 0, said.err
    assert expected(script)
    heard, due = sorted(told(said.err)), sorted(expected(script))
    assert len(heard) == len(due), heard
    assert all(one.startswith(other.rstrip("…")) for one, other in zip(heard, due)), heard
    assert "done" in said.out
    for run in tmp_path.glob("**/metrics.jsonl"):
        assert lines(run.parent)[-1]["step"] == 2
    assert list(tmp_path.glob("**/metrics.jsonl"))


def test_there_is_a_script_for_each_package() -> None:
    assert {f"{name.replace('_', '-')}" for name in NAMES} == set(SECTIONS.values())
