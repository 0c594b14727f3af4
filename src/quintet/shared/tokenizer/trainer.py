"""What the trainers of tokenizers share: data sets of pixels, and token ids by averaged weights."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from quintet.engine.keys import Key
from quintet.engine.trainer import BaseTrainer
from quintet.shared.own_data import OwnData, as_tensor

T = TypeVar("T", bound=nn.Module)


class OwnPixels(OwnData):
    """Items are tensors, tuples that begin with one, or dicts."""

    shapes: ClassVar[Mapping[int, str]]
    """What a tensor may be, by its number of axes; c stands for the channels."""
    strict = False
    items = "items are tensors, tuples that begin with one, or dicts"

    def __init__(self, dataset: Any, channels: int = 3):
        super().__init__(dataset)
        self.channels = channels

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        return [(next(iter(self.fields.values())), values[0])]

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        name = next(iter(self.fields.values()))
        pixels = as_tensor(fields.get(name))
        if not isinstance(pixels, Tensor) or pixels.ndim not in self.shapes:
            raise TypeError(
                f"an item of the data set must be {self._expected()}, a tuple that begins with one,"
                f" or a dict with {name!r}; {where} is {type(pixels).__name__}"
            )
        if pixels.shape[0] != self.channels:  # not a ValueError: no sample of the set will do
            raise TypeError(
                f"{where} is {tuple(pixels.shape)}, but the model takes {self._expected()}: "
                "permute its axes, or build the model with other channels"
            )
        return {name: pixels, "text": str(fields.get("text", ""))}

    def _expected(self) -> str:
        return " or ".join(self.shapes.values()).replace("(c,", f"({self.channels},")


class TokenizerTrainer(BaseTrainer[T]):
    def tokenize(self, values: Tensor) -> Tensor:
        """Token ids of values in 0..1, by the averaged weights."""
        return self.averaged_model().tokenize(values.to(self._device))  # type: ignore[operator]

    def reconstruct(self, values: Tensor) -> Tensor:
        """Reconstructions through the token ids, by the averaged weights."""
        return self.averaged_model().reconstruct(values.to(self._device))  # type: ignore[operator]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device
