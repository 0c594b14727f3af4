"""Training of an adopted ClapModel, as of a MuLaN: its loss is that of the global batch."""

from typing import Any

from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.task import Batch
from quintet.music.clap.config import ClapRecipe
from quintet.music.clap.model import AdoptedClap
from quintet.music.mulan.task import MuLaNTask
from quintet.music.mulan.towers import draw_masks


class ClapTask(MuLaNTask):
    """Steps are neither captured nor compiled: the length of texts varies, and code of transformers
    may read tensors on the host."""

    capturable = False
    model: AdoptedClap
    recipe: ClapRecipe

    def __init__(self, recipe: ClapRecipe) -> None:
        assert recipe.clap is not None, "a run keeps its own copy before the task is built"
        model = AdoptedClap.from_pretrained(recipe.clap)
        rate, longest = model.config.sample_rate, model.config.seconds
        if recipe.sounds.sample_rate != rate:
            raise RunError(
                f"this ClapModel takes {rate} samples per second; set --sounds.sample-rate {rate}"
            )
        if recipe.sounds.seconds > longest:
            raise RunError(
                f"this ClapModel takes {longest:g} s at once; set --sounds.seconds to that or less"
            )
        model.train_only(recipe.train)
        super().__init__(recipe, model)  # type: ignore[arg-type]  # they answer the same calls
        self.parts[self.main].compiles = False

    def tokenized(self, texts: list[str]) -> dict[str, Tensor]:
        ids, mask = self.model.tokenize(texts)
        return {"text": ids, "mask": mask}

    def draws(self, batch: Batch) -> Any:
        return draw_masks(batch.keys, self.recipe.losses)


build = ClapTask
