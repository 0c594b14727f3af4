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
from quintet.engine.errors import RunError
from quintet.engine.settings import keywords_of

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
    recipes = {name: getattr(quintet, name).default_recipe() for name in PARAMETERS}
    image, video = recipes["VQGanVAETrainer"], recipes["VideoTokenizerTrainer"]
    mesh = recipes["MeshAutoencoderTrainer"]
    music, speech = recipes["MuLaNTrainer"], recipes["VoiceBoxTrainer"]
    limits = [
        f"{image.images.valid_limit} images",
        f"{video.videos.valid_limit} clips",
        f"{mesh.meshes.valid_limit} meshes",
        f"{music.sounds.valid_limit} sounds",
        f"{speech.recordings.valid_limit} recordings",
    ]
    assert f"at most `valid_limit`: {', '.join(limits)}" in PAGE
    optims = [recipe.optim for recipe in recipes.values()]
    assert {optim.scheduler for optim in optims} == {"cosine"}
    warmups, decays = ({getattr(o, n) for o in optims} for n in ("warmup_steps", "ema_decay"))
    assert f"a warm-up of {min(warmups)} to {max(warmups)} steps" in PAGE
    assert f"`ema_decay` of {min(decays)} or {max(decays)} in all six" in PAGE
    workers = {recipe.workers for recipe in recipes.values()}
    assert f"{min(workers)} to {max(workers)} workers" in PAGE
    assert f"the {speech.keep_last} newest checkpoints and the best stay" in PAGE
    assert f"at most `max_faces` ({mesh.meshes.max_faces};" in PAGE
    assert f"share of the run; {video.losses.adversarial_from} by default" in PAGE
    assert f"(`adversarial_from`, {image.losses.adversarial_from} of the run)" in PAGE
    assert f"`steps`; {music.steps} by default" in PAGE
    assert f"or `seconds`, {music.sounds.seconds:g} by default" in PAGE
    longest, characters = speech.recordings.max_seconds, speech.recordings.text_length
    assert f"`max_seconds` ({longest:g}) and `text_length` ({characters} characters)" in PAGE


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


@pytest.mark.by_default("muse_maskgit_pytorch", "musiclm_pytorch")
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
