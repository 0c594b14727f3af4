"""What a run makes of held-out samples, judged beside what trivial methods make of them.

    samples, in groups ─ the room's `make` ─> originals, outputs, baselines ─ judges ─> scores

One process does it: groups and their order are the same whatever the number of processes and the
batch size of the run, and so are the numbers.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quintet.engine.data.source import Source
from quintet.engine.data.stream import DAMAGE, collated, to_device
from quintet.engine.data.transfer import Transfer
from quintet.engine.errors import RunError
from quintet.engine.evaluate import Opened
from quintet.engine.keys import Key
from quintet.engine.machine.world import World
from quintet.engine.task import Batch
from quintet.files import atomic_write, marking_outputs
from quintet.judges.base import Judge, Options, PairJudge, SetJudge, by_source
from quintet.judges.choosing import MediumModule
from quintet.judges.folders import Track
from quintet.judges.networks import exact
from quintet.judges.receipt import Receipt, Score, content_digest, joined_digest, of_rows, of_sets
from quintet.shared.outputs import Group, Outputs

OUTPUTS, ORIGINALS = "outputs", "originals"
Scores = dict[str, Score]


class Judgement(NamedTuple):
    judges: Scores
    """Scores of the outputs, by judge."""
    baselines: dict[str, Scores]
    skipped: list[str]
    """Held-out samples that cannot be read, and why."""


def judge_run(
    judges: Sequence[Judge],
    maker: Outputs,
    opened: Opened,
    world: World,
    module: MediumModule,
    *,
    count: int | None = None,
    save: Path | None = None,
    track: Track = iter,
) -> Judgement:
    """Judge the first `count` samples, or as many as the room says; `save` writes files."""
    source = maker.open(opened.nets, opened.source)
    total = min(len(source), count or maker.limit or len(source))
    starts = range(0, total, maker.size)
    sheet, skipped, done = Sheet(judges), list[str](), 0
    with exact():
        for start in track(starts):
            indices = range(start, min(start + maker.size, total))
            items = dict(_readable(source, indices, skipped))
            if not items:
                continue
            group = maker.make([*items.values()], _batch(maker, items, world))
            sheet.add(group, module)
            if save is not None:
                with marking_outputs():
                    _write(save, group, module, done)
            done += len(items)
    if not done:
        raise RunError(f"none of {total} held-out samples can be read; the first: {skipped[0]}")
    preparation = {**module.reader(Options())[1], **maker.preparation()}
    scores = sheet.scores(preparation)
    return Judgement(scores.pop(OUTPUTS), scores, skipped)


def _readable(
    source: Source, indices: Sequence[int], skipped: list[str]
) -> Iterator[tuple[int, Any]]:
    """Unlike in training, nothing replaces a damaged sample: another would count twice."""
    for index in indices:
        try:
            yield index, source.keyed(index, None)
        except DAMAGE as error:
            skipped.append(f"{source.name(index)}: {error}")


def _batch(maker: Outputs, items: Mapping[int, Any], world: World) -> Batch:
    samples = [(item, index, Key(0, 0, index), []) for index, item in items.items()]
    return to_device(collated(maker.collate, samples), [], Transfer(world))


def _write(folder: Path, group: Group, module: MediumModule, first: int) -> None:
    for name, samples in ((ORIGINALS, group.originals), (OUTPUTS, group.outputs)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, sample in enumerate(samples, first):
            module.write(folder / name / f"{number:06d}", sample)
        for number, caption in enumerate(group.captions or (), first):
            if caption:
                atomic_write(folder / name / f"{number:06d}.txt", caption.encode())


class Sheet:
    """What judges keep of several sets, group by group, and the scores in the end."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        self.judges = judges
        self.digests: list[str] = []
        """Digests of originals."""
        self.captions: list[str] = []
        """Digests of captions."""
        self.counts: dict[str, int] = defaultdict(int)
        self.references: dict[str, list[Any]] = defaultdict(list)
        """Features by judge, or the samples of a joint one."""
        self.rows: dict[tuple[str, str], list[Any]] = defaultdict(list)
        """Rows, features or samples, by judge and set."""

    def add(self, group: Group, module: MediumModule) -> None:
        self.digests += [content_digest(sample) for sample in group.originals]
        compared = group.originals if group.references is None else group.references
        references = [module.sample_of(sample) for sample in compared]
        for source, judge in by_source(self.judges).items():
            self.references[source].append(judge.features(references))
        for judge in self.judges:
            if isinstance(judge, PairJudge) and judge.joint:
                self.references[judge.name] += references
        captions = group.captions or []
        self.captions += [content_digest(caption) for caption in captions]
        sets = {OUTPUTS: group.outputs, **group.baselines}
        if captions:
            sets[ORIGINALS] = group.originals
        for name, outputs in sets.items():
            self.counts[name] += len(outputs)
            if len(outputs) == len(references):
                samples = [module.sample_of(sample) for sample in outputs]
                self._add_set(name, references, captions, samples)

    def _add_set(
        self, name: str, references: list[Any], captions: Sequence[str], samples: list[Any]
    ) -> None:
        if name != ORIGINALS:  # the distance of a set from itself is 0
            for source, judge in by_source(self.judges).items():
                self.rows[source, name].append(judge.features(samples))
        for judge in self.judges:
            if isinstance(judge, PairJudge):
                rows = self.rows[judge.name, name]
                compared = captions if judge.reads_captions else references
                rows += samples if judge.joint else [judge.rows(compared, samples)]

    def scores(self, preparation: dict[str, str]) -> dict[str, Scores]:
        """Scores by set and judge. A baseline that ran out of samples is left out."""
        count = self.counts[OUTPUTS]
        whole = [name for name, number in self.counts.items() if number == count]
        scores: dict[str, Scores] = {name: {} for name in whole}
        for judge in self.judges:
            reference = joined_digest(self.captions if judge.reads_captions else self.digests)
            receipt = Receipt(judge.name, judge.facts(), reference, preparation, count)
            for name in whole:
                if self.rows[judge.kept_as, name]:
                    scores[name][judge.name] = self._score(judge, name, receipt)
        return {name: by_judge for name, by_judge in scores.items() if by_judge}

    def _score(self, judge: Judge, name: str, receipt: Receipt) -> Score:
        rows, references = self.rows[judge.kept_as, name], self.references[judge.kept_as]
        if isinstance(judge, SetJudge):
            return of_sets(judge, judge.joined(references), judge.joined(rows), receipt)
        assert isinstance(judge, PairJudge)
        together = judge.rows(references, rows) if judge.joint else np.concatenate(rows)
        return of_rows(judge, together, receipt)
