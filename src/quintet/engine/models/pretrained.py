"""A model as a folder: config.json and model.safetensors; `from_pretrained` and the Hub read it.

Loading runs no code: the class is looked up, never imported as given; the configuration is plain
values; weights are safetensors and nothing else.
"""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, Unpack

import torch
from torch import nn

from quintet.engine.config import ConfigError, from_json, to_json
from quintet.engine.errors import RunError
from quintet.engine.models import hub
from quintet.engine.models.hub import CONFIG, WEIGHTS, Fetching, download
from quintet.engine.part import compare_names, load_strictly
from quintet.engine.runs import checkpoint
from quintet.engine.runs.checkpoint import write_safetensors
from quintet.engine.runs.folder import RunFolder, read_json
from quintet.engine.task import Task
from quintet.files import write_json
from quintet.version import __version__

__all__ = ["WEIGHTS", "Pretrained", "download", "initial_weights", "read_weights", "weights_of"]
CARD = "README.md"
LARGEST_CONFIG = 1_000_000
"""Bytes of a config.json; ours have a few thousand."""
LARGEST_NUMBER = 2**20
"""The largest number in a model's configuration."""


class Pretrained:
    """For models built from one configuration: saving to a folder, and loading without code."""

    Config: ClassVar[type]
    config: Any

    @classmethod
    def label(cls) -> str:
        """room/Class, as config.json names it."""
        return f"{cls.__module__.split('.')[1]}/{cls.__name__}"

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **keywords: Any,
    ) -> Path:
        """Write weights, configuration and, where there is none, a short model card.

        With `push_to_hub` the folder goes to the Hub as well, under its own name unless `repo_id`
        gives another; `keywords` are those of `push_to_hub`.
        """
        path = Path(folder)
        if keywords and not push_to_hub:
            raise TypeError(f"{', '.join(keywords)}: known only together with push_to_hub=True")
        path.mkdir(parents=True, exist_ok=True)
        self._write(path)
        if not (path / CARD).exists():
            (path / CARD).write_text(short_card(self), encoding="utf-8")
        if push_to_hub:
            self.push_to_hub(repo_id or path.name, **keywords)
        return path

    def _write(self, path: Path) -> None:
        state = self.state_dict()  # type: ignore[attr-defined]
        write_safetensors(path / WEIGHTS, {name: t.detach().cpu() for name, t in state.items()})
        about = {"quintet": __version__, "model": self.label()}
        write_json(path / CONFIG, {**about, "config": to_json(self.config)})
        self.write_stages(path)

    def write_stages(self, path: Path) -> None:
        """For a model that holds another: write that one into a folder of its own inside."""

    def read_stages(self, path: Path) -> None:
        """For a model that holds another: read what `write_stages` wrote, where it is there."""

    @classmethod
    def from_pretrained(cls, source: str | Path, **how: Unpack[Fetching]) -> Self:
        """From an exported folder, a run, or a name on the Hugging Face Hub.

        `revision`, `cache_dir`, `token`, `local_files_only` and `force_download` mean what they
        mean to the Hub, and nothing for a folder.
        """
        unknown = sorted(set(how) - set(Fetching.__annotations__))
        if unknown:
            known = ", ".join(sorted(Fetching.__annotations__))
            raise TypeError(f"from_pretrained does not know {', '.join(unknown)}; it knows {known}")
        path = Path(source)
        if not path.is_dir():
            path = download(str(source), cls._about, **how)
        about = read_about(path)
        if "model" not in about:
            return cls._from_run(path, about)
        config = cls._about(path)
        if not (path / WEIGHTS).is_file():
            refuse_weights(path)
        check_sizes(cls, config, path)
        model = cls(config)  # type: ignore[call-arg]
        load_strictly(model, read_weights(path / WEIGHTS), str(path))  # type: ignore[arg-type]
        model.read_stages(path)
        return model.eval()  # type: ignore[attr-defined]

    @classmethod
    def _from_run(cls, path: Path, about: Mapping[str, Any]) -> Self:
        """The EMA weights of the newest checkpoint, and the model configuration of the run."""
        main = about.get("main") or {}
        if main.get("model") != cls.label():
            raise RunError(f"{path} is a run of a {main.get('model')}, not a {cls.label()}")
        model = cls(from_json(cls.Config, main["config"]))  # type: ignore[call-arg]
        load_strictly(model, weights_of(path, main["part"]), str(path))  # type: ignore[arg-type]
        model.read_stages(path / "frozen")
        return model.eval()  # type: ignore[attr-defined]

    @classmethod
    def _about(cls, path: Path) -> Any:
        """The configuration of an exported folder, if it is one of this class."""
        about = read_about(path)
        if about.get("model") != cls.label():
            raise RunError(f"{path} holds a {about.get('model')}, not a {cls.label()}")
        try:
            return from_json(cls.Config, about.get("config"))
        except ConfigError as error:
            raise RunError(f"{path / CONFIG}: {error}") from None

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: str | Path | None = None,
        commit_message: str = "Push model using Quintet",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        allow_patterns: list[str] | str | None = None,
        ignore_patterns: list[str] | str | None = None,
        delete_patterns: list[str] | str | None = None,
    ) -> str:
        """Send the model to the Hub as one commit, and return the commit's address.

        `card` names a folder that `quintet export` made: its model card and samples go along.
        """
        with tempfile.TemporaryDirectory() as partial:
            folder = Path(partial) / "model"
            if card is not None:
                copy_card(Path(card), folder)
            self.save_pretrained(folder)
            return hub.upload(
                folder,
                repo_id,
                private,
                token,
                commit_message=commit_message,
                revision=branch,
                create_pr=create_pr,
                allow_patterns=allow_patterns,
                ignore_patterns=ignore_patterns,
                delete_patterns=delete_patterns,
            )


def short_card(model: Pretrained) -> str:
    """For a model that comes from no run; 'quintet export RUN DIR' writes the long one."""
    name = type(model).__name__
    return (
        f"---\nlibrary_name: quintet\ntags:\n- quintet\n- {model.label().split('/')[0]}\n---\n"
        f"# {name}\n\n```python\nimport quintet\n\n"
        f'model = quintet.{name}.from_pretrained("this-folder")\n```\n'
    )


def copy_card(source: Path, folder: Path) -> None:
    """The card and the samples of an export."""
    if not (source / CARD).is_file():
        raise RunError(f"{source} holds no {CARD}; name a folder that 'quintet export' made")
    folder.mkdir(parents=True)
    for found in (source / CARD, *sorted((source / "samples").glob("*"))):
        if found.is_file() and not found.is_symlink():
            place = folder / found.relative_to(source)
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(found, place)


# -- what may be in a folder ------------------------------------------------------------------


def read_about(path: Path) -> dict[str, Any]:
    """config.json of a run or of an exported folder, which may name no code."""
    file = path / CONFIG
    if file.is_file() and file.stat().st_size > LARGEST_CONFIG:
        raise RunError(f"{file} has {file.stat().st_size} bytes: it is no configuration of a model")
    about = read_json(file)
    if "model" in about:
        for name in (CONFIG, WEIGHTS):
            refuse_ways_out(path, path / name)
    if "auto_map" in about:
        raise RunError(f"{file} names code of its own (auto_map), and Quintet runs none")
    return about


def refuse_ways_out(folder: Path, file: Path) -> None:
    """Links may lead inside the folder, or in the Hub's cache from a snapshot to its files."""
    home = folder.resolve()
    for level in (home, home.parent):  # a model that another one holds lies a level deeper
        if level.parent.name == "snapshots":
            home = level.parent.parent
    if file.exists() and not file.resolve().is_relative_to(home):
        raise RunError(f"{file} is a link that leads out of {folder}; put the file itself there")


def refuse_weights(path: Path) -> NoReturn:
    pickles = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    beside = f", only {', '.join(pickles)}" if pickles else ""
    raise RunError(
        f"{path} holds no {WEIGHTS}{beside}; other weights are not read, for a pickle can run code"
    )


class _TooMany(Exception):
    """Far more parameters than the file has tensors."""


def check_sizes(kind: type[Any], config: Any, path: Path) -> None:
    """Hold a configuration against the weights beside it before memory is asked for.

    The model is laid out without memory, and not far beyond the tensors of the file: a
    configuration that came with a small file cannot ask for a large model.
    """
    for name, value in numbers(to_json(config)):
        if abs(value) > LARGEST_NUMBER:
            raise RunError(
                f"{path / CONFIG}: {name} is {value:g}; at most {LARGEST_NUMBER} is read"
            )
    shapes = shapes_of(path / WEIGHTS)
    seen = 0

    def count(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > 4 * len(shapes) + 64:  # some modules are laid out and then replaced
            raise _TooMany

    hook = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            model = kind(config)
    except _TooMany:
        raise RunError(
            f"{path / CONFIG} asks for a larger model than {WEIGHTS} holds, which has"
            f" {len(shapes)} tensors"
        ) from None
    except (RuntimeError, ValueError, MemoryError, OverflowError) as error:
        raise RunError(f"{path / CONFIG} describes no model that can be: {error}") from None
    finally:
        hook.remove()
    state = model.state_dict()
    compare_names(shapes, list(state), str(path))
    for name, value in state.items():
        if tuple(value.shape) != shapes[name]:
            raise RunError(
                f"{path}: {name} has shape {shapes[name]}, but this model wants"
                f" {tuple(value.shape)}"
            )


def numbers(value: Any, at: str = "config") -> list[tuple[str, float]]:
    """Every number in a JSON value, with its dotted name."""
    if isinstance(value, Mapping):
        return [found for n, item in value.items() for found in numbers(item, f"{at}.{n}")]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in numbers(item, f"{at}[{i}]")]
    return [(at, value)] if isinstance(value, (int, float)) else []


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of a safetensors file, from its header alone."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


# -- weights ----------------------------------------------------------------------------------


def initial_weights(source: str, task: Task) -> dict[str, dict[str, Any]]:
    """Weights of the main part to start from: of a run, or of an exported folder."""
    path = Path(source)
    if "model" in RunFolder.open(path).about:
        return {task.main: read_weights(path / WEIGHTS)}
    return {task.main: weights_of(path, task.main)}


def _warn(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def weights_of(path: Path, part: str) -> dict[str, Any]:
    """Averaged weights of a run's newest intact checkpoint, by the part's name."""
    folder = RunFolder.open(path)
    step = checkpoint.newest_intact(folder.checkpoints, _warn)
    if step is None:
        raise RunError(f"{path} has no checkpoint yet")
    files = checkpoint.read(checkpoint.path_of(folder.checkpoints, step))
    if part not in files:
        raise RunError(f"{path} has no part '{part}'; it holds {', '.join(sorted(files))}")
    averaged = files.get(f"{part}.ema", {})
    # The averaged ones last: of two names for one tensor only one is averaged, and it must win.
    return {**{n: t for n, t in files[part].items() if n not in averaged}, **averaged}


def read_weights(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
