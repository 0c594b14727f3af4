"""The command line in this process, and small things to feed it."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can name what is here

from command import TINY, Quintet, Said, picture

from quintet.cli import main


@pytest.fixture
def quintet(capsys: pytest.CaptureFixture[str]) -> Quintet:
    """Calls `quintet …`; an exception other than SystemExit is a failure of the test."""

    def call(*words: object) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps whose discriminator starts at the fourth. Read-only."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as ended:
        main(["train", "image/vqgan_tiny", "--run", str(run), *TINY])
    assert not ended.value.code
    return run


@pytest.fixture(scope="session")
def continuous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with continuous latents. Read-only."""
    run = tmp_path_factory.mktemp("continuous") / "run"
    settings = ["--model.quantiser", "kl", "--model.latent-channels", "3"]
    with pytest.raises(SystemExit) as ended:
        main(["train", "image/vqgan_tiny", "--run", str(run), *TINY, *settings])
    assert not ended.value.code
    return run


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """The same, to do with as one likes."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


@pytest.fixture(scope="session")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    with pytest.raises(SystemExit) as ended:
        main(["export", str(trained), str(folder)])
    assert not ended.value.code
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve small images of mixed sizes and modes, in two folders."""
    folder = tmp_path / "photos"
    modes = ["RGB", "L", "P", "RGBA", "1", "CMYK"]
    for index in range(12):
        mode = modes[index // 2]
        suffix = "jpg" if mode in ("L", "CMYK") else "png"
        name = f"{'sub/' if index > 8 else ''}{index:02d}.{suffix}"
        picture(folder / name, index, 30 + 3 * index, 60 - 2 * index, mode)
    return folder
