"""Dataset of mesh codes from a frozen autoencoder, computed once and cached on disk.

    fixed variant of a mesh ─ autoencoder, fp32 ─> codes ─ Cache ─> one flat array

A cache key combines the digests of the autoencoder and of the prepared mesh, and the variant.
Another autoencoder invalidates all codes, a changed file only its own.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet.engine.data.record import HasFiles
from quintet.engine.data.stream import DAMAGE, stop_workers
from quintet.engine.data.workers import Loader
from quintet.engine.keys import Key
from quintet.engine.machine.world import World
from quintet.engine.runs.cache import VALUES_PER_FILE, Cache
from quintet.mesh.data import Collate

Variant = tuple[int, int]
"""Index of a sample, and of its variant."""


class Variants(Dataset[Any]):
    """Meshes without cached codes; a damaged one yields its error message."""

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
    """Collate readable meshes in the workers: (slots, batch, errors by slot)."""

    def __init__(self, collate: Collate):
        self.collate = collate

    def __call__(self, items: list[dict[str, Any] | str]) -> Any:
        sound = [(slot, item) for slot, item in enumerate(items) if not isinstance(item, str)]
        reasons = {slot: item for slot, item in enumerate(items) if isinstance(item, str)}
        slots = [slot for slot, _ in sound]
        return slots, self.collate([item for _, item in sound]) if sound else None, reasons


class CodeData:
    """Dataset of codes (f, t) and captions of the meshes in `source`."""

    def __init__(self, source: Any, variants: int, weights: str):
        self.source, self.variants = source, variants
        keys = [f"{weights}/{content_digest(source, index)}" for index in range(len(source))]
        self.keys = [f"{key}/{number}" for key in keys for number in range(variants)]
        self.reasons: dict[int, str] = {}
        self.flat = np.zeros((0, 1), np.int32)
        self.offsets = np.zeros(1, np.int64)

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def files(self) -> Mapping[str, str]:
        return self.source.files() if isinstance(self.source, HasFiles) else {}

    def unused(self) -> Sequence[str]:
        return self.source.unused() if isinstance(self.source, HasFiles) else ()

    def text(self, index: int) -> str:
        return self.source.text(index)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """Variants alternate by epoch; without a key, the original mesh."""
        number = key.epoch % self.variants if key else 0
        codes = self.codes_of(index, number)
        if not len(codes):
            slot = index * self.variants + number
            raise ValueError(self.reasons.get(slot, f"{self.name(index)} has no codes"))
        return {"codes": codes, "text": self.text(index)}

    def codes_of(self, index: int, number: int = 0) -> Tensor:
        """Codes (f, t) of one variant; empty if the mesh could not be encoded."""
        slot = index * self.variants + number
        return torch.from_numpy(self.flat[self.offsets[slot] : self.offsets[slot + 1]])

    def lengths(self) -> list[int]:
        """Faces of each mesh, in the variant that has most."""
        return np.diff(self.offsets).reshape(-1, self.variants).max(1).tolist()

    # -- filling --------------------------------------------------------------------------------

    def fill(self, autoencoder: Any, collate: Collate, world: World, workers: int) -> None:
        """Each process encodes its share of the missing codes; then all read the same files."""
        cache = Cache("mesh-codes")
        cached = cache.find(self.keys)
        slots = {key: slot for slot, key in enumerate(self.keys)}  # deduplicates equal meshes
        missing = [slot for key, slot in slots.items() if key not in cached]
        if world.gather_objects(len(missing)) != [0] * world.size:
            self._encode(cache, missing[world.rank :: world.size], autoencoder, collate, workers)
            world.barrier()
            cached |= cache.find(self.keys[slot] for slot in missing)
            for reasons in world.gather_objects(self.reasons):
                self.reasons |= reasons
        config = autoencoder.config
        empty = torch.zeros(0, config.corners * config.depth, dtype=torch.int32)
        rows = [cached.get(key, empty) for key in self.keys]
        self.offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        self.flat = torch.cat(rows).numpy().astype(np.int32)

    def _encode(
        self, cache: Cache, slots: list[int], autoencoder: Any, collate: Collate, workers: int
    ) -> None:
        pending: dict[str, Tensor] = {}
        start = reported = time.monotonic()
        for done, slot, codes in self._encode_batches(slots, autoencoder, collate, workers):
            pending[self.keys[slot]] = codes
            if len(pending) == VALUES_PER_FILE:
                cache.add(pending)
                pending = {}
            if time.monotonic() - reported > 5:
                reported = time.monotonic()
                rate = done / (reported - start)
                remaining = (len(slots) - done) / rate
                sys.stderr.write(f"encoded {done}/{len(slots)} meshes, {remaining:.0f} s left\n")
        if pending:
            cache.add(pending)

    def _encode_batches(
        self, slots: list[int], autoencoder: Any, collate: Collate, workers: int
    ) -> Iterator[tuple[int, int, Tensor]]:
        items = [divmod(slot, self.variants) for slot in slots]
        # Small batches fit the cache of a CPU; the codes do not depend on the batch size.
        device = next(autoencoder.parameters()).device
        size = 256 if device.type == "cuda" else 16
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
                    codes = encode(autoencoder, batch, device)
                    for slot, rows in zip(sound, codes):
                        # A clone, since a view would keep the whole batch alive.
                        yield number * size + slot + 1, batch_slots[slot], rows.clone()
        finally:
            stop_workers(batches)


class BlankCodes:
    """Codes of zeros as long as those of some meshes, at least `count` of them."""

    def __init__(self, lengths: list[int], count: int, tokens: int):
        self.sizes = lengths * ceil(count / len(lengths))
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, index: int) -> str:
        return f"mesh {index}"

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        codes = torch.zeros(self.sizes[index], self.tokens, dtype=torch.int32)
        return {"codes": codes, "text": ""}

    def lengths(self) -> list[int]:
        return self.sizes


def content_digest(source: Any, index: int) -> str:
    try:
        return source.digest(index)
    except DAMAGE:
        return f"unreadable-{index}"  # reading it raises the actual error


@torch.no_grad()
def encode(autoencoder: Any, batch: dict[str, Any], device: torch.device) -> tuple[Tensor, ...]:
    """Codes (f, t) of each mesh on the host, in fp32 whatever the precision of the run."""
    with torch.autocast(device.type, enabled=False):
        dtype = next(autoencoder.parameters()).dtype
        names = ("neighbours", "lengths", "ranks")
        tables = {name: batch[name].to(device) for name in names if name in batch}
        codes = autoencoder.tokenize(
            batch["vertices"].to(device, dtype), batch["faces"].to(device), **tables
        )
    faces = batch["lengths"][:, 0].tolist()
    return codes[0, : sum(faces)].to(torch.int32).cpu().split(faces)
