"""A model as a folder: config.json and model.safetensors; `from_pretrained` and the Hub read it.

Loading runs no code: the class is looked up by name, never imported as given; the configuration has
plain values only; weights are safetensors.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, Unpack

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from quintet.engine.config import ConfigError, from_json, to_json
from quintet.engine.errors import RunError
from quintet.engine.models import hub, ready
from quintet.engine.models.hub import CONFIG, WEIGHTS, Fetching, download
from quintet.engine.part import compare_names, load_strictly
from quintet.engine.runs import checkpoint
from quintet.engine.runs.checkpoint import write_safetensors
from quintet.engine.runs.folder import RunFolder, at_step, read_json, split_step
from quintet.engine.task import Task
from quintet.files import write_json
from quintet.suggest import command
from quintet.version import __version__

__all__ = ["WEIGHTS", "Pretrained", "download", "initial_weights", "read_weights", "weights_of"]
CARD = "README.md"
MAX_CONFIG_BYTES = 1_000_000
"""Maximum bytes of a config.json; a few thousand are usual."""
MAX_NUMBER = 2**20
"""Maximum number in the configuration of a model."""


class Pretrained:
    """Models built from one configuration: saving to a folder, loading without running code."""

    Config: ClassVar[type]
    config: Any

    @classmethod
    def label(cls) -> str:
        """room/family, as config.json names it."""
        return "/".join(cls.__module__.split(".")[1:3])

    def save(self, *_: Any, **__: Any) -> NoReturn:
        """What older packages call; theirs writes a pickle."""
        raise TypeError(f"{type(self).__name__}.save does not exist: call save_pretrained(folder)")

    def load(self, *_: Any, **__: Any) -> NoReturn:
        """What older packages call; theirs reads a pickle."""
        name = type(self).__name__
        raise TypeError(
            f"{name}.load does not exist: call {name}.from_pretrained(folder), or "
            "quintet.load(run); weights of other packages do not fit"
        )

    init_and_load = init_and_load_from = load

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **keywords: Any,
    ) -> Path:
        """Write weights, configuration and, unless there is one, a short model card.

        With `push_to_hub` the folder is also uploaded, under its own name or `repo_id`; `keywords`
        are those of `push_to_hub`.
        """
        path = Path(folder)
        if keywords and not push_to_hub:
            raise TypeError(f"{', '.join(keywords)}: only valid with push_to_hub=True")
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

    def measured(self, metrics: Mapping[str, float]) -> None:
        """For a model whose exported configuration holds results of an evaluation."""

    def save_stage(self, path: Path) -> None:
        """Write what a run keeps of a model that it depends on."""
        self.save_pretrained(path)

    def exported(self) -> dict[str, Any]:
        """The weights as an export holds them."""
        return dict(self.state_dict())  # type: ignore[attr-defined]

    def loading(self, path: str) -> str:
        """The call that loads an export."""
        return f"quintet.{type(self).__name__}.from_pretrained({json.dumps(path)})"

    def write_stages(self, path: Path) -> None:
        """For a model that contains another: write it into a subfolder."""

    def read_stages(self, path: Path) -> None:
        """For a model that contains another: read what `write_stages` wrote, if present."""

    @classmethod
    def from_pretrained(cls, source: str | Path, **how: Unpack[Fetching]) -> Self:
        """From an exported folder, a run, or a name on the Hugging Face Hub.

        `revision`, `cache_dir`, `token`, `local_files_only` and `force_download` are those of the
        Hub's client; a folder ignores them.
        """
        unknown = sorted(set(how) - set(Fetching.__annotations__))
        if unknown:
            known = ", ".join(sorted(Fetching.__annotations__))
            raise TypeError(f"from_pretrained has no argument {', '.join(unknown)}; known: {known}")
        path, step = split_step(source)
        if not path.is_dir():
            path = download(str(source), cls._about, **how)
        about = read_about(path)
        if "model" not in about:
            return cls._from_run(path, step, about)
        config = cls._about(path)
        if not (path / WEIGHTS).is_file():
            refuse_weights(path)
        # The check imports torch's compiler, which takes a second; models of the package need none.
        if not path.resolve().is_relative_to(ready.FOLDER.resolve()):
            check_sizes(cls, config, path)
        model = cls(config)  # type: ignore[call-arg]
        load_strictly(model, read_weights(path / WEIGHTS), str(path))  # type: ignore[arg-type]
        model.read_stages(path)
        return model.eval()  # type: ignore[attr-defined]

    @classmethod
    def _from_run(cls, path: Path, step: int | str | None, about: Mapping[str, Any]) -> Self:
        """The averaged weights of a checkpoint, and the model configuration of the run."""
        main = about.get("main") or {}
        if main.get("model") != cls.label():
            raise RunError(f"{path} is a run of {main.get('model')}, not of {cls.label()}")
        model = cls(from_json(cls.Config, main["config"]))  # type: ignore[call-arg]
        weights = weights_of(at_step(path, step), main["part"])
        load_strictly(model, weights, str(path))  # type: ignore[arg-type]
        model.read_stages(path / "frozen")
        return model.eval()  # type: ignore[attr-defined]

    @classmethod
    def _about(cls, path: Path) -> Any:
        """The configuration of an exported folder; RunError if it is of another class."""
        about = read_about(path)
        if about.get("model") != cls.label():
            raise RunError(f"{path} holds {about.get('model')}, not {cls.label()}")
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
        """Upload the model to the Hub as one commit; returns the URL of the commit.

        `card` is a folder written by `quintet export`, whose model card and samples are included.
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
    """For a model without a run; `quintet export RUN DIR` writes the complete card."""
    name = type(model).__name__
    return (
        f"---\nlibrary_name: quintet\ntags:\n- quintet\n- {model.label().split('/')[0]}\n---\n"
        f"# {name}\n\n```python\nimport quintet\n\n"
        f'model = quintet.{name}.from_pretrained("this-folder")\n```\n'
    )


def copy_card(source: Path, folder: Path) -> None:
    """The card and the samples of an export."""
    if not (source / CARD).is_file():
        wrote = command("export", "RUN", "FOLDER")
        raise RunError(f"{source} holds no {CARD}; name a folder written by {wrote}")
    folder.mkdir(parents=True)
    for file in (source / CARD, *sorted((source / "samples").glob("*"))):
        if file.is_file() and not file.is_symlink():
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


# -- checks of a folder ----------------------------------------------------------------------


def read_about(path: Path) -> dict[str, Any]:
    """config.json of a run or of an exported folder; one that names code is an error."""
    file = path / CONFIG
    if file.is_file() and file.stat().st_size > MAX_CONFIG_BYTES:
        raise RunError(f"{file} has {file.stat().st_size} bytes: it is not a model configuration")
    about = read_json(file)
    if "model" in about:
        for name in (CONFIG, WEIGHTS):
            refuse_outside_links(path, path / name)
    if "auto_map" in about:
        raise RunError(f"{file} names custom code (auto_map), which Quintet does not run")
    return about


def refuse_outside_links(folder: Path, file: Path) -> None:
    """Links may point inside the folder, or from a snapshot in the Hub's cache to its blobs."""
    root = folder.resolve()
    for level in (root, root.parent):  # a model inside another is one level deeper
        if level.parent.name == "snapshots":
            root = level.parent.parent
    if file.exists() and not file.resolve().is_relative_to(root):
        raise RunError(f"{file} is a link that leads out of {folder}; put the file itself there")


def refuse_weights(path: Path) -> NoReturn:
    pickles = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    others = f", only {', '.join(pickles)}" if pickles else ""
    raise RunError(
        f"{path} holds no {WEIGHTS}{others}; other formats are not read, because a pickle can run "
        "code"
    )


class _TooMany(Exception):
    """The configuration has far more parameters than the file has tensors."""


def check_sizes(kind: type[Any], config: Any, path: Path) -> None:
    """Compare a configuration with its weights before memory is allocated.

    The model is built on the meta device, and not far beyond the number of tensors in the file: a
    configuration next to a small file cannot allocate a large model.
    """
    for name, value in numbers(to_json(config)):
        if abs(value) > MAX_NUMBER:
            raise RunError(f"{path / CONFIG}: {name} is {value:g}; the maximum is {MAX_NUMBER}")
    shapes = shapes_of(path / WEIGHTS)
    seen = 0

    def count(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > 4 * len(shapes) + 64:  # some modules are built and then replaced
            raise _TooMany

    hook = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            model = kind(config)
    except _TooMany:
        raise RunError(
            f"{path / CONFIG} describes a larger model than {WEIGHTS}, which has"
            f" {len(shapes)} tensors"
        ) from None
    except (RuntimeError, ValueError, MemoryError, OverflowError) as error:
        raise RunError(f"{path / CONFIG} does not describe a valid model: {error}") from None
    finally:
        hook.remove()
    state = model.state_dict()
    compare_names(shapes, list(state), str(path))
    for name, value in state.items():
        if tuple(value.shape) != shapes[name]:
            raise RunError(
                f"{path}: {name} has shape {shapes[name]}, but this model expects"
                f" {tuple(value.shape)}"
            )


def numbers(value: Any, at: str = "config") -> list[tuple[str, float]]:
    """All numbers in a JSON value, with their dotted names."""
    if isinstance(value, Mapping):
        return [pair for n, item in value.items() for pair in numbers(item, f"{at}.{n}")]
    if isinstance(value, (list, tuple)):
        return [pair for i, item in enumerate(value) for pair in numbers(item, f"{at}[{i}]")]
    return [(at, value)] if isinstance(value, (int, float)) else []


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a safetensors file, from its header."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


# -- weights ----------------------------------------------------------------------------------


def initial_weights(source: str, task: Task) -> dict[str, dict[str, Any]]:
    """Initial weights of the main part, from a run or an exported folder."""
    folder = RunFolder.open(Path(source))
    if "model" in folder.about:
        return {task.main: read_weights(folder.path / WEIGHTS)}
    return {task.main: weights_of(Path(source), task.main)}


def weights_of(path: Path, part: str) -> dict[str, Any]:
    """EMA weights of a part in a checkpoint of a run."""
    folder, say = RunFolder.open(path), partial(print, file=sys.stderr)
    chosen = checkpoint.path_of(folder.checkpoints, folder.chosen_step(say))
    files = checkpoint.read(chosen, part)
    if part not in files:
        held = ", ".join(sorted(checkpoint.read(chosen)))
        raise RunError(f"{path} has no part '{part}'; it holds {held}")
    return checkpoint.averaged(files, part)


def read_weights(path: Path) -> dict[str, Any]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def halved(value: torch.Tensor) -> torch.Tensor:
    """As an export in half precision holds it; single numbers, such as counts, stay exact."""
    return value.half() if value.dtype == torch.float32 and value.ndim else value


def halve(folder: Path) -> None:
    """Rewrite the weights of an export, and of the models in it, in half precision."""
    for file in sorted(folder.rglob(WEIGHTS)):
        # Copies: `read_weights` maps the file that is about to be replaced.
        weights = {name: halved(value.clone()) for name, value in read_weights(file).items()}
        for name, value in weights.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise RunError(f"{name} is out of range of fp16; export with --dtype fp32")
        write_safetensors(file, weights)
