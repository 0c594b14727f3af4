"""What trainers of tokenizers share: keywords about critics, own data sets, ids by averages."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from quintet.engine.config import resolved
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.stream import name_of, read_sample
from quintet.engine.trainer import BaseTrainer, Keywords, modern, shared_keywords, split


class Tokenizer(Protocol):
    def tokenize(self, values: Tensor) -> Tensor: ...
    def reconstruct(self, values: Tensor) -> Tensor: ...


class OwnData:
    """A data set of the user's: items that are tensors, tuples that begin with one, or dicts."""

    names: ClassVar[tuple[str, ...]]
    """Under which a dict may hold it; the first is what the task calls it."""
    shapes: ClassVar[Mapping[int, str]]
    """What it may be, by its number of axes."""

    def __init__(self, source: Any):
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return name_of(self.source, index)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        item = read_sample(self.source, index, key)
        text = ""
        if isinstance(item, dict):
            text = str(item.get("text", ""))
            item = next((item[name] for name in self.names if name in item), None)
        elif isinstance(item, (tuple, list)):
            item = item[0]
        if isinstance(item, np.ndarray):
            item = torch.from_numpy(item)
        if not isinstance(item, Tensor) or item.ndim not in self.shapes:
            wanted = " or ".join(self.shapes.values())
            raise TypeError(
                f"an item of the data set must be {wanted}, a tuple that begins with one, or a dict"
                f" with {self.names[0]!r}; sample {index} is {type(item).__name__}"
            )
        return self.sample(item, text, index, key)

    def sample(self, item: Tensor, text: str, index: int, key: Key | None) -> dict[str, Any]:
        return {self.names[0]: item, "text": text}


class TokenizerTrainer(BaseTrainer):
    """Keywords of all trainers of tokenizers: `adversarial` (none, hinge, relativistic),
    `adversarial_from` (share of the run before the critics start), `penalty`, `penalty_every`,
    `perceptual` (weight) and `vgg` (a local file of weights)."""

    own: ClassVar[frozenset[str]] = frozenset(
        {"adversarial", "adversarial_from", "penalty", "penalty_every", "perceptual", "vgg"}
    )

    def keywords_of(self, given: Mapping[str, Any]) -> tuple[Keywords, dict[str, Any]]:
        """Those of every trainer, and those about losses."""
        known = modern(given, shared_keywords() | self.own)
        losses = {name: known.pop(name) for name in list(known) if name in self.own}
        return Keywords(**known), losses

    @staticmethod
    def sets_of(
        folder: str | Path | None, dataset: Any, shared: Keywords, wrap: Callable[[Any], OwnData]
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Where the data is, and the data sets where they are the user's own."""
        if folder is not None and dataset is not None:
            raise RunError("give folder or dataset, and not both")
        if shared.val_dataset is not None and dataset is None:
            raise RunError("val_dataset goes with dataset; a folder holds out its valid_frac")
        if dataset is None:
            return resolved(folder), None
        if shared.val_dataset is None:
            return "python:dataset", split(wrap(dataset), shared.valid_frac, shared.seed)
        held = wrap(shared.val_dataset)
        return "python:dataset", {"train": wrap(dataset), "valid": held}

    def tokenize(self, values: Tensor) -> Tensor:
        """Ids of what is in 0..1, by the averaged weights."""
        return self._averaged().tokenize(values.to(self._device))

    def reconstruct(self, values: Tensor) -> Tensor:
        """What comes back from a trip through the ids, by the averaged weights."""
        return self._averaged().reconstruct(values.to(self._device))

    def _averaged(self) -> Tokenizer:
        return self.averaged_model()  # type: ignore[return-value]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device
