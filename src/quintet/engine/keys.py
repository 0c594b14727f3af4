"""Stateless keyed randomness: every random choice is a pure function of its key.

`fold` hashes names and numbers to a 63-bit seed. `Key` belongs to one sample in one epoch.
`Permutation` is a keyed bijection: the n-th sample of an epoch is computed, not looked up;
`Windowed` is one that visits neighbours together. `uniform` and `normal` are counter-based
generators on the device, for noise too large to draw on the host.
"""

import hashlib
import math
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from quintet.triton import HAS_TRITON


def fold(*parts: int | str) -> int:
    """63-bit hash of all parts, in their order."""
    text = "\x1f".join([f"i{p}" if type(p) is int else _escape(p) for p in parts])
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _escape(part: int | str) -> str:
    """Escape the separator, so that one name cannot hash like two."""
    text = str(part).replace("\x1e", "\x1e\x1e").replace("\x1f", "\x1e.")
    return f"{type(part).__name__[0]}{text}"


@dataclass(frozen=True, slots=True)
class Key:
    """Key of all random draws of one sample in one epoch."""

    seed: int
    epoch: int
    sample: int

    def fold(self, name: str) -> int:
        return fold(self.seed, self.epoch, self.sample, name)

    def random(self, name: str) -> random.Random:
        return random.Random(self.fold(name))

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng(self.fold(name))


@contextmanager
def preserved_generators(devices: Sequence[int] = ()) -> Generator[None, None, None]:
    """Restore the generators of python, numpy and torch afterwards, and those of the GPUs named."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


def seed_globals(number: int) -> None:
    """Seed python, numpy and torch, for code that draws from global state (a user's data set)."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch.default_generator.manual_seed(number)  # the data runs on the host


ROUNDS = 8


def _splitmix64(value: np.ndarray) -> np.ndarray:
    # The finaliser of splitmix64. The data order of runs depends on it: it must never change.
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


class Permutation:
    """A keyed bijection on range(size): a Feistel network with cycle walking.

    O(1) memory and O(1) random access, for any size. The domain is the next power of four; a value
    outside range(size) is mapped again until it falls inside (fewer than four times on average).
    Sizes up to 256 are sorted by a keyed hash instead: over so few bits a Feistel network is
    biased towards some orders.
    """

    SMALL = 256
    BLOCK = 4096
    """Positions that are computed together. A batch by itself takes a millisecond, a whole step of
    a small network, nearly all of it in calls of numpy."""

    def __init__(self, size: int, *key: int | str):
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, not {size}")
        self.size = size
        self.half = ((size - 1).bit_length() + 1) // 2
        self.mask = (1 << self.half) - 1
        self.round_keys = [fold(*key, "feistel", i) for i in range(ROUNDS)]
        self._begin, self._block = 0, list[int]()
        self.table: list[int] | None = None
        if size <= self.SMALL:
            first, second = map(np.uint64, self.round_keys[:2])
            hashes = _splitmix64(_splitmix64(np.arange(size, dtype=np.uint64) + first) + second)
            self.table = hashes.argsort().tolist()

    def __call__(self, position: int) -> int:
        return self.many(position, 1)[0]

    def many(self, first: int, count: int) -> list[int]:
        """The elements at positions first … first + count - 1, computed together."""
        if first < 0 or count < 0 or first + count > self.size:
            raise IndexError(f"positions {first} to {first + count} are outside range({self.size})")
        if self.table is not None:
            return self.table[first : first + count]
        last = first + count
        if count >= self.BLOCK:
            return self._computed(first, last)
        if not self._begin <= first <= last <= self._begin + len(self._block):
            self._begin = first
            self._block = self._computed(first, min(self.size, first + self.BLOCK))
        return self._block[first - self._begin : last - self._begin]

    def _computed(self, first: int, last: int) -> list[int]:
        values = self._feistel(np.arange(first, last, dtype=np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._feistel(values[outside])
        return values.tolist()

    def _feistel(self, values: np.ndarray) -> np.ndarray:
        half, mask = np.uint64(self.half), np.uint64(self.mask)
        left, right = values >> half, values & mask
        for key in self.round_keys:
            left, right = right, left ^ (_splitmix64(right + np.uint64(key)) & mask)
        return left << half | right


BLOCKS = 64
"""Blocks of neighbours in one window."""


class Windowed:
    """A keyed bijection on range(size) that visits neighbours at about the same time.

    The data is cut into blocks of neighbours, the blocks are permuted, and the resulting sequence
    is shuffled within windows. A sequential reader therefore needs `BLOCKS` whole blocks at a
    time. Consecutive elements share a block with probability (block - 1) / (window - 1),
    about 1 in 64. O(1) memory for any size, as with `Permutation`.
    """

    def __init__(self, size: int, window: int, *key: int | str):
        if size < 1 or window < 2:
            raise ValueError(
                f"size {size}, window {window}: size must be 1 or more and window 2 or more"
            )
        self.size, self.window, self.key = size, min(window, size), key
        self.block = max(1, self.window // BLOCKS)
        whole, self.rest = divmod(size, self.block)
        self.blocks = Permutation(whole, *key, "blocks")
        # The last block may be short. It gets a keyed position among the full ones.
        self.short = fold(*key, "short") % (whole + 1) * self.block
        self.phase = fold(*key, "phase") % self.window
        self._window = lru_cache(maxsize=2)(self._shuffled)

    def many(self, first: int, count: int) -> list[int]:
        """The elements at positions first … first + count - 1."""
        if first < 0 or count < 0 or first + count > self.size:
            raise IndexError(f"positions {first} to {first + count} are outside range({self.size})")
        elements: list[int] = []
        while len(elements) < count:
            position = first + len(elements)
            index = (position + self.window - self.phase) // self.window
            start = position - self._begin(index)
            elements += self._window(index)[start : start + count - len(elements)]
        return elements

    def _begin(self, index: int) -> int:
        """First position of a window; the first and the last window may be short."""
        return min(max(0, (index - 1) * self.window + self.phase), self.size)

    def _shuffled(self, index: int) -> list[int]:
        begin, end = self._begin(index), self._begin(index + 1)
        elements = self._permuted_blocks(begin, end)
        order = Permutation(end - begin, *self.key, "window", index)
        return [elements[i] for i in order.many(0, end - begin)]

    def _permuted_blocks(self, begin: int, end: int) -> list[int]:
        """Elements at these positions of the sequence of permuted blocks."""
        positions = np.arange(begin, end)
        past = positions - self.short
        whole = np.where(past < 0, positions, np.maximum(positions - self.rest, self.short))
        slots = np.minimum(whole // self.block, self.blocks.size - 1)
        first, last = int(slots[0]), int(slots[-1])
        order = np.array(self.blocks.many(first, last - first + 1), np.int64)
        elements = order[slots - first] * self.block + whole % self.block
        short = (past >= 0) & (past < self.rest)
        return np.where(short, self.size - self.rest + past, elements).tolist()


_M1, _M2, _GOLDEN = (
    value - (1 << 64) for value in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15)
)
"""Constants of splitmix64 in int64: tensors have no uint64 arithmetic."""


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    # int64 shifts are arithmetic; the mask makes this one logical.
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix64_tensor(value: Tensor) -> Tensor:
    value = (value ^ _logical_shift(value, 30)) * _M1
    value = (value ^ _logical_shift(value, 27)) * _M2
    return value ^ _logical_shift(value, 31)


def uniform(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Uniform in [0, 1), of shape (len(keys), *shape); row i depends on keys[i] alone."""
    if _has_kernel(keys):
        from quintet.engine.keys_kernel import noise

        return noise(keys, (fold(name),), shape)
    if keys.device.type == "cpu" and not torch.compiler.is_compiling() and type(keys) is Tensor:
        return _on_host(keys, name, shape)
    return _on_device(keys, name, shape)


def _on_device(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    counter = torch.arange(math.prod(shape), device=keys.device, dtype=torch.int64)
    base = _splitmix64_tensor(keys.to(torch.int64) ^ fold(name))
    bits = _splitmix64_tensor(base[:, None] + counter[None, :] * _GOLDEN)
    return (_logical_shift(bits, 40).to(torch.float32) * 2.0**-24).view(len(keys), *shape)


def _on_host(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """The same bits from numpy, which has unsigned integers: in a third of the time."""
    counter = np.arange(math.prod(shape), dtype=np.uint64)
    numbers = keys.to(torch.int64).contiguous().numpy().view(np.uint64)
    base = _splitmix64(numbers ^ np.uint64(fold(name)))
    bits = _splitmix64(base[:, None] + counter * np.uint64(_GOLDEN % (1 << 64)))
    values = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return torch.from_numpy(values).view(len(keys), *shape)


def normal(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Standard normal (Box-Muller), as `uniform`: row i depends on keys[i] alone."""
    if _has_kernel(keys):
        from quintet.engine.keys_kernel import noise

        return noise(keys, (fold(name + "/radius"), fold(name + "/angle")), shape)
    radius = 1.0 - uniform(keys, name + "/radius", shape)  # in (0, 1]: finite logarithm
    angle = uniform(keys, name + "/angle", shape)
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(2.0 * math.pi * angle)


def _has_kernel(keys: Tensor) -> bool:
    """On CUDA. The compiler fuses the plain version."""
    return keys.is_cuda and HAS_TRITON and not torch.compiler.is_compiling()


def keyed_normal(like: Tensor, key: int) -> Tensor:
    """Normal noise from a key, drawn on the device (a copy could synchronise)."""
    generator = torch.Generator(like.device).manual_seed(key)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
