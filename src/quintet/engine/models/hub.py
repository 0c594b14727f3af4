"""Download of models from the Hugging Face Hub, and upload.

Names and keywords are those of huggingface_hub's ModelHubMixin. Models do not inherit it: it would
import the Hub's client with every model, and it passes config.json to the constructor, while ours
is read by a strict codec.
"""

import importlib
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from quintet.engine.errors import RunError
from quintet.engine.models import ready
from quintet.suggest import words
from quintet.version import __version__

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
DOWNLOADED = [CONFIG, WEIGHTS, f"*/{CONFIG}", f"*/{WEIGHTS}"]
"""The only files that are downloaded: no pickle, no code, no weights in another layout."""


class Fetching(TypedDict, total=False):
    """Keywords of `from_pretrained` for names on the Hub."""

    revision: str | None
    cache_dir: str | Path | None
    token: str | bool | None
    local_files_only: bool
    force_download: bool


def client(name: str) -> Any:
    """huggingface_hub, imported on first use."""
    try:
        import huggingface_hub

        importlib.import_module("huggingface_hub.errors")  # not loaded until it is named
    except ImportError:
        raise ImportError(f"{name}: the Hub needs an extra: pip install 'quintet[hub]'") from None
    return huggingface_hub


def local(source: str | Path) -> Path:
    """A path as it is; `ready/NAME` as its folder in the package, the name of a model on the Hub as
    its folder in the client's cache. Nothing is downloaded."""
    path = ready.found(Path(source))
    if not _is_name(path):
        return path
    try:
        return Path(client(str(path)).snapshot_download(str(path), local_files_only=True))
    except Exception:  # no client, nothing in its cache, or no name for it
        raise RunError(missing(path)) from None


def missing(path: Path) -> str:
    """What to say of a run or a model that is not there."""
    if not _is_name(path):
        return f"there is no run at {path}"
    fetch = words("hf", "download", path, "--local-dir", path.name)
    return (
        f"{path} is not a local folder, and nothing is downloaded from the Hub automatically; "
        f"name {path.name} after: {fetch}"
    )


def _is_name(path: Path) -> bool:
    """Whether this may be ORGANISATION/NAME on the Hub, and is no path here."""
    is_path = path.exists() or len(path.parts) != 2 or path.parent.is_dir()
    return not is_path and re.fullmatch(r"\w[\w.-]*/[\w.-]+", path.as_posix()) is not None


def download(name: str, check: Callable[[Path], Any] | None = None, **how: Any) -> Path:
    """The local folder of a model on the Hub, in the cache of its client.

    `check` is called with the folder after the configuration is downloaded; if it raises, no
    weights are.
    """
    try:
        hub = client(name)
    except ImportError:
        raise RunError(
            f"{name} is not a folder; to search the Hub: pip install 'quintet[hub]'"
        ) from None
    keywords = {"library_name": "quintet", "library_version": __version__, **how}
    try:
        config = Path(hub.hf_hub_download(name, CONFIG, **keywords))
    except hub.errors.LocalEntryNotFoundError as error:
        raise RunError(f"{name} is not a folder, and {_first_line(error)}") from None
    except hub.errors.EntryNotFoundError:
        raise RunError(f"{name} on the Hub is not a Quintet model: it has no {CONFIG}") from None
    except Exception as error:  # of the network, the Hub or the name
        raise RunError(
            f"{name} is neither a folder nor a model on the Hub: {_first_line(error)}"
        ) from None
    if check is not None:
        check(config.parent)
    with _guarded(f"{name} cannot be downloaded from the Hub"):
        return Path(hub.snapshot_download(name, allow_patterns=DOWNLOADED, **keywords))


def upload(folder: Path, name: str, private: bool | None, token: Any, **how: Any) -> str:
    """Upload a folder to the Hub as one commit; returns the URL of the commit."""
    hub = client(name)
    api = hub.HfApi(token=token, library_name="quintet", library_version=__version__)
    with _guarded(f"{name} cannot be uploaded to the Hub"):
        repo_id = api.create_repo(name, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=repo_id, repo_type="model", folder_path=folder, **how))


@contextmanager
def _guarded(what: str) -> Generator[None]:
    try:
        yield
    except Exception as error:  # the client lets errors of several libraries through
        raise RunError(f"{what}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """The first line of a message; those of the Hub have many."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
