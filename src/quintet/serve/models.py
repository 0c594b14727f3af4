"""Models in memory, and what clients ask of them: the flags and files of `quintet sample`.

A request runs the function `sample` of its family in a folder of its own, so its answer equals that
of the command there. Values are checked and bounded here; a path is never a client's.
"""

import base64
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from quintet import rooms
from quintet.engine.config import ConfigError, hints_of
from quintet.engine.errors import RunError
from quintet.engine.settings import descriptions
from quintet.serve.access import Refused
from quintet.shared.sampling import CALLER, Caller, Device, Trained, on_device

MOST_SAMPLES = 64
"""Texts times count; also the samples that are generated together."""
MOST_NOTES = 50
Check = Callable[[], object]
"""Raises if nobody waits for a request any more."""


@dataclass(frozen=True)
class Upload:
    """A file of a request."""

    name: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What `quintet sample` wrote and printed."""

    files: dict[str, bytes]
    lines: list[str]
    notes: list[str]
    """What it would have said beside."""

    def to_json(self) -> dict[str, Any]:
        files = [
            {"name": name, "type": media_type(name), "b64": base64.b64encode(content).decode()}
            for name, content in self.files.items()
        ]
        return {"files": files, "lines": self.lines, "notes": self.notes}


class Loaded(Trained):
    """A model that stays in memory. Data of the server's disk is not shown to clients."""

    def model(self, device: Device) -> Any:
        return self.load(self.path)

    def recipe_with_data(self, what: str) -> Any:
        if self.recipe is not None and self.recipe.data is not None:
            raise RunError(f"give {what}")
        return super().recipe_with_data(what)


@dataclass(frozen=True)
class Served:
    """One model, by the name that clients use."""

    name: str
    family: rooms.Family
    trained: Trained
    network: Any
    files: Mapping[str, Path]
    """Files and folders that were named at the start, such as voices."""

    @classmethod
    def open(cls, name: str, source: Path, device: Device, files: Mapping[str, Path]) -> "Served":
        family, trained = rooms.trained(source)
        network = trained.load(trained.path).to(on_device(device))
        loaded = Loaded(trained.path, trained.recipe, lambda _: network)
        return cls(name, family, loaded, network, files)

    @property
    def module(self) -> Any:
        return self.family.sample

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """The types of the flags of clients, by name."""
        hints = hints_of(self.module.Flags)
        names = [each.name for each in fields(self.module.Flags) if each.name != "device"]
        return {name: hints[name] for name in names}

    @cached_property
    def sentences(self) -> Mapping[str, str]:
        return descriptions(self.module.Flags)

    @property
    def defaults(self) -> Any:
        return self.module.Flags()

    @property
    def example(self) -> str:
        """A text that suits the model; none of data of the server's disk."""
        recipe = self.trained.recipe
        own = recipe is None or recipe.data is not None
        words = [] if own else self.module.example(recipe, self.trained.path)
        return next((text for flag, text in pairwise(words) if flag == "--text"), "")

    @property
    def hidden(self) -> dict[str, str]:
        """Paths of this machine with what clients call them."""
        files = {str(path): name for name, path in self.files.items()}
        return {str(self.trained.path): self.name, **files}

    @cached_property
    def on_cpu(self) -> bool:
        return next(self.network.parameters()).device.type == "cpu"

    @property
    def takes_files(self) -> bool:
        """Whether its first arguments are files."""
        return not self.module.EXAMPLE.startswith("-")

    def has(self, *names: str) -> bool:
        return all(name in self.kinds for name in names)

    def check(self, condition: object, sentence: str) -> None:
        if not condition:
            raise Refused(400, f"{self.name}: {sentence}")


@dataclass
class Sampling:
    """One request: the flags, and its files."""

    model: Served
    flags: Any
    inputs: Sequence[Upload] = ()
    uploads: Mapping[str, Upload] = field(default_factory=dict[str, Upload])
    """Files of flags, by the name of the flag."""
    network: Any = None
    """Instead of the model's own."""
    started: Callable[[Path], object] = lambda folder: None
    """Called with the folder that files will be in."""
    folder: Path | None = None
    """For its files, instead of one of its own."""

    @property
    def key(self) -> str | None:
        """Requests of the same one can run together."""
        if not hasattr(self.model.module, "together") or self.inputs or self.uploads:
            return None
        if self.is_quick and self.model.on_cpu:
            return None
        own = {"text": (), "count": 1, "seed": 0}
        same = replace(self.flags, **{n: value for n, value in own.items() if self.model.has(n)})
        return f"{self.model.name} {same!r}"

    @property
    def is_quick(self) -> bool:
        return getattr(self.model.module, "QUICK", False)

    @property
    def samples(self) -> int:
        if not self.model.has("count", "seed"):
            return 1
        texts = self.flags.text if self.model.has("text") else ()
        return max(1, len(texts)) * self.flags.count

    def run(self) -> Answer:
        with scratch(self.model.hidden, self.folder) as folder:
            return self._run(folder)

    def run_all(
        self, requests: Sequence["Sampling"], checks: Sequence[Check]
    ) -> Iterator[tuple[int, Any]]:
        return run_all(requests, checks)

    def _run(self, folder: Path) -> Answer:
        flags, trained = self.flags, self.model.trained
        if self.network is not None:
            trained = replace(trained, load=lambda _: self.network)
        paths = stored(folder, self.inputs)
        for flag, upload in self.uploads.items():
            (folder / f"--{flag}").mkdir()
            flags = replace(flags, **{flag: stored(folder / f"--{flag}", [upload])[0]})
        out = folder / "out"
        self.started(out)
        waiting, notes = CALLER.get(), list[str]()
        go_on = waiting.go_on if waiting else lambda: None
        token = CALLER.set(Caller(notes.append, go_on))
        try:
            written = self.model.module.sample(trained, paths, out, flags)
        finally:
            CALLER.reset(token)
        files = [path for path in written if isinstance(path, Path)]
        hidden = {f"{folder}/": "", **self.model.hidden}
        lines = [plain(line, hidden) for line in written if isinstance(line, str)]
        found = {path.relative_to(out).as_posix(): content(folder, path) for path in files}
        return Answer(found, lines, [plain(note, hidden) for note in notes[:MOST_NOTES]])


def run_all(
    requests: Sequence[Sampling], checks: Sequence[Check]
) -> Iterator[tuple[int, Answer | Exception]]:
    """Numbers and answers of requests of one key, as they come. Each runs up to its call of the
    network, which is done for all at once, and again with the result, into the same files; one that
    fails, or that nobody waits for, leaves the others alone."""
    model = requests[0].model
    with ExitStack() as stack:
        own = [replace(each, folder=stack.enter_context(temporary())) for each in requests]
        results: dict[int, list[Any]] = {index: [] for index in range(len(requests))}
        while results:
            calls: dict[int, Any] = {}
            for index, earlier in [*results.items()]:
                work = replace(own[index], network=Recorded(model.network, earlier))
                try:
                    answer = asked_by(checks[index], work.run)
                except Parked as parked:
                    calls[index] = parked.call
                else:
                    del results[index]
                    yield index, answer
            try:
                joint = model.module.together(model.network, [*calls.values()]) if calls else []
            except Exception:  # whose fault it is shows when each runs by itself
                yield from ((index, asked_by(checks[index], own[index].run)) for index in calls)
                return
            for index, result in zip(calls, joint):
                results[index].append(result)


def asked_by(check: Check, work: Callable[[], Any]) -> Any:
    """The outcome of work that somebody waits for."""
    token = CALLER.set(Caller(lambda line: None, check))
    try:
        return outcome(work)
    finally:
        CALLER.reset(token)


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


class Parked(BaseException):
    """A request waits for a call of `generate`."""

    def __init__(self, call: Mapping[str, Any]):
        super().__init__()
        self.call = call


class Recorded:
    """A model whose `generate`, for speech `sample`, returns what was made already, in the order of
    the calls."""

    def __init__(self, network: Any, results: Sequence[Any]):
        self._network, self._results = network, iter(results)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def generate(self, texts: Any = None, **keywords: Any) -> Any:
        for result in self._results:
            return result
        raise Parked({"texts": texts, **keywords})

    sample = generate


@contextmanager
def temporary() -> Generator[Path]:
    """A folder for the files of a request, in memory where there is some: writers wait for a
    disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="quintet-serve-", dir=memory) as name:
        yield Path(name)


@contextmanager
def scratch(hidden: Mapping[str, str], folder: Path | None = None) -> Generator[Path]:
    """This folder, or a temporary one. Refusals become those of a client, without the paths of this
    machine."""
    from quintet.media.errors import BadFile, Incompatible

    with nullcontext(folder) if folder else temporary() as name:
        try:
            yield name
        except (RunError, ConfigError, BadFile, Incompatible, ImportError) as error:
            if isinstance(error, ImportError) and "quintet[" not in str(error):
                raise
            raise Refused(400, plain(str(error), {f"{name}/": "", **hidden})) from None


def plain(line: str, hidden: Mapping[str, str]) -> str:
    for path, name in hidden.items():
        line = line.replace(path, name)
    return line[:2000]


def content(folder: Path, path: Path) -> bytes:
    """A file as the command writes it in the folder of its inputs."""
    found = path.read_bytes()
    return found.replace(f"{folder}/".encode(), b"") if path.suffix == ".json" else found


def stored(folder: Path, uploads: Sequence[Upload]) -> list[Path]:
    """The files under their own names, as far as these are harmless."""
    paths: list[Path] = []
    for number, upload in enumerate(uploads):
        stem, _, suffix = upload.name.replace("\\", "/").rpartition("/")[2].rpartition(".")
        stem = re.sub(r"[^\w. -]+", "_", stem)[:80].strip(" .") or f"input-{number}"
        path = folder / f"{stem}.{re.sub(r'[^A-Za-z0-9]+', '', suffix)[:12]}"
        if path.name == "out" or path in paths:
            raise Refused(400, f"two files are named {path.name}; rename one")
        path.write_bytes(upload.content)
        paths.append(path)
    return paths


def media_type(name: str) -> str:
    import mimetypes

    own = {"glb": "model/gltf-binary", "obj": "model/obj", "stl": "model/stl", "wav": "audio/wav"}
    suffix = name.rpartition(".")[2]
    return own.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
