"""What a generator makes of held-out captions, and beside them as many training samples."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from quintet.engine.data.source import Source
from quintet.engine.evaluate import ConcatData
from quintet.engine.task import Batch
from quintet.shared.generation.data import in_floats
from quintet.shared.generation.task import GeneratorTask
from quintet.shared.outputs import Group, Outputs, cropped, eight_bits
from quintet.shared.sampling import readable


class Generated(Outputs):
    task: GeneratorTask
    size = 64

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.limit = task.recipe.generation.count or None
        self.compares = "sets" if task.config.text == "none" else "captions"

    def preparation(self) -> dict[str, str]:
        return cropped(self.task.pixel_config.size)

    def open(self, nets: Mapping[str, Any], source: Source) -> Source:
        """The samples behind the codes."""
        parts = [s for split in ("train", "valid") if (s := self.task.codes[split]) is not None]
        whole = isinstance(source, ConcatData)
        samples = ConcatData([s.source for s in parts]) if whole else parts[-1].source
        # Of a folder to evaluate on, nothing was trained on.
        train = None if whole else self.task.codes["train"]
        self.training = iter(()) if train is None else readable(train.source, len(train))
        return super().open(nets, samples)

    def collate(self, items: list[Any]) -> Any:
        return {"text": [item["text"] for item in items]}

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        captions = batch.data["text"]
        pixels = [self._pixels(item) for item in items]
        generated = self.task.generate(captions, batch.ids, **self.task.conditions_of(pixels))
        training = [item for _, item in islice(self.training, len(items))]
        baselines = {"training": [self._plain(item) for item in training]}
        originals, outputs = map(self.shown, pixels), map(self.shown, generated)
        return Group([*originals], [*outputs], baselines, captions=captions)

    def _pixels(self, item: Any) -> Tensor:
        return in_floats(item[self.task.field], self.task.tokenizer)

    def _plain(self, item: Any) -> Tensor:
        return self.shown(self._pixels(item))

    def shown(self, pixels: Tensor) -> Tensor:
        """uint8 as a file holds it."""
        return eight_bits(pixels[None])[0]
