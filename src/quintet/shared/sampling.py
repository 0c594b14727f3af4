"""Helpers of `quintet sample` for all rooms: input checks, model loading, validation data."""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, TypeVar

from quintet.engine.config import is_gone
from quintet.engine.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

Device = Literal["auto", "cpu", "cuda"]
IDS = (".safetensors",)
"""Suffix of files of ids or latents."""
LINE_EVERY = 10.0
"""Seconds between lines of progress that is not shown on a terminal."""
T = TypeVar("T")


@dataclass(frozen=True)
class Caller:
    """Who waits for samples; by default a terminal."""

    say: Callable[[str], object]
    """Takes a remark on what is made."""
    go_on: Callable[[], object]
    """Called between parts of the work; raises if nobody waits any more."""


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


class Input(NamedTuple):
    """A file to work on."""

    path: Path
    stem: str
    """Path of its outputs below --out, without a suffix."""
    named: bool
    """Named on the command line, not found in a folder."""

    def target(self, out: Path, ending: str) -> Path:
        """Path of an output; its folder is created."""
        path = out / f"{self.stem}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def targets(self, out: Path, ending: str, suffix: str, count: int) -> list[Path]:
        """Paths of several outputs, numbered if there is more than one."""
        numbers = [""] if count == 1 else [f"-{index:03d}" for index in range(count)]
        return [self.target(out, f"{ending}{number}{suffix}") for number in numbers]


def find_inputs(inputs: Sequence[Path], kinds: Sequence[Sequence[str]], what: str) -> list[Input]:
    """The given files, and those of the given folders: with suffixes of the first of the `kinds`
    that a folder has. Outputs of an earlier call are taken only where there is nothing else.
    Outputs of a folder keep its structure; names must be distinct."""
    files: list[Input] = []
    for path in inputs:
        if path.is_dir():
            files += _in_folder(path, kinds, what)
        elif path.is_file():
            files.append(Input(path, _stem(path.name), named=True))
        else:
            raise RunError(f"{path} is not a file or a folder; give {what}, or a folder of them")
    counts = Counter(file.stem for file in files)
    twice = next((stem for stem, count in counts.items() if count > 1), None)
    if twice is not None:
        raise RunError(f"two inputs are named {twice}; rename one, or sample them separately")
    return files


def _in_folder(folder: Path, kinds: Sequence[Sequence[str]], what: str) -> Iterator[Input]:
    from quintet.media.folder import listing

    for outputs, suffixes in itertools.product((False, True), kinds):
        names = listing(folder, suffixes, outputs=outputs).names
        counts = Counter(map(_stem, names))
        for name in names:  # a.jpg and a.png both keep their suffix
            stem = _stem(name) if counts[_stem(name)] == 1 else name
            yield Input(folder / name, stem, named=False)
        if names:
            return
    suffixes = ", ".join(suffix for kind in kinds for suffix in kind)
    raise RunError(f"{folder} holds no {what} ({suffixes})")


def _stem(name: str) -> str:
    return name.rpartition(".")[0].removesuffix(".ids").removesuffix(".latents")


def own_text(recipe: Any, run: Path, builtin: str) -> str:
    """A text for a suggestion: one of the run's data, or this one where the data is built in."""
    from quintet.engine.runs.folder import RunFolder

    if recipe.data is None:
        return builtin
    return str(RunFolder.open(run).about.get("data", {}).get("text") or builtin)


def each_input(inputs: Sequence[Input], work: Callable[[Input], Iterable[T]]) -> list[T]:
    """Results of all inputs. Unusable files of a folder are skipped; an error if all are."""
    from quintet.media.errors import BadFile

    results: list[T] = []
    problems: list[str] = []
    for item in with_progress(inputs):
        try:
            results += work(item)
        except (BadFile, RunError) as error:
            if item.named:
                raise
            problems.append(str(error))
            say(f"skipped: {error}")
    if problems and not results:
        raise RunError(f"none of {len(inputs)} files can be used; the first: {problems[0]}")
    if problems:
        say(f"{len(problems)} of {len(inputs)} files were skipped")
    return results


def with_progress(
    items: Sequence[T], stream: TextIO | None = None, what: str = "sampling"
) -> Generator[T]:
    """Iterate; if there are several, with a bar and the time left where the stream (stderr) is a
    terminal, otherwise with a line now and then."""
    stream = sys.stderr if stream is None else stream
    caller = CALLER.get()
    if caller is not None or len(items) < 2 or stream is None:
        for item in items:
            go_on()
            yield item
        return
    if not stream.isatty():
        yield from _with_lines(items, stream, what)
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, what, console=Console(file=stream), transient=True)


def _with_lines(items: Sequence[T], stream: TextIO, what: str) -> Iterator[T]:
    begun = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= LINE_EVERY:
            left = (now - begun) / done * (len(items) - done)
            stream.write(f"quintet: {what}: {done} of {len(items)}, about {left:.0f} s left\n")
            stream.flush()
            last = now
        yield item


def read_recording(path: Path, rate: int) -> "Tensor":
    """A mono recording of at most ten minutes."""
    import torch

    from quintet.media.audio import AudioCaps, read_audio

    if not path.is_file():
        raise RunError(f"{path} is not a file; give a recording (wav, flac, ogg, mp3)")
    return torch.from_numpy(read_audio(path, rate=rate, caps=AudioCaps(max_seconds=600)))


def write_sound(path: Path, samples: Any, rate: int) -> None:
    """Write a WAV file, and say if samples were clipped."""
    from quintet.media.audio import write_wav

    say_clipping(path, write_wav(path, samples, rate))


def say_clipping(path: Path, clipping: object) -> None:
    """Say which samples of a file were clipped, if any."""
    if clipping is not None:
        say(f"{path}: {clipping}")


def go_on() -> None:
    """Between parts of long work: raises if nobody waits for it any more."""
    caller = CALLER.get()
    if caller is not None:
        caller.go_on()


def say(line: str) -> None:
    caller = CALLER.get()
    if caller is not None:
        caller.say(line)
        return
    sys.stderr.write(f"quintet: {line}\n")
    sys.stderr.flush()


def check_size(size: tuple[int, int] | None, factor: int) -> None:
    if size and any(side < 1 or side % factor for side in size):
        raise RunError(f"size is {size}; it must be divisible by the factor {factor}")


def check_positive(flags: Any, *names: str) -> None:
    for name in names:
        if not getattr(flags, name) > 0:
            raise RunError(
                f"--{name.replace('_', '-')} is {getattr(flags, name)}; it must be above 0"
            )


@dataclass(frozen=True)
class Trained:
    """A run, or an exported model, that samples are made of."""

    path: Path
    recipe: Any
    """The recipe of a run, or of an export that names it; otherwise None."""
    load: Callable[[Path], Any]
    """Loads a model of Quintet."""

    def model(self, device: Device) -> Any:
        """Its model, on the chosen device."""
        where = on_device(device)
        return self.load(self.path).to(where)

    def recipe_with_data(self, what: str) -> Any:
        """Recipe of a run whose data can be opened again; otherwise an error asks for `what`."""
        if self.recipe is None:
            raise RunError(f"{self.path} is an exported model without data; give {what}")
        data = self.recipe.data
        if data is not None and data.startswith("python:"):
            raise RunError(f"{self.path} was trained on a Python data set; give {what}")
        if is_gone(data):
            raise RunError(f"{data}, the data of {self.path}, is gone; give {what}")
        return self.recipe


def on_device(device: Device) -> str:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("--device cuda, but torch finds no GPU; use --device cpu or auto")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def has_validation(run: Path) -> bool:
    """Whether a run, or an export that names its recipe, has validation data that can be opened
    again."""
    from quintet.engine.runs.folder import RunFolder

    about = RunFolder.open(run).about
    valid = "model" in about or (about.get("data") or {}).get("valid")
    return bool(valid) and isinstance(about.get("recipe"), str)


def with_input(recipe: Any, run: Path, suffixes: Sequence[str], *words: str) -> list[str]:
    """These arguments for a run just trained, after a file to work on: an original among its
    exhibits, or a file of its data; empty if there is none."""
    from quintet.media.folder import files

    data = Path(recipe.data or "-")
    exhibits = [p for s in suffixes for p in sorted(run.glob(f"exhibits/*/*-original{s}"))]
    path = next(iter([*exhibits[-1:], *(files(data, suffixes) if data.is_dir() else ())]), None)
    return [str(path), *words] if path else []


def refuse_inputs(inputs: Sequence[Path], trained: Trained, flags: str) -> None:
    """An error of a generator, which takes no files."""
    if inputs:
        raise RunError(f"{trained.path} is a generator: give {flags}, and drop {inputs[0]}")


def readable(source: Any, count: int) -> Iterator[tuple[int, Any]]:
    """The first `count` readable samples; as in training, unreadable ones are skipped."""
    read = 0
    for index in range(len(source)):
        if read == count:
            return
        try:
            item = source.keyed(index, None)
        except (OSError, ValueError):
            continue
        read += 1
        yield index, item


def stem_of(text: str, number: int) -> str:
    """File name of a prompt: its number, and its letters and digits."""
    slug = "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
    return f"{number:02d}-{slug[:60]}" if slug else f"{number:02d}"
