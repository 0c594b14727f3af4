"""Source: the samples of a data set, each a function of its index and its key."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset

from quintet.engine.errors import RunError
from quintet.engine.keys import Key, fold, seed_globals


@runtime_checkable
class Source(Protocol):
    """A data set as the engine reads it. All randomness of a sample comes from its key; without a
    key the sample is not augmented."""

    def __len__(self) -> int: ...

    def keyed(self, index: int, key: Key | None) -> Any: ...

    def name(self, index: int) -> str:
        """Name in messages, such as the path of a file."""
        ...


@runtime_checkable
class HasWindow(Protocol):
    """A source whose neighbours are cheap to read together (shards)."""

    window: int
    """Samples are shuffled within windows of this size; 0 shuffles all of the data."""


@runtime_checkable
class Prefetching(Protocol):
    """A source that fetches a whole batch at once, for example from object storage."""

    def prefetch(self, indices: Sequence[int]) -> None: ...


class MapStyle:
    """A map-style data set (torch's Dataset, a list) as a source. Unless it is keyed, the global
    generators of Python, numpy and torch are seeded for every sample, so that its own augmentation
    is reproducible."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        _require_indexing(dataset)
        try:
            self.size = len(dataset)
        except TypeError:
            kind = type(dataset).__name__
            raise RunError(
                f"a data set needs a length and items by index; {kind} has none: wrap it in a "
                "torch Dataset with __len__ and __getitem__"
            ) from None

    def __len__(self) -> int:
        return self.size

    def keyed(self, index: int, key: Key | None) -> Any:
        if isinstance(self.dataset, Keyed):
            return self.dataset.keyed(index, key)
        seed_globals(key.fold("sample") if key else fold("fixed", index))
        return self.dataset[index]

    def name(self, index: int) -> str:
        return f"sample {index}"


def _require_indexing(dataset: Any) -> None:
    """What has a length, but no items 0, 1, …."""
    kind = type(dataset).__name__
    if isinstance(dataset, type):
        name = dataset.__name__
        raise RunError(f"the data set is the class {name}; give an object of it: {name}(…)")
    if isinstance(dataset, (str, Path)):
        raise RunError(
            f"the data set is the path {str(dataset)!r}; give data={str(dataset)!r} to a trainer"
            " that reads folders, or a torch Dataset of its files"
        )
    if isinstance(dataset, DataLoader):
        raise RunError(
            f"the data is a {kind}; give its data set (loader.dataset), and batch_size, workers "
            "and collate_fn to the trainer, which shuffles, batches and loads by itself"
        )
    if isinstance(dataset, Mapping):
        keys = ", ".join(map(str, list(dataset)[:3]))
        raise RunError(
            f"the data is a {kind} with the keys {keys}; give one of its values, or "
            "list(data.values())"
        )
    indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    if not indexed and not isinstance(dataset, Keyed) and hasattr(dataset, "__len__"):
        raise RunError(
            f"a data set needs items by index; {kind} has none: give list(data), or wrap it in a "
            "torch Dataset with __len__ and __getitem__"
        )


@runtime_checkable
class Keyed(Protocol):
    """A data set with keyed samples that have no names."""

    def keyed(self, index: int, key: Key | None) -> Any: ...


def as_source(data: Any) -> Source:
    return data if isinstance(data, Source) else MapStyle(data)


class Subset:
    """Some samples of a source, under their own names."""

    def __init__(self, source: Source, indices: Sequence[int]):
        self.source, self.indices = source, indices

    def __len__(self) -> int:
        return len(self.indices)

    def keyed(self, index: int, key: Key | None) -> Any:
        return self.source.keyed(self.indices[index], key)

    def name(self, index: int) -> str:
        return self.source.name(self.indices[index])


@runtime_checkable
class HasSubset(Protocol):
    def subset(self, indices: Sequence[int]) -> Source: ...


def subset(source: Source, indices: Sequence[int]) -> Source:
    """Some samples of a source; a source with more methods than `Source` implements it itself."""
    return source.subset(indices) if isinstance(source, HasSubset) else Subset(source, indices)


def split_indices(size: int, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Training and validation indices, disjoint; a pure function of the seed and the index."""
    count = round(size * fraction) if size > 1 else 0
    ranked = sorted(range(size), key=lambda index: fold(seed, "valid", index))
    return sorted(ranked[count:]), sorted(ranked[:count])
