"""Custom data sets as sources: items are routed by name, by position or by type."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from quintet.engine.data.source import as_source
from quintet.engine.keys import Key
from quintet.media.audio import LOUDEST, SILENCE


class OwnData:
    """A map-style data set whose items are dicts, tuples (named by `data_kwargs`, or routed by
    `positional`), or single values. A room says which fields there are and builds a sample."""

    fields: ClassVar[Mapping[str, str]]
    """Field of each name that a dict may use."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    strict: ClassVar[bool] = True
    """Whether other keys of a dict are an error; otherwise they are ignored."""
    items: ClassVar[str]
    """What an item must be, for error messages."""

    def __init__(self, dataset: Any, names: Sequence[str] = ()):
        self.source = as_source(dataset)
        self.names = tuple(names) or tuple(getattr(dataset, "data_kwargs", None) or ())
        self.indices: Sequence[int] = range(len(self.source))
        unknown = next(
            (n for n in self.names if n not in self.fields and n not in self.ignored), None
        )
        if unknown is not None:
            raise TypeError(f"data_kwargs names {unknown!r}; known: {', '.join(self.fields)}")

    def subset(self, indices: Sequence[int]) -> "OwnData":
        part = copy.copy(self)
        part.indices = indices
        return part

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        """Name in the custom data set, whatever the split."""
        return self.source.name(self.indices[index])

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        where = f"sample {self.indices[index]}"
        return self.sample(
            self.route(self.source.keyed(self.indices[index], key), where), where, key
        )

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        raise NotImplementedError

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        """The fields of a tuple without names."""
        raise NotImplementedError

    def route(self, item: Any, where: str) -> dict[str, Any]:
        if isinstance(item, (tuple, list)) and self.names:
            if len(self.names) != len(item):
                raise TypeError(
                    f"data_kwargs names {len(self.names)} fields, but {where} has {len(item)}"
                )
            item = dict(zip(self.names, item))
        if isinstance(item, Mapping):
            unknown = [n for n in item if n not in self.fields and n not in self.ignored]
            if unknown and self.strict:
                raise TypeError(f"{where} has {unknown[0]!r}; known: {', '.join(self.fields)}")
            pairs = [(self.field(str(n), v), v) for n, v in item.items() if n in self.fields]
        else:
            values = item if isinstance(item, (tuple, list)) else [item]
            pairs = self.positional(values, where)
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TypeError(f"{where} has {twice} twice; {self.items}: name fields by data_kwargs")
        return dict(pairs)

    def field(self, name: str, value: Any) -> str:
        return self.fields[name]


def as_tensor(value: Any) -> Any:
    """A numpy array as a tensor; anything else as it is."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def kind_of(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def as_ids(value: Any, what: str, remedy: str) -> Tensor:
    """(m,) integers."""
    ids = torch.as_tensor(value)
    if ids.ndim != 1 or ids.is_floating_point() or not len(ids):
        raise TypeError(f"the {what} are {tuple(ids.shape)} of {ids.dtype}; give {remedy}")
    return ids.long()


def as_mono(value: Any, what: str) -> Tensor:
    """A sound (n,) from (n,) or (channels, n) floating-point samples."""
    value = as_tensor(value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(f"{what} is {kind_of(value)}; give floating-point samples in -1..1")
    sound = value.detach().float()
    if sound.ndim == 2 and sound.shape[0] <= sound.shape[1]:
        sound = sound.mean(0)
    if sound.ndim != 1 or not len(sound):
        raise TypeError(f"{what} has shape {tuple(value.shape)}; give (n,) or (channels, n)")
    return sound


def as_sound(value: Any, channels: int, what: str) -> Tensor:
    """Samples (n,), or (n, channels) of several; neither silent nor far beyond full scale."""
    given = as_tensor(value)
    if channels > 1 and isinstance(given, Tensor) and given.shape[:-1] == (channels,):
        sound = torch.stack([as_mono(row, what) for row in given], 1)
    else:  # mixed, and repeated
        sound = as_mono(given, what)
        sound = sound if channels == 1 else sound[:, None].expand(-1, channels)
    check_level(sound, what)
    return sound


def check_level(sound: Tensor, what: str) -> None:
    peak = sound.abs().max().item()
    if not peak <= LOUDEST:
        raise ValueError(f"{what} reaches {peak:.3g}, where 1 is full scale")
    if peak < SILENCE:
        raise ValueError(f"{what} is silent")
