"""Training samples of several shapes, in batches of one shape each."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from quintet.engine.data.plans import Request, order_of, requests_from
from quintet.engine.keys import Key, Permutation
from quintet.shared.code_cache import OfSource
from quintet.shared.flow.data import LatentData

WIDEST = 2.0
"""Largest ratio of width to height, and of height to width."""


def shapes_of(size: tuple[int, int], count: int, multiple: int) -> list[tuple[int, int]]:
    """Up to `count` heights and widths of about as many pixels as `size`, which is among them;
    ratios are spread evenly from 1 : 2 to 2 : 1, sides are multiples of a number."""
    pixels = math.prod(size)
    shapes = {size}
    for number in range(count - 1):
        share = number / max(count - 2, 1)
        ratio = WIDEST ** (2 * share - 1)
        sides = math.sqrt(pixels / ratio), math.sqrt(pixels * ratio)
        height, width = (max(1, round(side / multiple)) * multiple for side in sides)
        shapes.add((height, width))
    return sorted(shapes, key=lambda shape: shape[1] / shape[0])


def nearest_shape(ratio: float, shapes: Sequence[tuple[int, int]]) -> int:
    """Number of the shape that crops least of an image with this width for its height."""
    return int(np.argmin([abs(math.log(ratio * h / w)) for h, w in shapes]))


def buckets_of(
    ratios: Sequence[float], shapes: Sequence[tuple[int, int]], least: int
) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Shapes with at least so many images, or else the commonest one, and the images of each.
    Others join the nearest of these: batches of a rare shape would repeat its few images."""
    remaining = list(shapes)
    while True:
        nearest = [nearest_shape(ratio, remaining) for ratio in ratios]
        indices = [
            [index for index, bucket in enumerate(nearest) if bucket == number]
            for number in range(len(remaining))
        ]
        rarest = min(range(len(remaining)), key=lambda number: len(indices[number]))
        if len(remaining) == 1 or len(indices[rarest]) >= least:
            return remaining, indices
        del remaining[rarest]


class BucketedLatents(OfSource):
    """Latents of several shapes as one data set, in the order of the samples."""

    def __init__(self, source: Any, parts: Sequence[LatentData], indices: Sequence[Sequence[int]]):
        """`indices`: the samples of each part among all."""
        self.source, self.parts, self.indices = source, parts, indices
        self.places: list[tuple[int, int]] = [(0, 0)] * len(source)
        for part, samples in enumerate(indices):
            for place, index in enumerate(samples):
                self.places[index] = part, place

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        part, place = self.places[index]
        return self.parts[part].keyed(place, key)

    def text(self, index: int) -> str:
        part, place = self.places[index]
        return self.parts[part].text(place)

    def texts(self, index: int) -> Sequence[str]:
        part, place = self.places[index]
        return self.parts[part].texts(place)

    def codes_of(self, index: int, number: int = 0) -> Tensor:
        part, place = self.places[index]
        return self.parts[part].codes_of(place, number)

    def files(self) -> Mapping[str, str]:
        return {name: kind for part in self.parts for name, kind in part.files().items()}


class BucketPlan:
    """Global batches of one shape. In a cycle each shape has batches in proportion to its samples,
    at least one, in a keyed order; the samples of a shape follow a keyed order of their own.

    A pure function of seed and position, whatever the global batch is divided among.
    """

    def __init__(self, indices: Sequence[Sequence[int]], seed: int, batch_size: int) -> None:
        self.indices = [list(samples) for samples in indices if len(samples)]
        self.seed, self.batch_size = seed, batch_size
        self.orders = [
            order_of(range(len(samples)), seed + number)
            for number, samples in enumerate(self.indices)
        ]
        self._cycle = lru_cache(maxsize=2)(self._make_cycle)

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        width = self.batch_size * count
        counts = [max(1, round(len(samples) / width)) for samples in self.indices]
        cycle, offset = divmod(position // width, sum(counts))
        slot, bucket = self._cycle(cycle, tuple(counts))[offset], 0
        while slot >= counts[bucket]:
            slot, bucket = slot - counts[bucket], bucket + 1
        samples, order = self.indices[bucket], self.orders[bucket]
        start = (cycle * counts[bucket] + slot) * width
        requests = requests_from(order, len(samples), start, width)
        chosen = [Request(request.epoch, samples[request.sample]) for request in requests]
        return [chosen[i : i + self.batch_size] for i in range(0, width, self.batch_size)]

    def _make_cycle(self, cycle: int, counts: tuple[int, ...]) -> list[int]:
        total = sum(counts)
        return Permutation(total, self.seed, "shapes", cycle).many(0, total)
