"""The Hugging Face Hub: fetching what a model is read from, and sending it there.

The names and keywords are those of huggingface_hub's ModelHubMixin. The models do not inherit it:
it would load the Hub's client whenever a model is imported, and it feeds what config.json holds to
the constructor, where ours is read by a codec that refuses what it does not know.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from quintet.engine.errors import RunError
from quintet.version import __version__

T = TypeVar("T")
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
WANTED = [CONFIG, WEIGHTS, f"*/{CONFIG}", f"*/{WEIGHTS}"]
"""All that is ever downloaded: no pickle, no code, and no weights in a layout that is not ours."""


class Fetching(TypedDict, total=False):
    """Keywords of `from_pretrained` that only matter for names on the Hub."""

    revision: str | None
    cache_dir: str | Path | None
    token: str | bool | None
    local_files_only: bool
    force_download: bool


def client(name: str) -> Any:
    """huggingface_hub, imported when it is first needed."""
    try:
        import huggingface_hub

        importlib.import_module("huggingface_hub.errors")  # not loaded until it is named
    except ImportError:
        raise ImportError(f"{name}: the Hub needs an extra: pip install 'quintet[hub]'") from None
    return huggingface_hub


def download(name: str, check: Callable[[Path], Any] | None = None, **how: Any) -> Path:
    """The folder of a model on the Hub, in the Hub's cache on this machine.

    `check` is given the folder when only the configuration is there, and raises to have no weights
    fetched.
    """
    try:
        hub = client(name)
    except ImportError:
        raise RunError(
            f"{name} is no folder here; to look on the Hub: pip install 'quintet[hub]'"
        ) from None
    told = {"library_name": "quintet", "library_version": __version__, **how}
    missing = hub.errors.EntryNotFoundError, hub.errors.LocalEntryNotFoundError
    try:
        config = Path(hub.hf_hub_download(name, CONFIG, **told))
    except missing as error:
        if isinstance(error, hub.errors.LocalEntryNotFoundError):
            raise RunError(f"{name} is no folder here, and {_said(error)}") from None
        raise RunError(f"{name} on the Hub is no model of Quintet: it holds no {CONFIG}") from None
    except Exception as error:  # whatever the network, the Hub or the name itself may raise
        raise RunError(
            f"{name} is neither a folder nor a model on the Hub: {_said(error)}"
        ) from None
    if check is not None:
        check(config.parent)
    return _guarded(
        f"{name} cannot be fetched from the Hub",
        lambda: Path(hub.snapshot_download(name, allow_patterns=WANTED, **told)),
    )


def upload(folder: Path, name: str, private: bool | None, token: Any, **how: Any) -> str:
    """Send a folder to the Hub as one commit, and return the commit's address."""
    hub = client(name)
    api = hub.HfApi(token=token, library_name="quintet", library_version=__version__)

    def send() -> str:
        made = api.create_repo(name, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=made, repo_type="model", folder_path=folder, **how))

    return _guarded(f"{name} cannot be written on the Hub", send)


def _guarded(what: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except Exception as error:  # the client lets errors of several libraries through
        raise RunError(f"{what}: {_said(error)}") from None


def _said(error: Exception) -> str:
    """Its first line, for what the Hub says runs over many."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
