"""How many exchanged transcripts of a folder the aligner of a run finds, and how many it accuses
that are right.

    python benchmarks/transcripts.py RUN FOLDER [--share 0.05] [--seed 0]

In memory, `share` of the recordings get the text of another one of them. Prints one line of JSON
for the whole folder and one for the validation split of a run with seed 0, which a run on this
folder did not train on.
"""

import argparse
import json
import random
import time
from pathlib import Path
from sys import maxsize

from quintet.shared.sampling import loaded
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets, SpeechFolder
from quintet.speech.voicebox.doubts import judge


class Exchanged(SpeechFolder):
    """A folder some of whose recordings have the text of another."""

    texts: dict[str, str]

    def text(self, index: int) -> str:
        return self.texts.get(self.name(index)) or super().text(index)


def exchanged(sides: list[Exchanged], share: float, seed: int) -> dict[str, str]:
    """New texts by name: those of a cycle through the chosen recordings."""
    written = {side.name(i): side.text(i) for side in sides for i in range(len(side))}
    names = random.Random(seed).sample(sorted(written), round(share * len(written)))
    pairs = zip(names, names[1:] + names[:1])
    return {name: written[other] for name, other in pairs if written[name] != written[other]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    asked = parser.parse_args()
    model = loaded(asked.run, asked.device)
    config = SpeechDataConfig(sample_rate=model.config.sample_rate, valid_limit=maxsize)
    buckets = Buckets(config, model.config)
    Exchanged.texts = {}
    sides = [Exchanged(asked.folder, buckets, split, 0) for split in ("train", "valid")]
    Exchanged.texts = exchanged(sides, asked.share, asked.seed)
    started = time.perf_counter()
    verdict = judge(model, buckets, sides)
    seconds = time.perf_counter() - started
    held_out = {sides[1].name(index) for index in range(len(sides[1]))}
    for what, chosen in (("all", None), ("held out", held_out)):
        rows = [row for row in verdict.doubts if chosen is None or row.name in chosen]
        wrong = [row.log_odds > 0 for row in rows if row.name in Exchanged.texts]
        right = [row.log_odds > 0 for row in rows if row.name not in Exchanged.texts]
        result = {
            "recordings": what,
            "exchanged": len(wrong),
            "named": sum(wrong) / max(1, len(wrong)),
            "false_alarms": sum(right) / max(1, len(right)),
            "expected": verdict.power,
            "seconds": seconds,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
