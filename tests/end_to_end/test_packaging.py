"""Wheel and sdist: they build, hold the library and its types, and work where nothing else is."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import quintet

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "quintet"
BUILD = "import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools leaves traces in what it builds from."""
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip(
            "pyproject.toml needs setuptools 77 or newer to build: pip install -U setuptools"
        )
    place = tmp_path_factory.mktemp("packaging")
    copy, out = place / "copy", place / "dist"
    out.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=left_out)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for kind in ("wheel", "sdist"):
        code = BUILD.format(kind=kind)
        subprocess.run(
            [sys.executable, "-c", code, str(out)], cwd=copy, check=True, capture_output=True
        )
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def files_of_the_library() -> set[str]:
    found = (path for path in SOURCE.rglob("*") if path.is_file())
    return {path.relative_to(SOURCE.parent).as_posix() for path in found if path.suffix != ".pyc"}


def test_the_wheel_holds_every_file_of_the_library_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == files_of_the_library()
    assert "quintet/py.typed" in inside


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    assert wheel.name == f"quintet-{quintet.__version__}-py3-none-any.whl"
    packed = zipfile.ZipFile(wheel)
    facts = f"quintet-{quintet.__version__}.dist-info"
    about = packed.read(f"{facts}/METADATA").decode()
    assert f"Version: {quintet.__version__}" in about
    assert "License-Expression: Apache-2.0" in about
    assert "Requires-Dist: torch>=" in about
    assert "quintet = quintet.cli:main" in packed.read(f"{facts}/entry_points.txt").decode()


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path) -> None:
    (found,) = dist.glob("*.tar.gz")
    with tarfile.open(found) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    wanted = {f"src/{name}" for name in files_of_the_library()}
    assert {*wanted, "pyproject.toml", "README.md", "LICENSE"} <= names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what it depends on is seen through a path file, so that
    nothing is downloaded."""
    place = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, str(wheel)], check=True, capture_output=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def call(place: Path, *words: str) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "QUINTET_CACHE")}
    ended = subprocess.run(
        [*words],
        cwd=place.parent,
        env={**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::DeprecationWarning:quintet"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_installed_command_explains_itself(installed: Path) -> None:
    assert "quintet demo" in call(installed, str(installed / "bin" / "quintet"), "--help")
    where = "import quintet; print(quintet.__file__)"
    place = call(installed, str(installed / "bin" / "python"), "-c", where)
    assert Path(place).is_relative_to(installed)


@pytest.mark.slow
def test_the_installed_demo_ends_with_its_page(installed: Path) -> None:
    said = call(installed, str(installed / "bin" / "quintet"), "demo", "--steps", "2")
    assert "All of it on one page: runs/demo/index.html" in said
    page = (installed.parent / "runs/demo/index.html").read_text(encoding="utf-8")
    assert "What to do next" in page
