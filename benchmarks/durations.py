"""How well durations of tokens can be predicted from the recordings of a folder: by the duration
model of a run, and by boosted trees that are told the speaker and learn from the same alignments.

    pip install lightgbm
    python benchmarks/durations.py RUN TRAIN HELD [--parts 8 4 2 1]

Two lines of JSON and more: the error of held-out durations, absolute and summed, as a share of
their sum, in all and by speaker. The model is given the rest of each recording, of which the first,
the middle and the last half are asked for. With `--parts` the trees learn from an eighth, a quarter
… of the recordings: what more of them would be worth.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from sys import maxsize
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.engine.data.wire import to_floats
from quintet.shared.sampling import loaded
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets, SpeechFolder
from quintet.speech.text.characters import FIRST, PAD
from quintet.speech.text.phonemes import encode_phonemes
from quintet.speech.text.tokens import unpack
from quintet.speech.voicebox.durations import fully_visible, voice_of
from quintet.speech.voicebox.masking import span_mask
from quintet.speech.voicebox.model import VoiceBox

AROUND = 3
"""Tokens on both sides that a tree sees."""
PLACES = (0.0, 0.5, 1.0)
SPACE = FIRST + ord(" ")
PAUSES = {FIRST + ord(symbol) for symbol in " ,;:.!?-"}
STRESS = [int(encode_phonemes([mark])) for mark in "ˈˌ"]
TREES: dict[str, Any] = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 63,
    "min_child_samples": 10,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "cat_smooth": 20,
    "cat_l2": 10,
    "verbose": -1,
    "seed": 0,
}
Numbers = npt.NDArray[np.float64]


class Aligned(NamedTuple):
    """A recording, cut into its tokens by the aligner of the run."""

    speaker: str
    ids: Tensor
    durations: Tensor
    frames: Tensor


class Errors:
    """Sums of errors and of durations, in all and by speaker."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

    def add(self, speaker: str, error: float, total: float) -> None:
        for name in ("all", speaker):
            sums = self.sums.setdefault(name, [0.0, 0.0])
            sums[0], sums[1] = sums[0] + error, sums[1] + total

    def shares(self) -> dict[str, float]:
        return {name: round(error / total, 4) for name, (error, total) in self.sums.items()}


@torch.no_grad()
def aligned(model: VoiceBox, folder: Path) -> Iterator[Aligned]:
    rate = model.config.sample_rate
    config = SpeechDataConfig(sample_rate=rate, valid_folder=str(folder), valid_limit=maxsize)
    source = SpeechFolder(folder, Buckets(config, model.config), "valid", 0)
    for index in range(len(source)):
        sample = source.keyed(index, None)
        frames = model.extract([to_floats(sample["audio"])])[0][None]
        ids = model.encode(sample["text"], sample["language"]).to(frames.device)[None]
        counts = (torch.tensor([each.shape[1]], device=ids.device) for each in (frames, ids))
        num_frames, num_tokens = counts
        durations = model.align(frames, num_frames, ids, num_tokens).durations
        speaker = source.about(index).speaker or source.name(index).rpartition("/")[0]
        yield Aligned(speaker, ids[0], durations[0], frames[0])


@torch.no_grad()
def of_model(model: VoiceBox, rows: Iterable[Aligned]) -> dict[str, float]:
    errors = Errors()
    assert model.durations is not None
    for row in rows:
        ids, durations, frames = row.ids[None], row.durations[None], row.frames[None]
        num_frames, num_tokens = (
            torch.tensor([each.shape[1]], device=ids.device) for each in (frames, ids)
        )
        for place in PLACES:
            at = torch.tensor([place], device=ids.device)
            mask = span_mask(num_frames, 0.5, at, frames.shape[1])
            known = fully_visible(durations, mask)
            voice = voice_of(frames, ~mask)
            predicted = model.durations(ids, num_tokens, durations, known, voice).exp()
            error = ((predicted - durations).abs() * ~known).sum()
            errors.add(row.speaker, error.item(), (durations * ~known).sum().item())
    return errors.shares()


class Features:
    """What a tree sees of a token, as numbers; which of them are names is `names`."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, ...], int] = {}
        self.speakers: dict[str, int] = {}
        self.names = [*range(0, 4 * (2 * AROUND + 1), 4), 4 * (2 * AROUND + 1)]

    def __call__(self, row: Aligned) -> list[list[float]]:
        symbols = [[s for s in token if s != PAD] for token in unpack(row.ids).tolist()]
        pause = [{*token} <= PAUSES for token in symbols]
        first = [gap or token[0] == SPACE for gap, token in zip(pause, symbols)]
        about = [self._about(token, *flags) for token, *flags in zip(symbols, first, pause)]
        nothing = [float("nan")] * len(about[0])
        about = [nothing] * AROUND + about + [nothing] * AROUND
        since, until = _distances(pause), _distances(pause[::-1])[::-1]
        into, left = _distances(first), _distances([*first[1:], True][::-1])[::-1]
        speaker, count = self.speakers.setdefault(row.speaker, len(self.speakers)), len(symbols)
        places = zip(since, until, into, left)
        return [
            [x for one in about[i : i + 2 * AROUND + 1] for x in one]
            + [speaker, *place, i, count - i, count]
            for i, place in enumerate(places)
        ]

    def _about(self, token: Sequence[int], first: bool, pause: bool) -> list[float]:
        stress = next((place + 1 for place, mark in enumerate(STRESS) if mark in token), 0)
        base = tuple(s for s in token if s not in STRESS and (pause or s != SPACE))
        return [self.tokens.setdefault(base, len(self.tokens)), stress, first, pause]


def _distances(marks: Sequence[bool]) -> list[int]:
    """Steps since the last mark, or since the beginning."""
    return list(accumulate(marks, lambda steps, mark: 0 if mark else steps + 1, initial=0))[1:]


def of_trees(
    train: Sequence[Aligned], held: Sequence[Aligned], count: int, threads: int
) -> dict[str, float]:
    import lightgbm  # pyright: ignore[reportMissingImports]

    features, errors = Features(), Errors()
    rows = [np.array(features(row), np.float64) for row in (*train, *held)]
    targets = np.concatenate([row.durations.cpu().numpy() for row in train]).astype(np.float64)
    table = lightgbm.Dataset(
        np.concatenate(rows[: len(train)]), targets, categorical_feature=features.names
    )
    trees = lightgbm.train({**TREES, "num_threads": threads}, table, count)
    for row, seen in zip(held, rows[len(train) :]):
        wanted = row.durations.cpu().numpy()
        error = np.abs(np.asarray(trees.predict(seen)) - wanted)
        errors.add(row.speaker, float(error.sum()), float(wanted.sum()))
    return errors.shares()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("train", type=Path, help="folder that the run was trained on")
    parser.add_argument("held", type=Path, help="folder that it was not")
    parser.add_argument("--parts", type=int, nargs="+", default=[1], help="1 of so many recordings")
    parser.add_argument("--trees", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=0, help="of the trees; 0: all cores")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    asked = parser.parse_args()
    if find_spec("lightgbm") is None:
        parser.error("the trees need lightgbm: pip install lightgbm")
    model = loaded(asked.run, asked.device)
    train, held = (list(aligned(model, folder)) for folder in (asked.train, asked.held))
    print(json.dumps({"by": "model", **of_model(model, held)}), flush=True)
    random.Random(0).shuffle(train)
    for part in asked.parts:
        chosen = train[: max(1, len(train) // part)]
        shares = of_trees(chosen, held, asked.trees, asked.threads)
        print(json.dumps({"by": "trees", "recordings": len(chosen), **shares}), flush=True)


if __name__ == "__main__":
    main()
