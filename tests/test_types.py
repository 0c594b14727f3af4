"""pyrefly, as one of the default tests, and pyright, which is stricter and takes five times as
long, as a slow one and as `make types`."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(sys.executable).parent


def check(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = shutil.which(words[0], path=str(PROGRAMS))
    if program is None:
        pytest.skip(f"needs {words[0]}, which the dev extra installs")
    return subprocess.run([program, *words[1:]], cwd=cwd, capture_output=True, text=True)


def test_the_types_are_right() -> None:
    checked = check("pyrefly", "check", "--output-format", "min-text")
    assert checked.returncode == 0, checked.stdout


WRONG = {
    "count: int = 'three'": "bad-assignment",
    "len(3)": "bad-argument-type",
    "def half(value: int) -> str:\n    return value / 2": "bad-return",
    "torch.ones(2).shpae": "missing-attribute",
    "from quintet.engine.run import Rum": "missing-module-attribute",
    "World.gather(1)": "missing-argument",
}
"""What the settings must not switch off."""


def test_wrong_types_are_found_with_these_settings(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    off = settings["tool"]["pyrefly"]["errors"]
    (tmp_path / "pyrefly.toml").write_text(
        f'python-interpreter-path = "{sys.executable}"\nsearch-path = ["{ROOT / "src"}"]\n'
        "[errors]\n" + "".join(f"{kind} = false\n" for kind in off)
    )
    opening = "import torch\nfrom quintet.engine.task import World\n"
    (tmp_path / "wrong.py").write_text(opening + "\n".join(WRONG) + "\n")
    checked = check("pyrefly", "check", "--output-format", "min-text", cwd=tmp_path)
    assert checked.returncode == 1
    for kind in WRONG.values():
        assert f"[{kind}]" in checked.stdout, (kind, checked.stdout, checked.stderr)


@pytest.mark.slow
def test_the_types_are_right_when_read_strictly() -> None:
    checked = check("pyright")
    assert checked.returncode == 0, checked.stdout
