"""`quintet judges`, `quintet evaluate --pair`, and the judges of `quintet evaluate RUN` and of runs
that train."""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from quintet import rooms
from quintet.cli.common import check_positive, parse, say
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError
from quintet.suggest import command

if TYPE_CHECKING:
    from quintet.judges.receipt import Score


@dataclasses.dataclass(kw_only=True)
class Judges:
    """List the judges of each medium, and what unavailable ones need."""


def judges(arguments: list[str]) -> None:
    from quintet.judges import choosing

    parse(Judges, arguments, "judges")
    for medium in choosing.MEDIA:
        print(medium)
        for judge in choosing.of_medium(medium).values():
            problem = judge().problem()
            print(f"  {judge.name:<21} {judge.about}")
            if problem:
                print(f"  {'':<21} {problem}")


@dataclasses.dataclass(kw_only=True)
class Pair:
    """Compare the files of one folder with those of another, without a run. Files are paired by
    their paths without suffix; metrics of sets (FID, coverage) need no pairs. Prints a table and
    one line of JSON with the receipts."""

    pair: Annotated[tuple[Path, Path], tyro.conf.arg(metavar="REFERENCES OUTPUTS")]
    """The folder of originals, and the folder to judge."""
    judges: tuple[str, ...] = ()
    """Names of judges, separated by spaces or commas; the default is all that work on this
    machine."""
    medium: str | None = None
    """Medium; inferred from the files and judges by default, with speech for sounds."""
    size: int | None = None
    """Resize and crop pictures and frames to squares of this side; default: unchanged."""
    frames: int | None = None
    """Judge this many frames of each clip; the default is all."""
    rate: int | None = None
    """Sample rate of sounds; the default is that of the judge."""
    json_line: bool = False
    """Print only the line of JSON."""


def pair(asked: Pair) -> None:
    from quintet.files import reading_once
    from quintet.judges import choosing
    from quintet.judges.base import Options
    from quintet.judges.folders import files_in, judged
    from quintet.shared.sampling import with_progress

    for flag in ("size", "frames", "rate"):
        check_positive(f"--{flag}", getattr(asked, flag))
    medium = asked.medium or choosing.medium_of(asked.pair[0], asked.judges)
    module = choosing.module_of(medium)
    chosen, silent = choosing.chosen(medium, asked.judges)
    read, preparation = module.reader(Options(asked.size, asked.frames, asked.rate))
    originals, others = (files_in(folder, module.SUFFIXES) for folder in asked.pair)
    with reading_once():  # transcripts of a folder
        track = partial(with_progress, what="judging")
        scores = judged(chosen, originals, others, read, preparation, track)
    if not asked.json_line:
        show(scores)
    say_silent(silent)
    print(json.dumps({name: score.as_json() for name, score in scores.items()}, allow_nan=False))


@dataclasses.dataclass(frozen=True)
class Bench:
    """The judges of a run, chosen before evaluation so that missing requirements show early."""

    judges: list[Any]
    silent: list[str]
    maker: Any
    module: Any

    @classmethod
    def of(
        cls, family: rooms.Family, task: Any, names: Sequence[str], save: Path | None = None
    ) -> "Bench":
        from quintet.judges import choosing

        module, maker = choosing.module_of(family.room), family.outputs.outputs(task)
        if save and maker.compares == "embeddings":
            raise RunError(f"a run of {family} outputs embeddings, not files; drop --save")
        judges, silent = choosing.chosen(family.room, names, maker.compares)
        return cls(judges, silent, maker, module)

    def judge(self, opened: Any, world: Any, asked: Any) -> dict[str, Any]:
        """Print the scores and return the fields of the JSON line."""
        from quintet.judges.runs import judge_run
        from quintet.judges.weights import digest_of_tensors
        from quintet.shared.sampling import with_progress

        judgement = judge_run(
            self.judges,
            self.maker,
            opened,
            world,
            self.module,
            count=asked.count,
            save=asked.save,
            track=partial(with_progress, what="judging"),
        )
        for problem in judgement.skipped:
            say(f"skipped: {problem}")
        say_silent(self.silent)
        if not asked.json_line:
            show(judgement.judges, judgement.baselines)
        network = opened.nets[self.maker.task.main]
        as_json = lambda scores: {name: score.as_json() for name, score in scores.items()}
        return {
            "weights": digest_of_tensors(network.state_dict()),
            "judges": as_json(judgement.judges),
            "baselines": {name: as_json(scores) for name, scores in judgement.baselines.items()},
        }


def outside(task: Any, recipe: Recipe) -> Any:
    """The judges of a training run, called at its evaluations. `all` means those that work here;
    built-in data, which has its own metrics, gets none."""
    by_name = recipe.judges != ("all",)
    if not by_name and recipe.data is None:
        return None
    try:
        bench = Bench.of(rooms.family_of(recipe), task, recipe.judges)
    except RunError as error:
        if by_name:
            raise
        say(f"not judged: {error}")
        return None
    say_silent(bench.silent)

    def judge(nets: Any, source: Any, world: Any) -> Any:
        from quintet.engine.evaluate import Judged, Opened
        from quintet.judges.runs import judge_run

        opened, count = Opened(0, dict(nets), source), recipe.judge_count
        judgement = judge_run(bench.judges, bench.maker, opened, world, bench.module, count=count)
        values = {name: score.value for name, score in judgement.judges.items()}
        for baseline, scores in judgement.baselines.items():
            values |= {f"{name}/{baseline}": score.value for name, score in scores.items()}
        metrics = {f"judge/{name}": value for name, value in values.items()}
        return Judged(metrics, {name: s.receipt.as_json() for name, s in judgement.judges.items()})

    return judge


def say_silent(names: list[str]) -> None:
    if names:
        say(f"not judged: {', '.join(names)}; {command('judges')} lists what they need")


def show(scores: dict[str, Any], baselines: dict[str, dict[str, Any]] | None = None) -> None:
    """Print a row per judge and, below it, its baselines, which must have the same receipt."""
    from rich.console import Console
    from rich.table import Table

    from quintet.judges.receipt import check_comparable

    table = Table("judge", "value", "95 % interval", "count", "receipt")

    def row(name: str, score: Any) -> None:
        bounds = "" if score.low is None else f"{score.low:.5g} – {score.high:.5g}"
        receipt = score.receipt
        table.add_row(name, f"{score.value:.5g}", bounds, str(receipt.count), receipt.digest)

    for name, score in scores.items():
        sets = (baselines or {}).items()
        others = {other: by_judge[name] for other, by_judge in sets if name in by_judge}
        check_comparable({"the run": score, **others})
        row(name, score)
        for other, baseline in others.items():
            row(f"  {other}", baseline)
    Console().print(table)
    for name, score in scores.items():
        if "jackknife" in score.interval:
            print(f"interval of {name}: {score.interval}, from these references")


# -- numbers of earlier calls ---------------------------------------------------------------


def side_by_side(paths: Sequence[Path]) -> None:
    """Print the output files of `quintet evaluate` as one table; receipts must not differ."""
    from rich.console import Console
    from rich.table import Table

    from quintet.judges.receipt import check_comparable

    by_file = {str(path): read_scores(path) for path in dict.fromkeys(paths)}
    shown = Table("judge", *by_file, "receipt")
    for judge in {name: None for scores in by_file.values() for name in scores}:
        scores = {path: scores[judge] for path, scores in by_file.items() if judge in scores}
        check_comparable(scores)
        cells = [_cell(scores.get(path)) for path in by_file]
        shown.add_row(judge, *cells, next(iter(scores.values())).receipt.digest)
    trained = [line_of(Path(path)).get("trained_on", 0) for path in by_file]
    if any(trained):
        shown.add_row("samples trained on", *map(str, trained), "")
    Console().print(shown)


def _cell(score: "Score | None") -> str:
    if score is None:
        return "–"
    # A bare "[" would open a tag of rich.
    bounds = "" if score.low is None else rf" \[{score.low:.4g}, {score.high:.4g}]"
    return f"{score.value:.5g}{bounds}"


def line_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])


def read_scores(path: Path) -> "dict[str, Score]":
    """Scores by judge, from the last line of a file; a printed table may precede it."""
    from quintet.judges.receipt import Score

    try:
        line = line_of(path)
        scores = line.get("judges", line)
        return {name: Score.from_json(score) for name, score in scores.items()}
    except (KeyError, TypeError, AttributeError, IndexError, json.JSONDecodeError):
        remedy = f"{command('evaluate', 'RUN', '--judges', 'all', '--json-line')} > {path}"
        raise RunError(
            f"{path} does not end with a line of scores; write it with {remedy}"
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}") from error
