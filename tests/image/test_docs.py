"""The commands of docs/image.md that change the downsampling do so."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from quintet import rooms
from quintet.cli.common import parse
from quintet.cli.train import flags_of
from quintet.image.vqgan.model import VQGanVAE

PAGE = (Path(__file__).parents[2] / "docs/image.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| (\d+)[^|]*\| `(quintet train [^`]*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("factor", "command"), COMMANDS)
def test_the_command_gives_the_factor(factor: str, command: str) -> None:
    _, _, name, *words = shlex.split(command)
    recipe = parse(flags_of(name, rooms.recipe_function(name)()), words, "train").settings
    assert recipe.model.factor == int(factor)
    if name.endswith("_tiny"):
        side = recipe.images.size[0]
        reconstruction = VQGanVAE(recipe.model).reconstruct(torch.rand(1, 3, side, side))
        assert reconstruction.shape == (1, 3, side, side)


def test_there_is_a_command_for_both_factors_and_both_recipes() -> None:
    assert sorted(factor for factor, _ in COMMANDS) == ["16", "16", "32", "32"]
