"""What tasks of adopted autoencoders share."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch

from quintet.engine.errors import RunError
from quintet.engine.keys import fold
from quintet.engine.task import Task, World
from quintet.shared.adopt.bottlenecks import AdoptedGaussian
from quintet.shared.adopt.config import AdoptSettings
from quintet.shared.adopt.model import AdoptedTokenizer
from quintet.shared.adopt.passes import Shape

T = TypeVar("T", bound=AdoptedTokenizer)


def adopted(
    kind: type[T], recipe: AdoptSettings, shape: Shape | None = None
) -> tuple[T, list[str]]:
    """The autoencoder, ready to be trained on this shape, and its unused parameters."""
    assert recipe.autoencoder is not None, "a run keeps its own copy before the task is built"
    model = kind.from_pretrained(recipe.autoencoder)
    if shape is not None and model.config.channels != shape[0]:
        raise RunError(f"the autoencoder has {model.config.channels} channels, the data {shape[0]}")
    model.config = replace(model.config, kl_weight=recipe.kl_weight)
    if isinstance(model.quantiser, AdoptedGaussian):
        model.quantiser.kl_weight = recipe.kl_weight
    torch.manual_seed(fold(recipe.seed, "low_rank"))
    return model, model.train_only(recipe.train, shape or model.example(), recipe.lora_rank)


class Adopting(Task):
    """Mixed into the task of a room. Networks are not compiled: the libraries may read tensors on
    the host, or keep state between calls."""

    recipe: Any
    unused: list[str]

    def leave_eager(self) -> None:
        self.parts[self.main].compiles = False

    def prepare(self, world: World) -> None:
        for sentence in self._notes() if world.is_main else ():
            sys.stderr.write(f"quintet: {sentence}\n")

    def _notes(self) -> Iterator[str]:
        if self.unused:
            named = ", ".join(self.unused[:3]) + (" …" if len(self.unused) > 3 else "")
            yield (
                f"{len(self.unused)} parameters of the autoencoder are not used by such inputs and "
                f"stay as they are: {named}"
            )
        asked, warm = self.recipe.warm_discriminator, self.recipe.warm_steps
        if warm < asked:
            yield (
                f"a run of {self.recipe.steps} steps is too short for warm_discriminator {asked}; "
                f"the discriminators are warmed for {warm}"
            )
