"""Small types between workers and device: numbers from -1 to 1 as 16-bit integers.

Data of 16 bits, such as most recordings, stays int16 while it is collated, shared, pinned and
copied, and becomes floats of the same values on the device. A batch of a worker is written straight
into shared memory. Small tensors are sent in the message instead: to share one, the two processes
connect to each other, which takes longer than small steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

UNIT = 2.0**-15
SMALL = 16 << 10
"""Bytes of a tensor that is sent in a message, at most."""


class Fractions(NamedTuple):
    """Multiples of `UNIT`; a float tensor once it is on the device."""

    values: Tensor
    """int16."""

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def to_floats(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """int16 as multiples of `UNIT`, exactly; other tensors as they are."""
    return values.to(dtype) * UNIT if values.dtype == torch.int16 else values


def mapped(function: Callable[[Any], Any], data: Any) -> Any:
    """Nested data with the function applied to tensors, fractions and inline tensors."""
    if isinstance(data, (Tensor, Fractions, InlineTensor)):
        return function(data)
    if isinstance(data, dict):
        return {name: mapped(function, value) for name, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(mapped(function, value) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(mapped(function, value) for value in data)
    return data


def tensors_in(data: Any) -> Iterator[Tensor]:
    """The tensors of nested data, in a fixed order."""
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, (Mapping, list, tuple)):
        for value in data.values() if isinstance(data, Mapping) else data:
            yield from tensors_in(value)


def widened(
    data: Any,
    dtype: torch.dtype = torch.float32,
    move: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Any:
    """Nested data with floats in place of fractions, after each tensor was moved."""
    return mapped(
        lambda x: to_floats(move(x.values), dtype) if isinstance(x, Fractions) else move(x), data
    )


class InlineTensor:
    """A small tensor within a message."""

    def __init__(self, tensor: Tensor) -> None:
        self.values: np.ndarray[Any, Any] = tensor.numpy()

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.values)

    def pin_memory(self) -> Tensor:
        """Called by the loader, for a GPU."""
        return self.tensor().pin_memory()


def with_inline(data: Any) -> Any:
    """Nested data of a worker with its small tensors inline; other data as it is."""
    if get_worker_info() is None:
        return data
    known = (torch.int64, torch.int32, torch.float32, torch.bool)  # numpy has no bfloat16
    small = lambda x: isinstance(x, Tensor) and x.dtype in known and x.nbytes <= SMALL
    return mapped(lambda x: InlineTensor(x) if small(x) else x, data)


def without_inline(data: Any) -> Any:
    """Nested data with tensors in place of inline ones."""
    return mapped(lambda x: x.tensor() if isinstance(x, InlineTensor) else x, data)


def padded(rows: Sequence[Tensor], length: int) -> Tensor | Fractions:
    """Rows (n, …) as one batch (b, length, …), padded with 0: fractions if all rows are int16,
    otherwise float32."""
    narrow = all(row.dtype == torch.int16 for row in rows)
    shape = (len(rows), length, *rows[0].shape[1:])
    batch = zeros(shape, torch.int16 if narrow else torch.float32)
    for into, row in zip(batch, rows):
        into[: len(row)] = row if narrow else to_floats(row)
    return Fractions(batch) if narrow else batch


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """In a worker in shared memory, where new pages are 0: sending the tensor copies nothing."""
    count = torch.Size(shape).numel()
    if get_worker_info() is None or not count:
        return torch.zeros(*shape, dtype=dtype)
    storage = torch.UntypedStorage._new_shared(count * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape))  # type: ignore[call-overload]
