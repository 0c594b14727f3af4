"""The `_large` recipes: each is built without values and has the size that it states."""

import dataclasses
from typing import Any

import pytest
import torch

from quintet import rooms
from quintet.mesh import recipes as mesh_recipes
from quintet.mesh.transformer.model import MeshTransformer

PARAMETERS = {
    "image/flow_large": (320e6, 350e6),
    "image/vqgan_large": (100e6, 120e6),
    "image/vqgan_large_f16": (200e6, 230e6),
    "mesh/autoencoder_large": (55e6, 70e6),
    "mesh/retopology_large": (310e6, 330e6),
    "mesh/transformer_large": (280e6, 340e6),
    "music/codec_large": (130e6, 142e6),
    "music/flow_large": (300e6, 350e6),
    "music/mulan_large": (180e6, 220e6),
    "speech/voicebox_large": (200e6, 300e6),
    "video/flow_large": (320e6, 350e6),
    "video/tokenizer_large": (55e6, 75e6),
}
"""Trainable parameters of all parts, at least and at most."""


def total_parameters(name: str, recipe: Any) -> int:
    with torch.device("meta"):
        if name.endswith("/flow_large"):
            networks = [rooms.family_of(recipe).model(recipe.model)]
        elif recipe.stages:
            codes = mesh_recipes.autoencoder_large().model
            config = dataclasses.replace(recipe.model, max_faces=recipe.meshes.max_faces)
            networks = [MeshTransformer(config.with_codebook_of(codes))]
        else:
            parts = rooms.build(recipe).parts.values()
            networks = [part.network for part in parts if part.optimizer is not None]
    return sum(p.numel() for net in networks for p in net.parameters() if p.requires_grad)


def test_every_large_recipe_states_its_size() -> None:
    assert set(PARAMETERS) == {name for name in rooms.names() if "_large" in name}
    assert {name.partition("/")[0] for name in PARAMETERS} == set(rooms.rooms())


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_large_recipe_has_the_parameters_that_it_states(name: str) -> None:
    recipe = rooms.recipe_function(name)()
    least, most = PARAMETERS[name]
    count = total_parameters(name, recipe)
    assert least <= count <= most
    stated = f"{count / 1e6:.0f} M"
    assert f"({stated})" in (rooms.recipe_function(name).__doc__ or "").splitlines()[0]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_large_recipe_can_be_divided_among_eight_gpus(name: str) -> None:
    recipe = rooms.recipe_function(name)()
    assert recipe.batch_size * recipe.accumulate // 8 * 8 == recipe.batch_size * recipe.accumulate
