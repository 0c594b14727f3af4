"""Wheel and sdist: they build, contain the library and its types, and work when installed."""

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
BUILD = (
    "import sys; from setuptools import build_meta as b; out = sys.argv[1];"
    "b.build_wheel(out); b.build_sdist(out)"
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools writes into the source folder."""
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip(
            "pyproject.toml needs setuptools 77 or newer to build: pip install -U setuptools"
        )
    folder = tmp_path_factory.mktemp("packaging")
    copy, out = folder / "copy", folder / "dist"
    out.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    words = [sys.executable, "-c", BUILD, str(out)]
    subprocess.run(words, cwd=copy, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def library_files() -> set[str]:
    paths = (path for path in SOURCE.rglob("*") if path.is_file())
    return {path.relative_to(SOURCE.parent).as_posix() for path in paths if path.suffix != ".pyc"}


def test_the_wheel_contains_every_file_of_the_library_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packaged = {name for name in names if ".dist-info/" not in name}
    assert packaged == library_files()
    assert "quintet/py.typed" in packaged


def test_the_wheel_has_its_metadata(wheel: Path) -> None:
    assert wheel.name == f"quintet-{quintet.__version__}-py3-none-any.whl"
    archive = zipfile.ZipFile(wheel)
    info = f"quintet-{quintet.__version__}.dist-info"
    about = archive.read(f"{info}/METADATA").decode()
    assert f"Version: {quintet.__version__}" in about
    assert "License-Expression: Apache-2.0" in about
    assert "Requires-Dist: torch>=" in about
    assert "quintet = quintet.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_the_sdist_contains_the_sources_of_the_wheel(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"src/{name}" for name in library_files()}
    assert {*sources, "pyproject.toml", "README.md", "LICENSE"} <= names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; its dependencies come from a path file, so that
    nothing is downloaded."""
    environment = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    install += ["--no-compile", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def call(environment: Path, *command: str) -> str:
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "QUINTET_CACHE")}
    ended = subprocess.run(
        [*command],
        cwd=environment.parent,
        env={
            **variables,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "error::DeprecationWarning:quintet",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_installed_command_shows_help(installed: Path) -> None:
    assert "quintet demo" in call(installed, str(installed / "bin" / "quintet"), "--help")
    where = "import quintet; print(quintet.__file__)"
    path = call(installed, str(installed / "bin" / "python"), "-c", where)
    assert Path(path).is_relative_to(installed)


@pytest.mark.slow  # its files are compared above
def test_the_installed_command_trains_and_reports(installed: Path) -> None:
    """The report needs the style sheet and the script of the wheel."""
    quintet = str(installed / "bin" / "quintet")
    small = "--steps 2 --batch-size 2 --workers 0 --device cpu --images.size 32 32"
    narrow = "--model.dim 16 --discriminator.dim 8 --images.valid-limit 2 --run runs/first"
    call(installed, quintet, "train", "image/vqgan_tiny", *small.split(), *narrow.split())
    run = installed.parent / "runs/first"
    assert (run / "checkpoints/step-00000002/state.json").is_file()
    assert "</html>" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_installed_demo_writes_its_page(installed: Path) -> None:
    output = call(installed, str(installed / "bin" / "quintet"), "demo", "--steps", "2")
    assert "Results: runs/demo/index.html" in output
    page = (installed.parent / "runs/demo/index.html").read_text(encoding="utf-8")
    assert "Next steps" in page
