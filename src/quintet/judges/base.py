"""Base classes of judges."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

Array = np.ndarray[Any, Any]
GROUPS = 20
"""Groups of outputs that are left out for the interval of a distance of sets: each is a distance of
whole sets, which takes time."""


@dataclass(frozen=True)
class Options:
    """How files become samples; a medium takes what it knows."""

    size: int | None = None
    """Side of the square that pictures and frames are resized and cropped to; None: as they are."""
    frames: int | None = None
    """Frames of a clip, from its beginning; None: all."""
    rate: int | None = None
    """Sample rate of sounds; None: that of the judges."""


class Judge(ABC):
    """One number about outputs, given references."""

    name: ClassVar[str]
    """Its name on the command line."""
    medium: ClassVar[str]
    about: ClassVar[str]
    """One sentence."""
    better: ClassVar[Literal["higher", "lower"]]
    unit: ClassVar[str] = ""
    reads_text: ClassVar[bool] = False
    """Whether references must have a text."""
    reads_speaker: ClassVar[bool] = False
    """Whether references must tell who speaks."""
    reads_captions: ClassVar[bool] = False
    """Whether its references are the captions that outputs were made from."""
    needs: ClassVar[str] = ""
    """An extra (`quintet[judges]`) or a file of weights, in words; empty if it needs nothing."""

    @property
    def kept_as(self) -> str:
        """The name that its rows or features are kept under."""
        return self.name

    def problem(self) -> str | None:
        """None if it works here, else a sentence with what is missing. Imports nothing heavy."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """What decides the number besides files: conventions, digests of weights, versions."""


class PairJudge(Judge):
    """Compares an output with its reference."""

    joint: ClassVar[bool] = False
    """Whether a row depends on all other samples too, which must then come at once."""

    @abstractmethod
    def rows(self, references: Sequence[Any], outputs: Sequence[Any]) -> Array:
        """One value for each pair, in fp64."""

    def mean(self, rows: Array) -> float:
        """The score of all rows; for rates (errors over words) they have two columns."""
        return float(rows.mean())


class SetJudge(Judge):
    """Compares two sets; their order and their pairing do not count."""

    unbiased: ClassVar[bool] = False
    """Whether its expected value is the same for any number of outputs."""
    source: ClassVar[str] = ""
    """The judge that has the same features; they are computed once for both."""

    @property
    def kept_as(self) -> str:
        return self.source or self.name

    @abstractmethod
    def features(self, samples: Sequence[Any]) -> Array:
        """(n, ...): what is kept of each sample, independent of the batch that it is in."""

    def joined(self, features: Sequence[Array]) -> Array:
        """The features of several calls, as of one."""
        return np.concatenate(features)

    @abstractmethod
    def distance(self, references: Array, outputs: Array) -> float: ...

    def distance_from(self, references: Array) -> Callable[[Array], float]:
        return partial(self.distance, references)

    def shares(self, references: Array, outputs: Array) -> Array | None:
        """Values whose mean is the distance, for its interval; None: by `jackknife`."""
        return None

    def jackknife(self, references: Array, outputs: Array) -> tuple[float, Array]:
        """The distance, and those of the outputs without each of some groups, which together are
        all of them. Repeating samples, as a bootstrap does, would itself raise the distance."""
        distance = self.distance_from(references)
        groups = np.array_split(np.random.default_rng(0).permutation(len(outputs)), GROUPS)
        kept = (np.delete(outputs, group, 0) for group in groups if len(group))
        few = len(outputs) < 3  # then a group leaves one sample, which has no distance
        return distance(outputs), np.array([] if few else [distance(rows) for rows in kept])


def by_source(judges: Sequence[Judge]) -> dict[str, SetJudge]:
    """One judge of sets for each kind of features, by the name that they are kept under."""
    return {judge.kept_as: judge for judge in judges if isinstance(judge, SetJudge)}
