"""What travels from workers to the device: numbers of 16 bits, and batches in shared memory.

Data of 16 bits, such as most recordings, stays int16 while it is collated, shared, pinned and
copied, and becomes floats of the same values on the device.

torch sends a tensor of a worker as a file: the two processes connect to each other, map it and
fault its pages, which takes milliseconds for each batch. Here each worker writes its batches into
slots of its own, in memory that is shared from the start, and sends where the tensors are. The main
process copies a batch out of its slot at once, for a GPU into pinned memory, in one piece.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from quintet.engine.machine import memory

UNIT = 2.0**-15
SLOT = 256 << 20
"""Most bytes of a slot. Memory is used as it is written; what does not fit is sent by torch."""
SHARE = 0.25
"""Share of the free memory that the slots of a loader may take."""
LINE = 64
"""Bytes to which tensors in a slot are aligned."""


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


class Placed(NamedTuple):
    """Where a tensor is in a slot."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_fractions: bool = False

    def of(self, slot: Tensor) -> Tensor | Fractions:
        size = torch.Size(self.shape).numel() * self.dtype.itemsize
        tensor = slot[self.start : self.start + size].view(self.dtype).view(self.shape)
        return Fractions(tensor) if self.is_fractions else tensor


def mapped(function: Callable[[Any], Any], data: Any) -> Any:
    """Nested data with the function applied to tensors, fractions and places of tensors."""
    if isinstance(data, (Tensor, Fractions, Placed)):
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


class Parcel:
    """A batch on its way: its slot, and nested data with places instead of tensors."""

    def __init__(self, slots: int, slot: int, used: int, content: Any) -> None:
        self.slots, self.slot, self.used, self.content = slots, slot, used, content

    def opened(self) -> Any:
        return self._on(self._bytes().clone())

    def pin_memory(self) -> Any:
        """Called by the loader, for a GPU."""
        return self._on(self._bytes().pin_memory())

    def _bytes(self) -> Tensor:
        return _open[self.slots].slot(self.slot)[: max(1, self.used)]

    def _on(self, slot: Tensor) -> Any:
        return mapped(lambda x: x.of(slot) if isinstance(x, Placed) else x, self.content)


class Slots:
    """The slots of all workers of a loader.

    A worker is asked for a batch only after the main process has received all but the last `ahead`
    of those before. With one slot more than that, none is written before it was copied.
    """

    def __init__(self, workers: int, ahead: int) -> None:
        self.number, self.each = next(_numbers), ahead + 1
        self._batches = self._used = 0
        many = workers * self.each
        self.size = min(SLOT, int(SHARE * memory.available()) // many // LINE * LINE)
        self._memory = None
        if self.size:
            with suppress(OSError):  # the system promises no more than it has
                self._shared = mmap.mmap(-1, many * self.size)
                self._memory = torch.frombuffer(self._shared, dtype=torch.uint8)
        _open[self.number] = self

    def __getstate__(self) -> Any:
        """A worker that is not forked shares nothing."""
        return {"_memory": None}

    def free(self) -> None:
        """Give back the memory of batches that were received."""
        if self._memory is not None and hasattr(mmap, "MADV_REMOVE"):
            self._shared.madvise(mmap.MADV_REMOVE)

    def slot(self, number: int) -> Tensor:
        assert self._memory is not None
        return self._memory[number * self.size : (number + 1) * self.size]

    def collated(self, collate: Callable[[Any], Any], samples: Any) -> Any:
        """In a worker: a parcel of what `collate` returns."""
        global _writing
        worker = get_worker_info()
        if worker is None or self._memory is None:
            return collate(samples)
        number = worker.id * self.each + self._batches % self.each
        self._batches, self._used = self._batches + 1, 0
        self._slot, _writing = self.slot(number), self
        content = mapped(self._placed, collate(samples))
        return Parcel(self.number, number, self._used, content)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """A tensor in the slot of the current batch, if there is room."""
        start = -(-self._used // LINE) * LINE
        end = start + torch.Size(shape).numel() * dtype.itemsize
        if end > self.size:
            return None
        self._used = end
        tensor = Placed(start, tuple(shape), dtype).of(self._slot)
        assert isinstance(tensor, Tensor)
        return tensor.zero_()

    def _placed(self, data: Tensor | Fractions) -> Any:
        tensor = data.values if isinstance(data, Fractions) else data
        plain = type(tensor) is Tensor and tensor.layout == torch.strided
        if not plain or tensor.device.type != "cpu":
            return data
        start = tensor.data_ptr() - self._slot.data_ptr()
        if not (tensor.is_contiguous() and 0 <= start < self._used):
            copy = self.zeros(tensor.shape, tensor.dtype)
            if copy is None:
                return data
            start = copy.copy_(tensor.detach()).data_ptr() - self._slot.data_ptr()
        return Placed(start, tuple(tensor.shape), tensor.dtype, isinstance(data, Fractions))


_numbers = count()
_open: WeakValueDictionary[int, Slots] = WeakValueDictionary()
_writing: Slots | None = None
"""Slots of the batch that this worker collates."""


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
    """In a worker in the slot of its batch: sending the tensor copies nothing."""
    batch = None if _writing is None else _writing.zeros(shape, dtype)
    return torch.zeros(*shape, dtype=dtype) if batch is None else batch
