"""A model as a folder: config.json and model.safetensors; `from_pretrained` and the Hub read it."""

import sys
from pathlib import Path
from typing import Any, ClassVar, Self

import quintet
from quintet.engine import checkpoint
from quintet.engine.checkpoint import write_json, write_safetensors
from quintet.engine.config import ConfigError, from_json, to_json
from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder, read_json
from quintet.engine.part import load_strictly
from quintet.engine.task import Task

WEIGHTS = "model.safetensors"


class Pretrained:
    """For models built from one configuration: saving to a folder, and loading without code."""

    Config: ClassVar[type]
    config: Any

    @classmethod
    def label(cls) -> str:
        """room/Class, as config.json names it."""
        return f"{cls.__module__.split('.')[1]}/{cls.__name__}"

    def save_pretrained(self, folder: str | Path) -> Path:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        state = self.state_dict()  # type: ignore[attr-defined]
        write_safetensors(path / WEIGHTS, {name: t.detach().cpu() for name, t in state.items()})
        about = {"quintet": quintet.__version__, "model": self.label()}
        write_json(path / "config.json", {**about, "config": to_json(self.config)})
        return path

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """From an exported folder, a run, or a name on the Hugging Face Hub."""
        path = Path(source)
        if not path.is_dir():
            path = download(str(source))
        about = read_json(path / "config.json")
        if "model" not in about:
            found = quintet.load(path)
            if not isinstance(found, cls):
                raise RunError(f"{path} is a run of a {type(found).__name__}, not a {cls.label()}")
            return found
        if about["model"] != cls.label():
            raise RunError(f"{path} holds a {about['model']}, not a {cls.label()}")
        try:
            config = from_json(cls.Config, about.get("config"))
        except ConfigError as error:
            raise RunError(f"{path / 'config.json'}: {error}") from None
        model = cls(config)  # type: ignore[call-arg]
        load_strictly(model, read_weights(path / WEIGHTS), str(path))  # type: ignore[arg-type]
        return model.eval()  # type: ignore[attr-defined]


def initial_weights(source: str, task: Task) -> dict[str, dict[str, Any]]:
    """Weights of the main part to start from: of a run, or of an exported folder."""
    path = Path(source)
    if "model" in RunFolder.open(path).about:
        return {task.main: read_weights(path / WEIGHTS)}
    return {task.main: weights_of(path, task.main)}


def _warn(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def weights_of(path: Path, part: str) -> dict[str, Any]:
    """Averaged weights of a run's newest sound checkpoint, by the part's name."""
    folder = RunFolder.open(path)
    step = checkpoint.newest_sound(folder.checkpoints, _warn)
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


def download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise RunError(
            f"{name} is no folder here; to look on the Hub: pip install 'quintet[hub]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:
        raise RunError(f"{name} is neither a folder nor a model on the Hub: {error}") from None
