"""Base classes of judges."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

Array = np.ndarray[Any, Any]


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
        """Values whose mean is the distance, for its interval; None: resample the outputs."""
        return None
