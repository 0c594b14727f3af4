"""CUDA's libraries are read ahead where there are some, and a hint never fails."""

from pathlib import Path

import pytest

from quintet import libraries


def test_libraries_beside_torch_are_found_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {
        "torch/__init__.py": 3,
        "torch/lib/libtorch_cuda.so": 70,
        "torch/lib/libtorch_cpu.so": 900,
        "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9": 5000,
        "nvidia/cu13/lib/libcublasLt.so.13": 11,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    (tmp_path / "nvidia/cudnn/lib/libcudnn.so").symlink_to("libcudnn_engines_precompiled.so.9")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "CHUNK", 1000)
    found = libraries.libraries()
    assert [path.name for path in found] == [
        "libcudnn_engines_precompiled.so.9",
        "libcublasLt.so.13",
        "libtorch_cuda.so",
    ]
    assert libraries.read([*found, tmp_path / "gone.so"]) == 5000 + 11 + 70


def test_nothing_is_read_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libraries, "_started", False)
    monkeypatch.setattr(libraries, "DRIVER", tmp_path / "none")
    libraries.read_ahead()
    assert not libraries._started
