"""A trainer trains the recipe that it names."""

from collections.abc import Callable
from typing import Any

import pytest

import quintet
import small
from quintet import rooms
from quintet.engine.config import differences, to_json

TRAINERS = [name for name in quintet.__all__ if name.endswith("Trainer") and name != "Trainer"]
MODELS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "MaskGitTrainer": (small.maskgit, {"tokenizer", "images.size"}),
    "MeshAutoencoderTrainer": (small.autoencoder, set()),
    "MeshTransformerTrainer": (small.transformer, {"autoencoder", "meshes.max_faces"}),
    "MuLaNTrainer": (small.mulan, {"sounds.sample_rate"}),
    "VQGanVAETrainer": (small.vae, set()),
    "VideoMaskGitTrainer": (small.video_maskgit, {"tokenizer", "videos.size", "videos.frames"}),
    "VideoTokenizerTrainer": (small.tokenizer, set()),
    "VocoderTrainer": (small.vocoder, {"recordings.sample_rate"}),
    "VoiceBoxTrainer": (small.voicebox, {"recordings.sample_rate", "judges"}),
}
"""A model that is not the recipe's, and the settings beside `model` that follow from it, or from
Python, where there are no judges."""


@pytest.mark.parametrize("name", TRAINERS)
def test_the_defaults_of_a_trainer_are_those_of_its_recipe(name: str) -> None:
    model, derived = MODELS[name]
    trainer = getattr(quintet, name)(model())
    recipe = rooms.recipe_function(trainer.name)()
    assert recipe == trainer.default_recipe()
    differing = differences(to_json(recipe), to_json(trainer.recipe))
    assert {n for n in differing if not n.startswith("model.")} == derived
    assert trainer.recipe.model == model().config
    assert trainer.steps == recipe.steps
    assert trainer.opening == f"{trainer.name} from Python: no settings changed"


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_names_the_settings_that_it_changes(name: str) -> None:
    """Also of another recipe to start from, and of a number of epochs."""
    kind, model = getattr(quintet, name), MODELS[name][0]()
    trainer = kind(model, batch_size=3, num_epochs=1)
    said = f"{trainer.name} from Python: 2 settings changed: steps, batch_size"
    assert trainer.opening == said
    recipe = rooms.recipe_function(f"{trainer.name}_tiny")()
    opening = kind(model, recipe=recipe).opening
    assert opening.startswith(f"{trainer.name} from Python: ")
    assert "changed: steps, " in opening
    assert "model." not in opening
