"""A trainer trains the recipe that it names, and resumes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quintet
import small
from campaign.subjects import replaced
from harness import assert_same, tensors
from quintet import rooms
from quintet.engine.config import differences, to_json

TRAINERS = [
    name
    for name in quintet.__all__
    if name.endswith("Trainer") and getattr(quintet, name).name  # others train no recipe of a name
]
MODELS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "CodecTrainer": (small.codec, set()),
    "ImageFlowFewTrainer": (small.image_flow, {"teacher", "images.size"}),
    "ImageFlowTrainer": (small.image_flow, {"tokenizer", "images.size"}),
    "MaskGitTrainer": (small.maskgit, {"tokenizer", "images.size"}),
    "MeshAutoencoderTrainer": (small.autoencoder, set()),
    "MeshTransformerTrainer": (small.transformer, {"autoencoder", "meshes.max_faces"}),
    "MuLaNTrainer": (small.mulan, {"sounds.sample_rate"}),
    "MusicFlowTrainer": (small.music_flow, {"tokenizer", "sounds.seconds"}),
    "RetopologyTrainer": (small.retopology, set()),
    "VQGanVAETrainer": (small.vae, set()),
    "VideoFlowFewTrainer": (small.video_flow, {"teacher", "videos.size", "videos.frames"}),
    "VideoFlowTrainer": (small.video_flow, {"tokenizer", "videos.size", "videos.frames"}),
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
    assert getattr(trainer.recipe, "model", model().config) == model().config
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
    longer = "steps, " if recipe.steps != kind.default_recipe().steps else ""
    assert f"changed: {longer}" in opening
    assert "model." not in opening


SMALLER = {
    "steps": 4,
    "batch_size": 2,
    "workers": 0,
    "trackers": (),
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "log_every": 1,
    "save_every": 2,
    "evaluate_every": 0,
    "valid_limit": 2,
    "builtin_count": 16,
    "count": 1,
    "reference_count": 4,
    "sampling_steps": 2,
    "compared": 4,
    "size": (16, 16),
    "frames": 5,
    "max_seconds": 1.5,
    "retrievals": 2,
    "corrections": 2,
}
"""Where a recipe has such a field, a smaller value."""


# Every recipe is resumed in test_recipes.py, and a trainer only starts it in another way: these
# are two of the shortest.
QUICK = ("MeshAutoencoderTrainer", "VQGanVAETrainer")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in TRAINERS]
)
def test_a_run_cut_short_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Data sets of users are those of tests/engine/test_trainer.py."""
    kind, model = getattr(quintet, name), MODELS[name][0].__wrapped__()  # type: ignore[attr-defined]
    recipe = replaced(rooms.recipe_function(f"{kind.name}_tiny")(), SMALLER)

    def train(run: str, resume: bool = False, **changes: Any) -> int:
        trainer = kind(copy.deepcopy(model), recipe=recipe, run=tmp_path / run, **changes)
        return trainer.train(resume=resume)

    assert train("straight") == 4
    assert train("cut", minutes=1e-9) == 1
    assert train("cut", resume=True) == 4
    assert_same(tensors(tmp_path / "straight", 4), tensors(tmp_path / "cut", 4))
