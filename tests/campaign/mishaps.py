"""What happens every day: a longer run, broken validation data, a closed pipe or terminal, data
or texts that change between two sittings, captions that are missing or too long, a run or outputs
inside its data, validation on training data, a step that is not finite."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from campaign.children import Program
from campaign.numbers import NAN, Fault, inject
from campaign.subjects import digests, reports
from campaign.table import Case
from campaign.trial import Trial, case, require
from quintet.engine.runs.folder import read_lines

STEPS = 4
TRAIN = ("--steps", STEPS, "--save-every", 0, "--evaluate-every", 0)


def pictures(folder: Path, count: int = 16, first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def captioned(folder: Path, texts: dict[int, str]) -> Path:
    """Pictures, and metadata with these texts in this order."""
    rows = [{"file_name": f"{number:02d}.png", "text": text} for number, text in texts.items()]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (pictures(folder) / "metadata.jsonl").write_text(lines, encoding="utf-8")
    return folder


def on_pictures(trial: Trial, folder: Path, *more: object, hook: Any = None) -> Program:
    """Start or resume the run on a folder."""
    words = trial.subject.words(trial.path, *TRAIN, *more)
    words.insert(2, str(folder))
    return Program(words, trial.path, 1, hook)


def resume(trial: Trial, *more: object) -> Program:
    return Program(["resume", str(trial.path), *map(str, more)], trial.path)


def ended(program: Program, status: int = 0) -> str:
    statuses = program.wait()
    require(statuses == [status], f"statuses {statuses}: {program.said()[-400:]}")
    return program.said()


def extended(trial: Trial) -> str:
    """The command that the README teaches must go on learning."""
    ended(trial.start(None, "--steps", STEPS))
    said = ended(resume(trial, "--steps", 2 * STEPS, "--save-every", 1, "--keep-last", 9))
    require("schedule is" in said, "it does not say what becomes of the schedule")
    rates = [line["vae/learning_rate"] for line in reports(trial.path) if "samples" in line]
    require(min(rates[STEPS:-1]) > 0, f"rates {rates}")
    kept = [files["vae.safetensors"] for files in digests(trial.path).values()]
    require(len({*kept}) == len(kept), "steps without a change of the weights")
    return "all steps beyond the first end move the weights"


def spoil_held_out() -> None:
    """In a child: when the evaluation comes, its files are no pictures any more."""
    from quintet.engine import evaluate

    measure = evaluate.measure_in_contexts

    def spoilt(contexts: Any, task: Any, nets: Any, fixed: Any, *rest: Any) -> Any:
        for index in range(fixed.samples.size):
            fixed.samples.source.path(index).write_bytes(b"spoilt")
        return measure(contexts, task, nets, fixed, *rest)

    evaluate.measure_in_contexts = spoilt


def broken_evaluation(trial: Trial) -> str:
    folder = pictures(trial.place / "data")
    whole = Path(shutil.copytree(folder, trial.place / "whole"))
    said = ended(on_pictures(trial, folder, hook=spoil_held_out), 2)
    require("held out" in said, f"it does not say that the data is held out: {said[-300:]}")
    require(trial.kept == trial.taken == STEPS, f"{trial.taken} steps taken, {trial.kept} kept")
    said = ended(resume(trial, "--steps", STEPS + 1), 2)
    require("held out" in said and trial.kept == STEPS, f"trained before it was told: {said}")
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    ended(resume(trial, "--steps", STEPS + 1))
    require(trial.kept == STEPS + 1, "it did not come to its end")
    return "the steps were kept, and the run ended once the files were restored"


def close_the_pipe(bytes_first: int) -> None:
    """In a child: standard output and error are a pipe whose reader leaves after some bytes."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        if bytes_first:
            os.read(reader, bytes_first)
        os._exit(0)
    os.close(reader)
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)


def closed_pipe(trial: Trial, bytes_first: int) -> str:
    trial.ends_alike(trial.start(partial(close_the_pipe, bytes_first)))
    return "it ended as the reference did, with nobody to read it"


def hung_up(trial: Trial) -> str:
    program = trial.start()
    trial.reach(program, 3)
    program.signal(signal.SIGHUP)
    statuses = program.wait()
    if statuses == [0]:
        trial.injected = False
    else:
        require(statuses == [129], f"statuses {statuses}")
        require(trial.kept == trial.taken, f"{trial.taken} steps taken, {trial.kept} kept")
    trial.ends_alike()
    return "saved, and resumed alike"


def changed_data(trial: Trial) -> str:
    """New files change nothing; a file that is gone is refused, and replay sees it too."""
    folder = pictures(trial.place / "data")
    ended(on_pictures(trial, folder))
    straight = Path(shutil.copytree(trial.path, trial.place / "straight"))
    ended(Program(["resume", str(straight), "--steps", "6"], straight))
    pictures(folder, 8, first=16)
    said = ended(resume(trial, "--steps", 6))
    require("8 files are new" in said, f"it does not name the new files: {said[:300]}")
    require(digests(trial.path)["6"] == digests(straight)["6"], "new files changed the run")
    lists = json.loads((trial.path / "data.json").read_text())
    gone, held_out = next(iter(lists["train"])), set(lists["valid"])
    (folder / gone).rename(folder / "renamed.png")
    said = ended(resume(trial, "--steps", 7), 2)
    require(f"gone or renamed ({gone})" in said, f"it does not name the file: {said[-300:]}")
    said = ended(Program(["replay", str(trial.path), "--step", "5"], trial.path), 2)
    require("data has changed" in said, f"replay does not see it: {said[-300:]}")
    said = ended(resume(trial, "--steps", 7, "--accept-changed-data"))
    lists = json.loads((trial.path / "data.json").read_text())
    require({*lists["valid"]} == held_out, "the split has moved")
    require({"renamed.png", "16.png"} <= {*lists["train"]}, "new files were not taken in")
    return "new files left out, a renamed one refused until it was accepted"


def changed_texts(trial: Trial) -> str:
    """Another order of the captions changes nothing, another caption is named, none is refused."""
    texts = {number: f"picture {number}" for number in range(16)}
    folder = captioned(trial.place / "data", texts)
    ended(on_pictures(trial, folder))
    straight = Path(shutil.copytree(trial.path, trial.place / "straight"))
    ended(Program(["resume", str(straight), "--steps", "6"], straight))
    captioned(folder, dict(reversed(texts.items())))
    said = ended(resume(trial, "--steps", 6))
    require("has changed" not in said, f"another order is called a change: {said[:300]}")
    require(digests(trial.path)["6"] == digests(straight)["6"], "another order changed the run")
    captioned(folder, texts | dict.fromkeys(range(0, 16, 2), "another"))
    said = ended(Program(["replay", str(trial.path), "--step", "6"], trial.path), 1)
    require("has other losses" in said, f"replay does not see it: {said[-300:]}")
    require("with another text" in said, f"replay does not name the cause: {said[-300:]}")
    said = ended(resume(trial, "--steps", 7))
    require("with another text" in said, f"it does not name the captions: {said[:300]}")
    less = {number: text for number, text in texts.items() if number > 7}
    captioned(folder, less)
    said = ended(resume(trial, "--steps", 8))
    require("with another text" in said, f"it does not name captions that are gone: {said[:300]}")
    (folder / "metadata.jsonl").unlink()
    said = ended(resume(trial, "--steps", 9), 2)
    require("has a caption" in said and trial.kept == 8, f"trained without captions: {said[-300:]}")
    captioned(folder, less)
    ended(resume(trial, "--steps", 9))
    return "another order made no difference, other captions were named, none at all refused"


def few_texts(trial: Trial) -> str:
    said = ended(on_pictures(trial, captioned(trial.place / "none", {})), 2)
    require("metadata.jsonl" in said and not trial.path.exists(), f"it trains: {said[-300:]}")
    texts = dict.fromkeys(range(4), "a fox") | {0: "a " * 40, 99: "nothing"}
    folder = captioned(trial.place / "few", texts)
    said = ended(on_pictures(trial, folder))
    require("12 of 16 images have no caption" in said, f"not counted: {said[:500]}")
    require("do not exist: 1, 99.png" in said, f"a missing file is not named: {said[:500]}")
    require("1 of 4 captions have more than" in said, f"a cut is not counted: {said[:500]}")
    require("--text 'a fox'" in said, f"another caption is suggested: {said[-300:]}")
    words = ["sample", str(trial.path), "--text", texts[0], "--count", "1"]
    said = ended(Program([*words, "--out", str(trial.place / "out")], trial.path))
    require("as in training" in said, f"sampling does not say that it cuts: {said}")
    return "none refused; missing, long and misplaced captions counted"


def inside_its_data(trial: Trial) -> str:
    folder = pictures(trial.place / "data")
    words = trial.subject.words(folder / "run", *TRAIN)
    words.insert(2, str(folder))
    for _ in range(2):
        said = ended(Program(words, folder / "run"))
        require("from 14 samples, 2 held out" in said or "at step 4" in said, said[:300])
        shutil.rmtree(folder / "another", ignore_errors=True)
        other = [word.replace(str(folder / "run"), str(folder / "another")) for word in words]
        said = ended(Program(other, folder / "another"))
        require("from 14 samples, 2 held out" in said, f"it trains on exhibits: {said[:300]}")
    return "neither its own exhibits nor those of another run became data"


def validated_on_itself(trial: Trial, processes: int = 1) -> str:
    """Validation data inside the data, or copied from it, is not trained on, resumed or not."""
    folder = pictures(trial.place / "data")
    said = ended(on_pictures(trial, folder, "--valid", folder), 2)
    require("no training data is left" in said, f"it trains on nothing: {said[-300:]}")
    valid = pictures(folder / "valid", 2, first=20)
    for number in range(4):
        shutil.copy(folder / f"{number:02d}.png", valid / f"copy{number}.png")
    words = trial.subject.words(trial.path, *TRAIN, "--valid", valid)
    words.insert(2, str(folder))
    program = Program(words, trial.path, processes)
    require(program.wait() == [0] * processes, program.said()[-400:])
    said = program.said()
    require("from 12 samples," in said, f"copies are trained on: {said[:400]}")
    require("4 of 16 images are copies" in said, f"it does not count them: {said[:400]}")
    straight = Path(shutil.copytree(trial.path, trial.place / "straight"))
    ended(Program(["resume", str(straight), "--steps", "6"], straight))
    shutil.copy(folder / "00.png", folder / "new.png")
    ended(resume(trial, "--steps", 6, "--accept-changed-data"))
    require(digests(trial.path)["6"] == digests(straight)["6"], "a new copy changed the run")
    ended(Program(["doctor", str(trial.path)], trial.path))
    return "what is held out stayed out of training, by path and by content"


def outputs_among_data(trial: Trial) -> str:
    """What sample wrote into the data is neither its input nor training data."""
    folder = pictures(trial.place / "data")
    ended(on_pictures(trial, folder))
    for _ in range(2):
        words = ["sample", str(trial.path), str(folder), "--out", str(folder)]
        said = ended(Program(words, trial.path))
        require(said.count(".comparison.png") == 16, f"other inputs: {said[-300:]}")
    other = trial.place / "another"
    words = trial.subject.words(other, *TRAIN)
    words.insert(2, str(folder))
    said = ended(Program(words, other))
    require("from 14 samples, 2 held out" in said, f"it trains on outputs: {said[:300]}")
    require("outputs of `sample` or `evaluate`: 32" in said, f"not counted: {said[:300]}")
    return "32 outputs left out and counted"


def renamed_training_data(trial: Trial) -> str:
    """Metrics on a renamed copy of the training data are called optimistic."""
    folder = pictures(trial.place / "data")
    ended(on_pictures(trial, folder))
    folder.rename(trial.place / "renamed")
    for number in range(16):
        (trial.place / f"renamed/{number:02d}.png").rename(trial.place / f"renamed/n{number}.png")
    words = [str(trial.path), str(trial.place / "renamed")]
    said = ended(Program(["evaluate", *words], trial.path))
    require('"trained_on": 14' in said, f"it does not know its own data: {said[-300:]}")
    said = ended(Program(["compare", *reversed(words)], trial.path))
    require('"trained_on": 14' in said, f"compare does not: {said[-300:]}")
    require("14 of 16" in said, f"its table does not: {said[:300]}")
    return "evaluate and compare count 14 of 16 as trained on"


def one_numbering(trial: Trial, step: int = 3) -> str:
    """The step that an event names is the one that replay shows; a fault counts from 0."""
    spoil = partial(inject, Fault("loss", NAN, "vae", step - 1))
    ended(trial.start(spoil, "--steps", STEPS, "--evaluate-every", 0, "--save-every", 1))
    events = [line["message"] for line in read_lines(trial.path / "events.jsonl")]
    skipped = [line for line in events if line.startswith("skipped the update of 'vae'")]
    require(len(skipped) == 1 and f"at step {step}:" in skipped[0], f"events {skipped}")
    lines = {line["step"]: line for line in reports(trial.path) if "vae/skipped" in line}
    require(lines[step]["vae/skipped"] == 1, f"reports {lines}")
    words = ["replay", str(trial.path), "--step", str(step)]
    said = ended(Program(words, trial.path, 1, spoil))
    shown = json.loads(said.splitlines()[-1])
    require(shown["losses"]["vae/skipped"] == 1, f"replay shows another step: {said[-300:]}")
    return f"step {step} in event, report and replay"


def cases(full: bool, seed: int) -> Iterator[Case]:
    plan: dict[str, Callable[[Trial], str]] = {
        "a longer run": extended,
        "validation data breaks": broken_evaluation,
        "a pipe without a reader": partial(closed_pipe, bytes_first=0),
        "a terminal that is gone": hung_up,
        "changed data": changed_data,
        "a run inside its data": inside_its_data,
        "validation on training data": validated_on_itself,
        "outputs among the data": outputs_among_data,
        "a renamed copy of the training data": renamed_training_data,
        "a step that is not finite": one_numbering,
    }
    of_texts: dict[str, Callable[[Trial], str]] = {
        "changed captions": changed_texts,
        "few captions": few_texts,
    }
    for title, act in of_texts.items():
        name = f"mishap: {title}"
        yield case("everyday mishaps", name, Trial(name, "image/maskgit_tiny"), act)
    if full:
        plan["a pipe that closes"] = partial(closed_pipe, bytes_first=200 + seed)
        plan["validation on training data, in two"] = partial(validated_on_itself, processes=2)
    for title, act in plan.items():
        name = f"mishap: {title}"
        yield case("everyday mishaps", name, Trial(name), act)
