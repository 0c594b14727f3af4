"""Outputs of a vocoder: copies of whole held-out recordings through log-mels."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from torch import Tensor

from quintet.engine.data.source import Source
from quintet.engine.data.wire import to_floats
from quintet.engine.evaluate import ConcatData
from quintet.engine.task import Batch
from quintet.media.errors import BadFile
from quintet.shared.outputs import Group, Outputs, spoken
from quintet.shared.segments import Recordings, Segments
from quintet.shared.transcripts import Transcripts
from quintet.speech.vocoder.model import Vocoder
from quintet.speech.vocoder.task import VocoderTask

LONGEST = 30
"""Seconds; of a longer recording the middle is judged, and not by its transcript."""


class Whole:
    """The recordings of a split in full, with their transcripts where there are some."""

    def __init__(self, split: Any) -> None:
        segments: Segments = split.segments
        self.source, self.texts = copy(split), transcripts(split)
        self.source.segments = Segments(segments.train, LONGEST * segments.rate, segments.rate)

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def keyed(self, index: int, key: Any) -> dict[str, Any]:
        return {**self.source.keyed(index, None), "text": self.texts.get(index, "")}


def transcripts(split: Any) -> dict[int, str]:
    """Transcripts of recordings that are not cut, by index."""
    if not isinstance(split, Recordings):
        return {}
    short = [index for index in range(len(split)) if split.extent(index) <= LONGEST]
    if split.shards is not None:
        texts = {index: str(split.row(index).get("text") or "") for index in short}
        return {index: text for index, text in texts.items() if text}
    names = {index: split.name(index) for index in short}
    try:
        known = Transcripts(split.folder, list(names.values()))
    except BadFile:  # metadata without texts
        return {}
    return {index: known.of(name) for index, name in names.items() if name in known}


class Copies(Outputs):
    """Judged by transcripts too if all held-out recordings have some."""

    task: VocoderTask

    def __init__(self, task: VocoderTask) -> None:
        super().__init__(task)
        split = task.data("valid") or task.data("train")
        self.compares = "both" if len(transcripts(split)) == len(split) else "sounds"

    def preparation(self) -> dict[str, str]:
        rate = self.task.recipe.model.sample_rate
        return {
            "recordings": f"mono of 16 bits at {rate} Hz",
            "length": f"whole files; the middle {LONGEST} s of longer ones",
        }

    def open(self, nets: Mapping[str, Any], source: Source) -> Source:
        names = ("train", "valid") if isinstance(source, ConcatData) else ("valid",)
        splits = (self.task.data(name) for name in names)
        return super().open(nets, ConcatData([Whole(split) for split in splits if split]))

    def collate(self, items: list[Any]) -> list[Tensor]:
        return [to_floats(item["audio"]) for item in items]

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        """One by one, so that a copy depends on its recording alone."""
        model: Vocoder = self.nets[self.task.main]
        sets = {
            "originals": [item["audio"] for item in items],
            "outputs": [model.copy(sound) for sound in batch.data],
            "griffin_lim": [model.copy(sound, model.griffin_lim) for sound in batch.data],
        }
        return spoken(sets, model.config.sample_rate, [item["text"] for item in items])


outputs = Copies
