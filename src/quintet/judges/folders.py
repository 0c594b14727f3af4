"""Two folders of anybody's files, judged without any run of ours."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quintet.engine.errors import RunError
from quintet.judges.base import Array, Judge, PairJudge, SetJudge, by_source
from quintet.judges.receipt import Receipt, Score, of_rows, of_sets, set_digest

CHUNK = 32
"""Samples in memory at a time."""

Read = Callable[[Path], Any]
Track = Callable[[Sequence[Any]], Iterator[Any]]


def files_in(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Files by their path below the folder, without the suffix, in the order of names."""
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}")
    paths: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.suffix.lower() in suffixes:
                stem = path.relative_to(folder).with_suffix("").as_posix()
                if stem in paths:
                    raise RunError(f"{path} and {paths[stem]} have the same name; rename one")
                paths[stem] = path
    if not paths:
        raise RunError(f"{folder} has no files that end in {', '.join(suffixes)}")
    return paths


def matched(references: Mapping[str, Path], outputs: Mapping[str, Path]) -> list[str]:
    """Names that both have; it is an error if one is missing."""
    both = (references, outputs, "output"), (outputs, references, "reference")
    for one, other, word in both:
        lacking = [name for name in one if name not in other]
        if lacking:
            raise RunError(
                f"{len(lacking)} of {len(one)} files have no {word}, first {one[lacking[0]]}; "
                "files belong together if their paths are equal but for the suffix"
            )
    return list(references)


def judged(
    judges: Sequence[Judge],
    references: Mapping[str, Path],
    outputs: Mapping[str, Path],
    read: Read,
    preparation: dict[str, str],
    track: Track = iter,
) -> dict[str, Score]:
    """A score for each judge. Pairs are needed only by judges of pairs. `track` shows progress."""
    paired = [judge for judge in judges if isinstance(judge, PairJudge)]
    reference = set_digest(references.values())
    rows: dict[str, list[Array]] = defaultdict(list)
    joint: dict[str, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    if paired:
        names = matched(references, outputs)
        for chunk in track(_chunks(names)):
            originals = [read(references[name]) for name in chunk]
            others = [read(outputs[name]) for name in chunk]
            for judge in paired:
                if judge.joint:
                    joint[judge.name][0].extend(originals)
                    joint[judge.name][1].extend(others)
                else:
                    rows[judge.name].append(judge.rows(originals, others))
        for judge in paired:
            if judge.joint:
                rows[judge.name].append(judge.rows(*joint[judge.name]))
    features = {
        name: [_features(judge, files, read, track) for files in (references, outputs)]
        for name, judge in by_source(judges).items()
    }
    scores: dict[str, Score] = {}
    for judge in judges:
        count = len(references if isinstance(judge, PairJudge) else outputs)
        receipt = Receipt(judge.name, judge.facts(), reference, preparation, count)
        if isinstance(judge, PairJudge):
            scores[judge.name] = of_rows(judge, np.concatenate(rows[judge.name]), receipt)
        elif isinstance(judge, SetJudge):
            first, second = features[judge.kept_as]
            scores[judge.name] = of_sets(judge, first, second, receipt)
    return scores


def _features(judge: SetJudge, files: Mapping[str, Path], read: Read, track: Track) -> Array:
    chunks = track(_chunks(list(files.values())))
    return judge.joined([judge.features([read(path) for path in chunk]) for chunk in chunks])


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
