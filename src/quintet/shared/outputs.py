"""What a run makes of held-out samples: the one hook of a room for `quintet evaluate --judges`.

    held-out samples, in groups ─ make ─> originals, outputs and baselines, as files hold them

A sample is plain: a picture is uint8 (3, h, w), a clip uint8 (t, 3, h, w), a mesh a `Mesh`, speech
and music a `Sound`. Judges know how to prepare, write and compare them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from quintet.engine.data.source import Source
from quintet.engine.errors import RunError
from quintet.engine.task import Batch
from quintet.media.audio import Samples16, to_16_bits

Compares = Literal["both", "pairs", "sets", "captions", "sounds", "embeddings"]


class Sound(NamedTuple):
    wav: Samples16
    rate: int
    text: str
    speaker: str = ""


class Caption(NamedTuple):
    text: str
    vector: Any
    """Its embedding."""


@dataclass(frozen=True)
class Group:
    """Lists of equal length, in the order of the samples."""

    originals: Sequence[Any]
    outputs: Sequence[Any]
    baselines: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """Outputs of trivial methods, and the originals where a judge has an error of its own."""
    references: Sequence[Any] | None = None
    """What outputs are compared with, if not the originals."""
    captions: Sequence[str] | None = None
    """What outputs were made from."""


class Outputs(ABC):
    """Makes outputs with the networks of a run. What it makes of a sample depends neither on
    the batch size of the run nor on the number of processes: groups have a size of their own."""

    compares: Compares = "both"
    """Which judges make sense."""
    size: ClassVar[int] = 8
    """Samples of a group."""
    limit: int | None = None
    """Samples judged unless the user says otherwise; None: all."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.nets: Mapping[str, Any] = {}

    def open(self, nets: Mapping[str, Any], source: Source) -> Source:
        """The samples to judge, of those to evaluate on; `make` is called afterwards."""
        self.nets, self.source = nets, source
        return source

    def collate(self, items: list[Any]) -> Any:
        return self.task.collate(items)

    @abstractmethod
    def preparation(self) -> dict[str, str]:
        """How held-out samples became originals, in words for a receipt."""

    @abstractmethod
    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        """Outputs of samples; `items` are those of the source, `batch` the same collated."""


def eight_bits(values: Tensor) -> Tensor:
    """0..1 as a file of 8 bits holds them: uint8, on the host."""
    check_finite(values)
    return (values.clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def sixteen_bits(sound: Tensor) -> Samples16:
    """A sound (n,) as a WAV file holds it."""
    if sound.dtype == torch.int16:
        return sound.numpy()
    check_finite(sound)
    return to_16_bits(sound.float().cpu().numpy())


def spoken(sets: Mapping[str, Sequence[Tensor]], rate: int, *about: Sequence[str]) -> Group:
    """Sounds by name: originals, which are a baseline too, outputs, and other baselines. `about`
    are their texts, and their speakers if those are known."""
    sounds = {
        name: [Sound(sixteen_bits(wav), rate, *of) for wav, *of in zip(wavs, *about)]
        for name, wavs in sets.items()
    }
    originals = sounds.pop("originals")
    return Group(originals, sounds.pop("outputs"), {"recordings": originals, **sounds})


def check_finite(values: Tensor) -> None:
    if not values.isfinite().all():
        raise RunError("the run's outputs are not finite; name another checkpoint with --step")


def cropped(size: Sequence[int]) -> dict[str, str]:
    """Preparation of pictures and frames by the folders of this package."""
    return {
        "size": f"{size[0]} x {size[1]}",
        "crop": "largest of this shape in the centre",
        "filter": "Lanczos with antialiasing (Pillow)",
    }
