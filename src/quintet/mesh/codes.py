"""Codes of meshes by a frozen autoencoder: computed once, kept on disk, served from memory.

    mesh under one of its fixed variants ─ autoencoder, fp32 ─> codes ─ Kept ─> one flat array

A key holds the digest of the autoencoder, of the mesh and of how it was prepared, and the number of
the variant. So another autoencoder makes all codes anew, and a changed file only its own.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from quintet.engine.kept import SHARD, Kept
from quintet.engine.keys import Key
from quintet.engine.stream import DAMAGE, stop_workers
from quintet.engine.world import World
from quintet.mesh.data import Collate

Numbered = tuple[int, int]
"""A sample, and which of its variants."""


class Variants(Dataset[Any]):
    """Meshes that have no codes yet; a damaged one comes back as its reason."""

    def __init__(self, source: Any, wanted: Sequence[Numbered]):
        self.source, self.wanted = source, wanted

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, place: int) -> dict[str, Any] | str:
        try:
            return self.source.variant(*self.wanted[place])
        except DAMAGE as error:
            return str(error)


class Batches:
    """Collates, in the workers, what can be encoded: (places in the batch, their lengths, batch),
    beside the reasons of what cannot."""

    def __init__(self, collate: Collate):
        self.collate = collate

    def __call__(self, items: list[dict[str, Any] | str]) -> Any:
        sound = [(place, item) for place, item in enumerate(items) if not isinstance(item, str)]
        reasons = {place: item for place, item in enumerate(items) if isinstance(item, str)}
        lengths = [(place, len(item["faces"])) for place, item in sound]
        return lengths, self.collate([item for _, item in sound]) if sound else None, reasons


class CodeData:
    """A data set of codes (f, t) and captions, over the meshes of `source`."""

    def __init__(self, source: Any, variants: int, weights: str):
        self.source, self.variants = source, variants
        keys = [f"{weights}/{content_of(source, index)}" for index in range(len(source))]
        self.keys = [f"{key}/{number}" for key in keys for number in range(variants)]
        self.reasons: dict[int, str] = {}
        self.flat = np.zeros((0, 1), np.int32)
        self.offsets = np.zeros(1, np.int64)

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def text(self, index: int) -> str:
        return self.source.text(index)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """Each epoch shows another variant; without a key it is the mesh as it stands."""
        number = key.epoch % self.variants if key else 0
        codes = self.codes_of(index, number)
        if not len(codes):
            place = index * self.variants + number
            raise ValueError(self.reasons.get(place, f"{self.name(index)} has no codes"))
        return {"codes": codes, "text": self.text(index)}

    def codes_of(self, index: int, number: int = 0) -> Tensor:
        """Codes (f, t) of one variant; none where the mesh could not be encoded."""
        place = index * self.variants + number
        return torch.from_numpy(self.flat[self.offsets[place] : self.offsets[place + 1]])

    # -- filling --------------------------------------------------------------------------------

    def fill(self, autoencoder: Any, collate: Collate, world: World, workers: int) -> None:
        """Every process encodes its share of what is missing, then all read the same shards."""
        kept = Kept("mesh-codes")
        found = kept.find(self.keys)
        places = {key: place for place, key in enumerate(self.keys)}  # equal meshes only once
        missing = [place for key, place in places.items() if key not in found]
        if world.gather_objects(len(missing)) != [0] * world.size:
            self._encode(kept, missing[world.rank :: world.size], autoencoder, collate, workers)
            world.barrier()
            found |= kept.find(self.keys[place] for place in missing)
            for reasons in world.gather_objects(self.reasons):
                self.reasons |= reasons
        config = autoencoder.config
        empty = torch.zeros(0, config.corners * config.depth, dtype=torch.int32)
        rows = [found.get(key, empty) for key in self.keys]
        self.offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        self.flat = torch.cat(rows).numpy().astype(np.int32)

    def _encode(
        self, kept: Kept, places: list[int], autoencoder: Any, collate: Collate, workers: int
    ) -> None:
        made: dict[str, Tensor] = {}
        begun = shown = time.monotonic()
        for done, place, codes in self._encoded(places, autoencoder, collate, workers):
            made[self.keys[place]] = codes
            if len(made) == SHARD:
                kept.add(made)
                made = {}
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                rate = done / (shown - begun)
                left = (len(places) - done) / rate
                sys.stderr.write(f"codes of {done}/{len(places)} meshes, {left:.0f} s left\n")
        if made:
            kept.add(made)

    def _encoded(
        self, places: list[int], autoencoder: Any, collate: Collate, workers: int
    ) -> Iterator[tuple[int, int, Tensor]]:
        wanted = [divmod(place, self.variants) for place in places]
        # Small batches on a CPU, so that they fit into its cache; the same results either way.
        device = next(autoencoder.parameters()).device
        size = 256 if device.type == "cuda" else 16
        loader = DataLoader(
            Variants(self.source, wanted),
            batch_size=size,
            num_workers=workers,
            collate_fn=Batches(collate),
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            generator=torch.Generator().manual_seed(0),
        )
        batches = iter(loader)
        try:
            for turn, (lengths, batch, reasons) in enumerate(batches):
                here = places[turn * size : (turn + 1) * size]
                self.reasons |= {here[place]: reason for place, reason in reasons.items()}
                if batch is not None:
                    codes = encode(autoencoder, batch, device)
                    for (place, length), row in zip(lengths, codes):
                        # A copy: a view would keep the whole batch.
                        yield turn * size + place + 1, here[place], row[:length].clone()
        finally:
            stop_workers(batches)


def content_of(source: Any, index: int) -> str:
    try:
        return source.digest(index)
    except DAMAGE:
        return f"unreadable-{index}"  # reading it will say why


@torch.no_grad()
def encode(autoencoder: Any, batch: dict[str, Any], device: torch.device) -> Tensor:
    """Codes (b, f, t) on the host, in full precision: they must not depend on the run's."""
    with torch.autocast(device.type, enabled=False):
        wide = next(autoencoder.parameters()).dtype
        codes = autoencoder.tokenize(
            batch["vertices"].to(device, wide),
            batch["faces"].to(device),
            neighbours=batch["neighbours"].to(device),
        )
    return codes.to(torch.int32).cpu()
