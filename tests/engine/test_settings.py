"""One field, one description, one name: on the command line, in Python, on resume and in JSON."""

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import quintet
from adopting import adopts
from quintet import rooms
from quintet.cli.resume import flags_of, refuse_fixed
from quintet.cli.train import flags_of as train_flags
from quintet.engine.config import to_json
from quintet.engine.errors import RunError
from quintet.engine.settings import Setting, keywords_of, names_for, settings_of, updated

NAMES = rooms.names()


def types_of(name: str) -> tuple[type, ...]:
    recipe = rooms.recipe_function(name)()
    values = (getattr(recipe, field.name) for field in dataclasses.fields(recipe))
    return type(recipe), *(type(value) for value in values if dataclasses.is_dataclass(value))


# Its flags follow from its types; the slow tests ask every recipe.
ONE_OF_EACH = [*{types_of(name): name for name in NAMES}.values()]
EACH_KIND = [
    pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.slow) for name in NAMES
]
TRAINERS = {
    "image/flow": "ImageFlowTrainer",
    "image/flow_few": "ImageFlowFewTrainer",
    "image/maskgit": "MaskGitTrainer",
    "image/vqgan": "VQGanVAETrainer",
    "mesh/autoencoder": "MeshAutoencoderTrainer",
    "mesh/retopology": "RetopologyTrainer",
    "mesh/transformer": "MeshTransformerTrainer",
    "music/codec": "CodecTrainer",
    "music/flow": "MusicFlowTrainer",
    "music/mulan": "MuLaNTrainer",
    "speech/vocoder": "VocoderTrainer",
    "speech/voicebox": "VoiceBoxTrainer",
    "video/flow": "VideoFlowTrainer",
    "video/flow_few": "VideoFlowFewTrainer",
    "video/maskgit": "VideoMaskGitTrainer",
    "video/tokenizer": "VideoTokenizerTrainer",
}

SAME_TRAINER = {
    "image/autoencoder": "image/vqgan",
    "video/autoencoder": "video/tokenizer",
    "video/continuation": "video/flow",
}
"""Recipes for the trainer of another, as its `recipe`."""


@cache
def settings(name: str) -> list[Setting]:
    return list(settings_of(rooms.recipe_function(name)()))


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_one_description_and_one_name(name: str) -> None:
    for setting in settings(name):
        assert setting.description, f"{setting.name} of {name} has no sentence under its field"
        assert setting.description.endswith("."), setting.name
        assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", setting.name)
    names = [setting.name for setting in settings(name)]
    assert len(names) == len(set(names))


@pytest.mark.by_default(
    "image/vqgan_large_f16",
    "mesh/transformer_large",
    "music/adopt_tiny",
    "speech/voicebox_large",
    "video/maskgit_tiny",
)
@pytest.mark.parametrize("name", EACH_KIND)
def test_every_setting_is_a_flag_of_train(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import tyro

    kind = train_flags(name, rooms.recipe_function(name)())
    with pytest.raises(SystemExit):
        tyro.cli(kind, args=["--help"])
    words = set(re.findall(r"--[a-z0-9.-]+", capsys.readouterr().out))
    assert {setting.flag for setting in settings(name)} <= words


@pytest.mark.parametrize("name", NAMES)
def test_every_free_setting_and_no_other_is_a_flag_of_resume(name: str) -> None:
    recipe = rooms.recipe_function(name)()
    flags = {f.name.replace("__", ".") for f in dataclasses.fields(flags_of(recipe))} - {"run"}
    assert flags == {setting.name for setting in settings(name) if setting.free}


@pytest.mark.by_default(
    "image/vqgan_large_f16",
    "mesh/transformer_large",
    "music/adopt_tiny",
    "speech/voicebox_large",
    "video/maskgit_tiny",
)
@pytest.mark.parametrize("name", EACH_KIND)
def test_every_fixed_setting_is_refused_on_resume_with_the_command_of_a_new_run(
    name: str, tmp_path: Path
) -> None:
    recipe, run = rooms.recipe_function(name)(), tmp_path / "a"
    (run / "checkpoints/step-00000001").mkdir(parents=True)
    for setting in settings(name):
        words = [str(run), setting.flag, "7", "--steps", "9"]
        if setting.free:
            refuse_fixed(name, recipe, run, words)
            continue
        with pytest.raises(RunError) as refused:
            refuse_fixed(name, recipe, run, words)
        said = str(refused.value)
        assert f"{setting.flag} cannot change on resume (it is " in said
        assert re.search(rf"quintet train {name} .*{setting.flag} 7 --steps 9 .*--run \S+a-2", said)
        assert (f"--init-from {run}" in said) == (setting.name != "init_from")


@pytest.mark.by_default("image/vqgan", "mesh/transformer", "music/mulan", "speech/voicebox")
@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_every_setting_is_reachable_from_the_trainer_under_its_name(name: str) -> None:
    """As a keyword where the short name is unique, and by its dotted name in any case; `model` is
    the model's own."""
    recipe = rooms.recipe_function(name)()
    fields = {field.name for field in dataclasses.fields(recipe)}
    for setting in settings(name):
        assert updated(recipe, {setting.name: setting.default}) == recipe, setting.name
        group, _, short = setting.name.rpartition(".")
        alike = [s for s in settings(name) if s.name.rpartition(".")[2] == short]
        unique = len([s for s in alike if not s.name.startswith("model.")]) == 1
        if unique and not group.startswith("model") and (not group or short not in fields):
            assert names_for(recipe, short) == [setting.name]
            assert short in keywords_of(recipe)


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_every_recipe_has_a_trainer_that_is_public(name: str) -> None:
    assert getattr(quintet, TRAINERS[name]).name == name
    own = [n for n in NAMES if not adopts(rooms.recipe_function(n)())]
    recipes = {re.sub("_(compact|tiny|medium|large).*", "", n) for n in own}
    assert recipes == {*TRAINERS, *SAME_TRAINER}


@pytest.mark.parametrize("name", SAME_TRAINER)
def test_a_recipe_of_a_trainer_that_is_named_after_another(name: str) -> None:
    recipes = [rooms.recipe_function(n)() for n in (name, SAME_TRAINER[name])]
    assert type(recipes[0]) is type(recipes[1])


def test_json_has_the_same_names() -> None:
    for name in NAMES:
        assert set(_dotted(to_json(rooms.recipe_function(name)()))) == {
            setting.name for setting in settings(name)
        }


def _dotted(tree: dict[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, value in tree.items():
        full = f"{prefix}{name}"
        names += _dotted(value, f"{full}.") if isinstance(value, dict) else [full]
    return names
