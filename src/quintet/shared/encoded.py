"""Shards of codes: a data set that a frozen tokenizer has encoded once, for generators over them.

    encoded.json                       what made them: digests of the model and of the data
    shard-000000.tar, .index           as `quintet pack` writes them; a sample is a file of codes

A shard is a function of model, data and its number, whoever writes it. Its index is written last:
with it the shard is complete.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load, save
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.files import write_json
from quintet.media.errors import BadFile
from quintet.media.shards.index import SUFFIX
from quintet.media.shards.listing import split_window
from quintet.media.shards.pack import Content, write_shard
from quintet.media.shards.store import store_of
from quintet.media.splits import InFolder, Split

MANIFEST = "encoded.json"
EVERY = 5.0
"""Seconds between two lines of progress."""


def manifest_of(data: str | Path) -> dict[str, Any] | None:
    """What made the codes at a location; None if there are none."""
    location = split_window(str(data))[0].rstrip("/")
    store = store_of(location)
    file = None if location.endswith(".tar") else store.find(f"{location}/{MANIFEST}")
    try:
        return None if file is None else dict(json.loads(store.read(file, 0, file.size)))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFile(
            f"{location}/{MANIFEST}", "is damaged", "encode into another folder"
        ) from error


class Encoded(InFolder):
    """One split of encoded samples, by their names in the data that was encoded."""

    suffixes, what = (".safetensors",), "codes"

    def __init__(self, folder: Path | str, config: Any, split: Split, seed: int) -> None:
        super().__init__(folder, config, split, seed)
        place = (config.valid_folder if split == "valid" else None) or folder
        about = manifest_of(place)
        if about is None:
            raise BadFile(place, f"has no {MANIFEST}", "encode it like the training data")
        self.place, self.about = place, about

    def require(self, weights: str, variants: int) -> None:
        """Refuse codes of another model, and too few variants."""
        if self.about["model"] != weights:
            raise RunError(
                f"{self.place} has codes of another model than the {self.about['stage']} of this "
                f"run, or of another checkpoint: they are of {self.about['source']}; give that "
                "one, or encode the data by yours"
            )
        if self.about["variants"] < variants:
            raise RunError(
                f"{self.place} has {self.about['variants']} variants of each sample: set "
                f"--variants to that, or encode the data with --variants {variants}"
            )

    def keyed(self, index: int, key: Any) -> NoReturn:
        raise RunError(
            f"{self.place} has codes and no {self.about['what']}, which is asked for here; give "
            "the folder that was encoded"
        )

    def codes_of(self, index: int, number: int) -> Tensor:
        """Codes of one variant; empty if the sample could not be encoded."""
        tensors = load(self.path(index).read_bytes())
        return tensors["codes"].split(tensors["rows"].tolist())[number]

    def lengths(self) -> list[int]:
        """Codes of each sample, in the variant that has most."""
        return [max(self.row(index)["rows"]) for index in range(len(self))]


def open_encoded(data: str | None, config: Any, split: Split, seed: int) -> Encoded | None:
    """A split of encoded data; None if the data is not encoded."""
    if data is None or manifest_of(data) is None:
        return None
    return Encoded(data, config, split, seed)


# -- writing ----------------------------------------------------------------------------------


def prepare(out: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest, or go on with shards that have the same one."""
    out.mkdir(parents=True, exist_ok=True)
    found = manifest_of(out)
    if found is None and any(out.iterdir()) and not list(out.glob(f".{MANIFEST}.*")):
        raise RunError(f"{out} is not empty and has no {MANIFEST}; choose another --out")
    before = {**(found or about), "source": about["source"]}
    name = next((name for name in about if before.get(name) != about[name]), None)
    if name is not None:
        raise RunError(
            f"{out} was begun with another {name}, {before.get(name)!r} and not {about[name]!r}: "
            "repeat the command as it was, or choose another --out"
        )
    if found is None:  # of several processes all write the same
        write_json(out / MANIFEST, dict(about))


def write_shards(
    codes: Any,
    network: Any,
    collate: Any,
    out: Path,
    about: Mapping[str, Any],
    part: tuple[int, int],
    workers: int,
    say: Callable[[str], Any] = lambda line: sys.stderr.write(f"{line}\n"),
) -> None:
    """Write the missing shards of one of several parts: every n-th shard."""
    width, count, (rank, size) = about["shard_samples"], about["shards"], part
    numbers = [n for n in range(rank, count, size) if not (out / name_of(n)).exists()]
    begun = told = time.monotonic()
    for done, number in enumerate(numbers):
        for partial in out.glob(f".shard-{number:06d}.*.writing"):  # of a killed process
            partial.unlink(missing_ok=True)
        samples = range(number * width, min((number + 1) * width, len(codes)))
        slots = [codes.variants * i + n for i in samples for n in range(codes.variants)]
        rows: dict[int, Tensor] = {}
        for encoded, slot, values in codes.encodings(slots, network, collate, workers):
            rows[slot] = values
            if time.monotonic() - told > EVERY:
                told = time.monotonic()
                share = (done + encoded / len(slots)) / len(numbers)
                left = (told - begun) * (1 / share - 1)
                say(f"encoded {share:.1%} of {len(numbers)} shards, {left:.0f} s left")
        packing = {"packing": about["data"], "count": count}
        write_shard(out, number, samples.start, contents(codes, network, samples, rows), packing)


def name_of(number: int) -> str:
    return f"shard-{number:06d}{SUFFIX}"


def contents(
    codes: Any, network: Any, samples: range, rows: Mapping[int, Tensor]
) -> Iterator[Content]:
    """Each sample with the codes of its variants, one after another, and how many each has."""
    empty = torch.zeros(0, *codes.row_shape(network), dtype=codes.dtype_of(network))
    for index in samples:
        first = index * codes.variants
        own = [rows.get(slot, empty) for slot in range(first, first + codes.variants)]
        counts = [len(each) for each in own]
        tensors = {"codes": torch.cat(own).contiguous(), "rows": torch.tensor(counts)}
        row: dict[str, Any] = {"rows": counts, "text": codes.text(index)}
        yield Content(codes.name(index), save(tensors), row)
