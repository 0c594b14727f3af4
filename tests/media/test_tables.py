"""Tables of Hugging Face data sets give the samples of a folder of the same files."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from harness import Said, assert_same, lines, tensors
from quintet.image.config import ImageDataConfig
from quintet.image.data import open_data as open_images
from quintet.media.audio import write_wav
from quintet.media.errors import BadFile
from quintet.music.config import MusicDataConfig
from quintet.music.data import open_data as open_sounds

TYPES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def as_column(folder: Path, suffix: str) -> dict[str, pa.Array]:
    files = sorted(folder.rglob(f"*{suffix}"), reverse=True)  # in another order than by name
    structs = [
        {"bytes": file.read_bytes(), "path": file.relative_to(folder).as_posix()} for file in files
    ]
    return {"image" if suffix == ".png" else "audio": pa.array(structs, TYPES)}


def write_parquet(folder: Path, columns: dict[str, pa.Array], parts: int = 2) -> Path:
    """As the Hub has it: several files, several row groups each."""
    folder.mkdir()
    table = pa.table(columns)
    size = -(-len(table) // parts)
    for part in range(parts):
        name = f"data-{part:05d}-of-{parts:05d}.parquet"
        pq.write_table(table.slice(part * size, size), folder / name, row_group_size=3)
    return folder


def write_arrow(folder: Path, columns: dict[str, pa.Array]) -> Path:
    """As `Dataset.save_to_disk` does."""
    folder.mkdir()
    table = pa.table(columns)
    path = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


WRITERS: dict[str, Callable[..., Path]] = {"parquet": write_parquet, "save_to_disk": write_arrow}
EVERY = pytest.mark.parametrize("kind", WRITERS)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(24):
        values = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
        path = tmp_path / "photos" / f"{'ab'[number % 2]}/{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)
    return tmp_path / "photos"


@EVERY
def test_a_table_has_the_names_splits_and_pixels_of_the_folder(
    kind: str, photos: Path, tmp_path: Path
) -> None:
    table = WRITERS[kind](tmp_path / "table", as_column(photos, ".png"))
    config = ImageDataConfig(size=(32, 32), valid_fraction=0.25)
    for split in ("train", "valid"):
        loose, packed = (open_images(where, config, split, 3) for where in (photos, table))
        assert len(loose) == len(packed) > 3
        for index in range(len(loose)):
            assert loose.name(index) == packed.name(index)
            one, other = (data.keyed(index, None)["image"] for data in (loose, packed))
            assert one.equal(other)


@pytest.mark.by_default("parquet")
@EVERY
def test_a_run_on_a_table_is_the_run_on_the_folder(
    kind: str, photos: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    table = WRITERS[kind](tmp_path / "table", as_column(photos, ".png"))
    tiny = ["--steps", 3, "--batch-size", 4, "--device", "cpu", "--precision", "fp32", "--trackers"]
    tiny += ["--images.size", 32, 32, "--model.dim", 16, "--discriminator.dim", 8, "--log-every", 1]
    for name, data, workers in (("loose", photos, 0), ("tabled", table, 2)):
        command = ["train", "image/vqgan_tiny", data, "--run", tmp_path / name, *tiny]
        result = cli(*command, "--workers", workers)
        assert result.status == 0, result.err
    assert_same(tensors(tmp_path / "loose", 3), tensors(tmp_path / "tabled", 3))
    orders = [[r.get("order") for r in lines(tmp_path / name)] for name in ("loose", "tabled")]
    assert orders[0] == orders[1]
    assert f"{len(list(photos.rglob('*.png')))} files" in cli("doctor", "image", table).out


@EVERY
def test_captions_come_from_their_columns(kind: str, tmp_path: Path) -> None:
    for number in range(8):
        tone = np.sin(np.arange(8000) * (number + 1) / 20).astype(np.float32) / 2
        (tmp_path / "songs").mkdir(exist_ok=True)
        write_wav(tmp_path / f"songs/{number}.wav", tone, 8000)
    columns = as_column(tmp_path / "songs", ".wav")
    columns["captions"] = pa.array([[f"song {n}", f"tune {n}"] for n in reversed(range(8))])
    columns["tempo"] = pa.array(range(8))
    table = WRITERS[kind](tmp_path / "table", columns)
    config = MusicDataConfig(sample_rate=8000, seconds=1.0, min_seconds=1.0)
    data = open_sounds(table, config, "train", 0)
    for index in range(len(data)):
        number = Path(data.name(index)).stem
        assert data.texts(index) == [f"song {number}", f"tune {number}"]
        assert len(data.keyed(index, None)["wav"]) == 8000


@pytest.mark.parametrize("name", ["train-00000-of-00001", "data/train-00000-of-00001", "train"])
def test_several_splits_are_named_one_by_one(photos: Path, tmp_path: Path, name: str) -> None:
    columns = as_column(photos, ".png")
    for split, first in (("train", 0), ("validation", 20)):
        file = tmp_path / "hub" / f"{name.replace('train', split)}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns).slice(first), file)
    with pytest.raises(BadFile, match=r"several splits \(train, validation\)") as error:
        open_images(tmp_path / "hub", ImageDataConfig(), "train", 0)
    chosen, valid, folder = shlex.split(str(error.value).partition("name one: ")[2])
    assert valid == "--valid"
    config = ImageDataConfig(valid_folder=folder)
    assert len(open_images(chosen, config, "train", 0)) == 20  # four are held out as well
    assert len(open_images(chosen, config, "valid", 0)) == 4
    write_arrow(tmp_path / "hub" / "train", columns)
    (tmp_path / "hub/dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(BadFile, match=r"several splits \(train\); name one"):
        open_images(tmp_path / "hub", ImageDataConfig(), "train", 0)


def test_a_table_without_files_says_what_is_missing(tmp_path: Path) -> None:
    write_parquet(tmp_path / "texts", {"text": pa.array(["a", "b"])}, parts=1)
    with pytest.raises(BadFile, match=r"no column of files .* among text"):
        open_images(tmp_path / "texts", ImageDataConfig(), "train", 0)
    links = pa.array([{"bytes": None, "path": f"{n}.png"} for n in range(2)], TYPES)
    write_parquet(tmp_path / "links", {"image": links}, parts=1)
    data = open_images(tmp_path / "links", ImageDataConfig(), "train", 0)
    with pytest.raises(BadFile, match="no bytes in its row; save the data set with its files"):
        data.keyed(0, None)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadFile, match="is damaged"):
        open_images(tmp_path / "cut", ImageDataConfig(), "train", 0)


def test_rows_without_a_path_are_numbered_and_no_path_leads_out(tmp_path: Path) -> None:
    paths = [None, "/etc/passwd.png", "../../up.png"]
    contents = [f"picture {number}".encode() for number in range(3)]
    rows = pa.array([{"bytes": c, "path": path} for c, path in zip(contents, paths)], TYPES)
    write_parquet(tmp_path / "table", {"image": rows}, parts=1)
    sides = [open_images(tmp_path / "table", ImageDataConfig(), s, 0) for s in ("train", "valid")]
    names = {side.name(index) for side in sides for index in range(len(side))}
    assert names == {"data-00000-of-00001-00000000.jpg", "passwd.png", "up.png"}
