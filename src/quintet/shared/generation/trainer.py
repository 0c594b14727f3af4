"""What the trainers of generators share."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from quintet.engine.trainer import BaseTrainer
from quintet.shared.generation.generator import Generator

G = TypeVar("G", bound=Generator)


class GeneratorTrainer(BaseTrainer[G]):
    main = "transformer"

    def __init__(
        self,
        model: G,
        dataset: Any,
        keywords: Mapping[str, Any],
        derived: Mapping[str, Any],
    ):
        super().__init__(model, dataset, keywords, {**derived, **self.derived_from(model)})

    def derived_from(self, model: G) -> dict[str, Any]:
        """Settings of the recipe that follow from the model."""
        return {"model": model.config, "tokenizer": "python:tokenizer"}

    def stages(self) -> dict[str, Any]:
        return {"tokenizer": self.model.tokenizer}

    def generate(self, texts: Sequence[str] | str | None = None, **keywords: Any) -> Tensor:
        """New samples by the averaged weights; keywords are those of the model's `generate`."""
        model: Any = self.averaged_model()
        return model.generate(texts, **keywords)
