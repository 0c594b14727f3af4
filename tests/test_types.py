"""pyright, as one of the tests: beside two busy workers it would slow down both of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_types_are_right() -> None:
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("needs pyright, which the dev extra installs")
    checked = subprocess.run([pyright], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
