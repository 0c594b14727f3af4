"""What the trainers of flow generators of few steps share."""

from typing import Any, TypeVar

from quintet.shared.flow.few_steps import student_of
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.generation.trainer import GeneratorTrainer

F = TypeVar("F", bound=FlowGenerator)


class FewStepsTrainer(GeneratorTrainer[F]):
    """Mixin, before the trainer of a room. The model to train begins as the teacher."""

    def __init__(self, teacher: F, dataset: Any = None, **keywords: Any):
        self.teacher = teacher
        super().__init__(student_of(teacher), dataset, **keywords)

    def derived_from(self, model: F) -> dict[str, Any]:
        return {"teacher": "python:teacher"}

    def stages(self) -> dict[str, Any]:
        return {"teacher": self.teacher}
