"""Step cadences: the only place in Quintet that takes a step modulo anything."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class When:
    """Due at `start`, `start + every`, `start + 2 * every`, …; never, if `every` is 0."""

    every: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        if self.every < 0 or self.start < 0:
            raise ValueError(
                f"When(every={self.every}, start={self.start}): both must be 0 or more; "
                "every=0 means never"
            )

    def due(self, step: int) -> bool:
        return self.every > 0 and step >= self.start and (step - self.start) % self.every == 0

    def count(self, step: int) -> int:
        """Number of due steps among 0 … step - 1."""
        if self.every == 0 or step <= self.start:
            return 0
        return (step - 1 - self.start) // self.every + 1

    def inside(self, outer: "When") -> "When":
        """This cadence, checked only at steps of `outer`; an error if the two never coincide."""
        never = self.every == 0 or outer.every == 0
        if not never and (self.start - outer.start) % math.gcd(self.every, outer.every):
            raise ValueError(
                f"{self} is never due at a step of {outer}: use the same start, or starts a "
                f"multiple of {math.gcd(self.every, outer.every)} apart"
            )
        return self


ALWAYS = When()
