"""What the generators of images share."""

from typing import Any, ClassVar, TypeVar

from quintet.image.data import open_data
from quintet.image.own_data import OwnImages
from quintet.shared.generation.generator import Generator
from quintet.shared.generation.trainer import GeneratorTrainer
from quintet.shared.tokenizer.model import check_divisible


class PictureGenerator(Generator):
    @classmethod
    def grid_of(cls, tokenizer: Any, size: Any, frames: int | None = None) -> tuple[int, ...]:
        if tokenizer is None or size is None or frames is not None:
            raise ValueError("give image_size beside a tokenizer, or grid; images have no frames")
        height, width = (size, size) if isinstance(size, int) else size
        check_divisible(height, width, tokenizer.factor, "images")
        return height // tokenizer.factor, width // tokenizer.factor

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images of training."""
        height, width = self.config.grid
        return height * self.tokenizer.factor, width * self.tokenizer.factor


P = TypeVar("P", bound=PictureGenerator)


class PictureTrainer(GeneratorTrainer[P]):
    Task: ClassVar[type[Any]]

    def __init__(self, model: P, dataset: Any = None, **keywords: Any):
        channels = model.tokenizer.config.channels
        derived = {"images.size": model.image_size, "images.channels": channels}
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: Any) -> OwnImages:
        return OwnImages(dataset, recipe.images.channels)

    def open(self, recipe: Any) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def task(self, recipe: Any) -> Any:
        return self.Task(recipe, self.model, self.sets)
