import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.triton import has_compiler

PROGRAM = "from quintet.triton import HAS_TRITON, has_compiler; print(HAS_TRITON, has_compiler())"


def test_without_a_compiler_there_is_no_triton(tmp_path: Path) -> None:
    bare = {k: v for k, v in os.environ.items() if k != "CC"} | {"PATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=bare, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["False", "False"]


def test_a_compiler_is_found_by_name_or_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not has_compiler()
    for name in ("clang", "mycc"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    assert has_compiler()
    monkeypatch.setenv("CC", "mycc")
    assert has_compiler()
    monkeypatch.setenv("CC", "missing")
    assert not has_compiler()
