import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("starlette") is None:
    collect_ignore_glob = ["test_*.py"]  # without the extra `serve`

NAMES = ("image_flow", "maskgit", "vae", "transformer", "mulan", "music_flow", "voicebox")
NAMES += ("video_maskgit",)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tiny models."""
    from serving import export

    folder = tmp_path_factory.mktemp("exports")
    return {name: export(name, folder) for name in NAMES}


@pytest.fixture(scope="session")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    from quintet.media.audio import write_wav

    path = tmp_path_factory.mktemp("voices") / "anna.wav"
    write_wav(path, np.random.default_rng(0).uniform(-0.1, 0.1, 4000), 8000)
    return path


@pytest.fixture(scope="session")
def served(exports: dict[str, Path], voice: Path) -> Iterator[Any]:
    """A client of a server with all tiny models, and a voice."""
    from serving import serving

    with serving([*exports.items()], files={"anna": voice}) as client:
        yield client
