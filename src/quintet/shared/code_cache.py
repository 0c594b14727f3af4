"""Dataset of the codes of samples by a frozen network, computed once and cached on disk.

    fixed variant of a sample ─ frozen network, fp32 ─> codes ─ Cache ─> one flat array

A cache key combines the digests of the network and of the prepared sample, the variant, and the
arithmetic: kind of device and precision. Another network invalidates all codes, a changed file only
its own.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from os import fsencode
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet.engine.data.record import HasFiles
from quintet.engine.data.source import Source
from quintet.engine.data.stream import DAMAGE, stacked, stop_workers
from quintet.engine.data.workers import Loader
from quintet.engine.keys import Key
from quintet.engine.runs.cache import VALUES_PER_FILE, Cache, arithmetic
from quintet.engine.task import World
from quintet.shared.encoded import Encoded

Variant = tuple[int, int]
"""Index of a sample, and of its variant."""
Collate = Callable[[list[dict[str, Any]]], Any]


class Encodable(Source, Protocol):
    """Samples whose codes can be cached."""

    def text(self, index: int) -> str:
        """Caption, without reading the sample."""
        ...

    def digest(self, index: int) -> str:
        """Digest of the content and of its preparation."""
        ...

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """A fixed augmentation, the same in every epoch; 0 is the original."""
        ...


class VariantKey:
    """Random key of one variant of one sample, the same in every epoch and run."""

    def __init__(self, name: str, number: int) -> None:
        self._start = b"%d/" % number + fsencode(name) + b"/"

    def _seed(self, name: str) -> int:
        return int.from_bytes(blake2b(self._start + name.encode(), digest_size=8).digest(), "big")

    def random(self, name: str) -> Random:
        return Random(self._seed(name))

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng(self._seed(name))


class Variants(Dataset[Any]):
    """Samples without cached codes; a damaged one yields its error message."""

    def __init__(self, source: Any, items: Sequence[Variant]):
        self.source, self.items = source, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, slot: int) -> dict[str, Any] | str:
        try:
            return self.source.variant(*self.items[slot])
        except DAMAGE as error:
            return str(error)


class Batches:
    """Collate readable samples in the workers: (slots, batch, errors by slot)."""

    def __init__(self, collate: Collate):
        self.collate = collate

    def __call__(self, items: list[dict[str, Any] | str]) -> Any:
        sound = [(slot, item) for slot, item in enumerate(items) if not isinstance(item, str)]
        reasons = {slot: item for slot, item in enumerate(items) if isinstance(item, str)}
        slots = [slot for slot, _ in sound]
        return slots, stacked(self.collate, [item for _, item in sound]) if sound else None, reasons


class OfSource:
    """Samples with the names and files of those in `source`."""

    source: Any

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def files(self) -> Mapping[str, str]:
        return self.source.files() if isinstance(self.source, HasFiles) else {}

    def unused(self) -> Sequence[str]:
        return self.source.unused() if isinstance(self.source, HasFiles) else ()


class CachedCodes(OfSource):
    """Codes (n, …) and captions of the samples in `source`; n may differ."""

    cache: str
    """Name of the folder in the cache."""
    what: str
    """Plural noun for the samples in messages."""
    batch = 256
    """Samples encoded together on CUDA."""
    reads_texts = True
    """Whether the model reads the captions."""

    def __init__(self, source: Any, variants: int, weights: str):
        self.source, self.variants, self.weights = source, variants, weights
        inner = source.source if isinstance(source, OfSource) else source
        self.shards = inner if isinstance(inner, Encoded) else None
        """Codes that were computed before."""
        self.reasons: dict[int, str] = {}
        self.flat = np.zeros(0, np.int32)
        self.offsets = np.zeros(1, np.int64)

    def text(self, index: int) -> str:
        return self.source.text(index)

    def texts(self, index: int) -> Sequence[str]:
        return [self.text(index)] if self.reads_texts else []

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """Variants alternate by epoch; without a key, the original."""
        number = self.variant(index, key)
        codes = self.codes_of(index, number)
        if not len(codes):
            slot = index * self.variants + number
            raise ValueError(self.reasons.get(slot, f"{self.name(index)} has no codes"))
        return {"codes": codes, "text": self.text(index)}

    def variant(self, index: int, key: Key | None) -> int:
        """Neighbours begin with different ones, so that a batch has some of each."""
        return (key.epoch + index) % self.variants if key else 0

    def codes_of(self, index: int, number: int = 0) -> Tensor:
        """Codes of one variant; empty if the sample could not be encoded."""
        if self.shards is not None:
            return self.shards.codes_of(index, number)
        slot = index * self.variants + number
        return torch.from_numpy(self.flat[self.offsets[slot] : self.offsets[slot + 1]])

    @property
    def window(self) -> int:
        """The shuffle window of shards of codes."""
        return 0 if self.shards is None else self.shards.window

    def prefetch(self, indices: Sequence[int]) -> None:
        """Announce samples that will be read next."""
        if self.shards is not None:
            self.shards.prefetch(indices)

    def lengths(self) -> list[int]:
        """Rows of each sample, in the variant that has most."""
        if self.shards is not None:
            return self.shards.lengths()
        return np.diff(self.offsets).reshape(-1, self.variants).max(1).tolist()

    def fill(self, network: Any, collate: Collate, world: World, workers: int) -> None:
        """Each process encodes its share of the missing codes; then all read the same files."""
        if self.shards is not None:
            self.shards.require(self.weights, self.variants)
            return
        cache, weight = Cache(self.cache), next(network.parameters())
        end = arithmetic(weight.device, weight.dtype)
        digests = [content_digest(self.source, index) for index in range(len(self))]
        keys = [f"{self.weights}/{d}/{n}/{end}" for d in digests for n in range(self.variants)]
        cached = cache.find(keys)
        slots = {key: slot for slot, key in enumerate(keys)}  # deduplicates equal samples
        missing = [slot for key, slot in slots.items() if key not in cached]
        if world.gather_objects(len(missing)) != [0] * world.size:
            own = missing[world.rank :: world.size]
            encoded = self.encodings(own, network, collate, workers)
            self._keep(cache, keys, len(own), encoded)
            world.barrier()
            cached |= cache.find(keys[slot] for slot in missing)
            for reasons in world.gather_objects(self.reasons):
                self.reasons |= reasons
        dtype = self.dtype_of(network)
        empty = torch.zeros(0, *self.row_shape(network), dtype=dtype)
        rows = [cached.get(key, empty) for key in keys]
        self.offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        self.flat = torch.cat(rows).to(dtype).numpy()

    def _keep(
        self,
        cache: Cache,
        keys: Sequence[str],
        count: int,
        encoded: Iterator[tuple[int, int, Tensor]],
    ) -> None:
        pending: dict[str, Tensor] = {}
        start = reported = time.monotonic()
        for done, slot, codes in encoded:
            pending[keys[slot]] = codes
            if len(pending) == VALUES_PER_FILE:
                cache.add(pending)
                pending = {}
            if time.monotonic() - reported > 5:
                reported = time.monotonic()
                rate = done / (reported - start)
                remaining = (count - done) / rate
                sys.stderr.write(f"encoded {done}/{count} {self.what}, {remaining:.0f} s left\n")
        if pending:
            cache.add(pending)

    def encodings(
        self, slots: list[int], network: Any, collate: Collate, workers: int
    ) -> Iterator[tuple[int, int, Tensor]]:
        """How many slots are done, the slot, and its codes; none of a damaged sample."""
        items = [divmod(slot, self.variants) for slot in slots]
        # Small batches fit the cache of a CPU; the codes do not depend on the batch size.
        device = next(network.parameters()).device
        size = self.batch if device.type == "cuda" else 16
        loader = Loader(
            Variants(self.source, items),
            batch_size=size,
            num_workers=workers,
            collate_fn=Batches(collate),
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            generator=torch.Generator().manual_seed(0),
        )
        batches = iter(loader)
        try:
            for number, (sound, batch, reasons) in enumerate(batches):
                batch_slots = slots[number * size : (number + 1) * size]
                self.reasons |= {batch_slots[slot]: reason for slot, reason in reasons.items()}
                if batch is not None:
                    codes = self.encode(network, batch, device)
                    for slot, rows in zip(sound, codes):
                        # A clone, since a view would keep the whole batch alive.
                        yield number * size + slot + 1, batch_slots[slot], rows.clone()
        finally:
            stop_workers(batches)

    def row_shape(self, network: Any) -> tuple[int, ...]:
        """Shape of one row of codes."""
        return ()

    def dtype_of(self, network: Any) -> torch.dtype:
        """Type of the codes: the smallest that holds them."""
        return torch.int32

    def encode(self, network: Any, batch: Any, device: torch.device) -> Sequence[Tensor]:
        """Codes of each sample on the host, in fp32 whatever the precision of the run."""
        raise NotImplementedError


def content_digest(source: Any, index: int) -> str:
    try:
        return source.digest(index)
    except DAMAGE:
        return f"unreadable-{index}"  # reading it raises the actual error
