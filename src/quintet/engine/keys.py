"""Randomness without state: every random choice is a function of what it belongs to.

`fold` turns names and numbers into a 63-bit seed. `Key` belongs to one sample. `Permutation` is a
keyed bijection, so that the n-th sample of an epoch is computed and never looked up; `Windowed` is
one that visits neighbours together. `uniform` and `normal` are a counter-based hash on the device,
for noise too large to draw on the host.
"""

import hashlib
import math
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def fold(*parts: int | str) -> int:
    """A 63-bit number that depends on every part and on their order."""
    text = "\x1f".join([f"i{p}" if type(p) is int else _spelled(p) for p in parts])
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _spelled(part: int | str) -> str:
    """The separator inside a name must not make it look like two."""
    text = str(part).replace("\x1e", "\x1e\x1e").replace("\x1f", "\x1e.")
    return f"{type(part).__name__[0]}{text}"


@dataclass(frozen=True, slots=True)
class Key:
    """The source of all randomness that belongs to one sample in one epoch."""

    seed: int
    epoch: int
    sample: int

    def fold(self, name: str) -> int:
        return fold(self.seed, self.epoch, self.sample, name)

    def random(self, name: str) -> random.Random:
        return random.Random(self.fold(name))

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng(self.fold(name))


def seed_globals(number: int) -> None:
    """For code that draws from global state (a user's data set): python, numpy and torch alike."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch.default_generator.manual_seed(number)  # data is drawn on the host


ROUNDS = 8
_WORD = (1 << 64) - 1


def _mix(value: int) -> int:
    # The finaliser of splitmix64. Runs depend on it for their order of data: it must never change.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def _mix_array(value: np.ndarray) -> np.ndarray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


class Permutation:
    """A keyed bijection on range(size): a Feistel network with cycle walking.

    No memory, any size, and position n costs the same whatever n is. The domain is the next power
    of four; a value outside range(size) is walked on until it falls inside (fewer than four steps
    on average). A set of at most 256 is sorted by a keyed hash instead: over so few bits a Feistel
    network prefers some orders to others.
    """

    SMALL = 256

    def __init__(self, size: int, *key: int | str):
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, not {size}")
        self.size = size
        self.half = ((size - 1).bit_length() + 1) // 2
        self.mask = (1 << self.half) - 1
        self.round_keys = [fold(*key, "feistel", turn) for turn in range(ROUNDS)]
        self.table: list[int] | None = None
        if size <= self.SMALL:
            first, second = self.round_keys[:2]
            self.table = sorted(range(size), key=lambda i: _mix(_mix(first + i) + second & _WORD))

    def __call__(self, position: int) -> int:
        return self.many(position, 1)[0]

    def many(self, first: int, count: int) -> list[int]:
        """The elements at positions first … first + count - 1, computed together."""
        if first < 0 or count < 0 or first + count > self.size:
            raise IndexError(f"positions {first} to {first + count} are outside range({self.size})")
        if self.table is not None:
            return self.table[first : first + count]
        values = self._once_many(np.arange(first, first + count, dtype=np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._once_many(values[outside])
        return values.tolist()

    def _once_many(self, values: np.ndarray) -> np.ndarray:
        half, mask = np.uint64(self.half), np.uint64(self.mask)
        left, right = values >> half, values & mask
        for key in self.round_keys:
            left, right = right, left ^ (_mix_array(right + np.uint64(key)) & mask)
        return left << half | right


BLOCKS = 64
"""Blocks of neighbours that are mixed with each other in one window."""


class Windowed:
    """A keyed bijection on range(size) that visits neighbours at about the same time.

    The data is cut into blocks of neighbours, which come in a keyed order from all over it; their
    line is cut into windows, and each window is mixed by itself. So whoever reads on needs
    `BLOCKS` blocks at a time, whole. Two that follow each other come from one block with a chance
    of (block - 1) / (window - 1), about 1 in 64. No memory, any size, as with `Permutation`.
    """

    def __init__(self, size: int, window: int, *key: int | str):
        if size < 1 or window < 2:
            raise ValueError(f"size {size}, window {window}: give a size from 1, a window from 2")
        self.size, self.window, self.key = size, min(window, size), key
        self.block = max(1, self.window // BLOCKS)
        whole, self.rest = divmod(size, self.block)
        self.blocks = Permutation(whole, *key, "blocks")
        # The last block may be short. It has a keyed place among the others, which all are whole.
        self.short = fold(*key, "short") % (whole + 1) * self.block
        self.phase = fold(*key, "phase") % self.window
        self._mixed = lru_cache(maxsize=2)(self._mix)

    def __call__(self, position: int) -> int:
        return self.many(position, 1)[0]

    def many(self, first: int, count: int) -> list[int]:
        """The elements at positions first … first + count - 1."""
        if first < 0 or count < 0 or first + count > self.size:
            raise IndexError(f"positions {first} to {first + count} are outside range({self.size})")
        found: list[int] = []
        while len(found) < count:
            position = first + len(found)
            turn = (position + self.window - self.phase) // self.window
            start = position - self._begin(turn)
            found += self._mixed(turn)[start : start + count - len(found)]
        return found

    def _begin(self, turn: int) -> int:
        """Where a window begins; the first and the last may be short."""
        return min(max(0, (turn - 1) * self.window + self.phase), self.size)

    def _mix(self, turn: int) -> list[int]:
        begin, end = self._begin(turn), self._begin(turn + 1)
        line = self._line(begin, end)
        mixed = Permutation(end - begin, *self.key, "window", turn)
        return [line[place] for place in mixed.many(0, end - begin)]

    def _line(self, begin: int, end: int) -> list[int]:
        """What stands at these places of the line of blocks."""
        places = np.arange(begin, end)
        past = places - self.short
        whole = np.where(past < 0, places, np.maximum(places - self.rest, self.short))
        slots = np.minimum(whole // self.block, self.blocks.size - 1)
        first, last = int(slots[0]), int(slots[-1])
        order = np.array(self.blocks.many(first, last - first + 1), np.int64)
        elements = order[slots - first] * self.block + whole % self.block
        short = (past >= 0) & (past < self.rest)
        return np.where(short, self.size - self.rest + past, elements).tolist()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_M1, _M2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_GOLDEN = _signed(0x9E3779B97F4A7C15)


def _shift(value: Tensor, bits: int) -> Tensor:
    # int64 shifts are arithmetic; the mask makes this one logical.
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix_tensor(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _M1
    value = (value ^ _shift(value, 27)) * _M2
    return value ^ _shift(value, 31)


def uniform(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1), of shape (len(keys), *shape); row i depends on keys[i] alone."""
    count = math.prod(shape)
    counter = torch.arange(count, device=keys.device, dtype=torch.int64)
    base = _mix_tensor(keys.to(torch.int64) ^ fold(name))
    bits = _mix_tensor(base[:, None] + counter[None, :] * _GOLDEN)
    return (_shift(bits, 40).to(torch.float32) * 2.0**-24).view(len(keys), *shape)


def normal(keys: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers by Box and Muller; row i depends on keys[i] alone."""
    radius = 1.0 - uniform(keys, name + "/radius", shape)  # in (0, 1], so the logarithm is finite
    angle = uniform(keys, name + "/angle", shape)
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(2.0 * math.pi * angle)
