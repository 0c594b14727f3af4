"""A new voice from a few minutes of speech: VoiceBox fine-tuned, and what it keeps of the others.

    python benchmarks/new_voice.py --out DIR                       built-in voices, two CPU cores
    python benchmarks/new_voice.py --out DIR --recipe speech/voicebox --others A --new B

A model is trained on the other voices. Then, from its weights (--init-from, so that averages begin
anew) and for fewer steps at a third of the learning rate: on the new voice alone, and on it with as
many recordings of the others; and, to compare, without those weights. All are measured on held-out
recordings of the new voice and of the others, half of each infilled: the error of log-mels over
that of copying the adjacent frame, and the error of durations. A line of JSON for each.

A and B have `train` and `held`, each with a metadata.jsonl. Without them they are written: seven of
the built-in voices, and minutes of the eighth.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from provenance import commit, machine

from quintet.media.audio import write_wav
from quintet.rooms import recipe_function
from quintet.speech.voices import SPEAKERS, compose, speak

NEW = SPEAKERS[-1].name
RATE = 24_000
HELD = 24
"""Recordings to measure on, of each kind."""


def write_voices(folder: Path, new: bool, minutes: float, longest: float) -> Path:
    """Utterances by number; the held-out ones come first."""
    for split, seconds in (("held", 0.0), ("train", minutes * 60)):
        (folder / split).mkdir(parents=True)
        rows: list[str] = []
        for number in count(0 if split == "held" else 10**6):
            utterance = compose(number)
            if utterance.seconds > longest or (utterance.speaker.name == NEW) != new:
                continue
            write_wav(folder / split / f"{number}.wav", speak(utterance, RATE), RATE)
            row = {"file_name": f"{number}.wav", "text": utterance.text}
            rows.append(json.dumps(row | {"speaker": utterance.speaker.name}))
            seconds -= utterance.seconds
            if len(rows) >= HELD and seconds <= 0:
                break
        (folder / split / "metadata.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


def joined(folder: Path, new: Path, others: Path) -> Path:
    """All recordings of the new voice, and as many of the others."""
    (folder / "train").mkdir(parents=True)
    texts = [(one / "train/metadata.jsonl").read_text(encoding="utf-8") for one in (new, others)]
    rows = [[json.loads(line) for line in text.splitlines()] for text in texts]
    chosen = [("new", new, row) for row in rows[0]]
    apart = max(1, len(rows[1]) // len(rows[0]))  # of all voices, also if they are sorted
    chosen += [("other", others, row) for row in rows[1][::apart][: len(rows[0])]]
    lines: list[str] = []
    for kind, source, row in chosen:
        name = f"{kind}-{row['file_name'].replace('/', '-')}"
        shutil.copyfile(source / "train" / row["file_name"], folder / "train" / name)
        lines.append(json.dumps(row | {"file_name": name}))
    (folder / "train/metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def quintet(*words: Any) -> str:
    command = [sys.executable, "-m", "quintet", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train(asked: argparse.Namespace, name: str, data: Path, steps: int, *flags: Any) -> Path:
    run, begun = asked.out / name, time.perf_counter()
    few = ("--evaluate-every", 0, "--save-every", 0, "--trackers", "--judges")
    always = shlex.split(asked.flags)
    place = ("--valid", asked.new / "held", "--run", run, "--steps", steps)
    quintet("train", asked.recipe, data / "train", *place, *few, *flags, *always)
    row: dict[str, Any] = {"benchmark": "new_voice", "run": name, "steps": steps}
    row |= {"seconds": round(time.perf_counter() - begun, 1), "commit": asked.commit}
    for kind in ("new", "others"):
        held = getattr(asked, kind) / "held"
        found = json.loads(quintet("evaluate", run, held, "--json-line").splitlines()[-1])
        row |= {f"{kind}_{key}": found[key] for key in ("share_of_copying", "duration_error")}
    print(json.dumps(row | machine(run)), flush=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="written; must not exist")
    parser.add_argument("--recipe", default="speech/voicebox_tiny")
    parser.add_argument("--others", type=Path)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="of the new built-in voice")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--fine-steps", type=int, default=150)
    parser.add_argument("--flags", default="", help="settings of all runs")
    parser.add_argument("--commit", default=commit())
    asked = parser.parse_args()
    asked.out.mkdir(parents=True)
    recipe: Any = recipe_function(asked.recipe)()
    longest = recipe.recordings.max_seconds
    for name, minutes in (("new", asked.minutes), ("others", 4 * asked.minutes)):
        if getattr(asked, name) is None:
            voices = write_voices(asked.out / "voices" / name, name == "new", minutes, longest)
            setattr(asked, name, voices)
    both = joined(asked.out / "both", asked.new, asked.others)
    slower = ("--optim.learning-rate", recipe.optim.learning_rate / 3)
    base = train(asked, "others", asked.others, asked.steps)
    train(asked, "new", asked.new, asked.fine_steps, "--init-from", base, *slower)
    train(asked, "new-and-others", both, asked.fine_steps, "--init-from", base, *slower)
    train(asked, "without", asked.new, asked.fine_steps)


if __name__ == "__main__":
    main()
