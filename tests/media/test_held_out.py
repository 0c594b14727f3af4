"""What is held out is held out from training: by path and by content, whatever holds it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quintet import rooms
from quintet.image.clip.data import CaptionedFolder
from quintet.image.config import ImageDataConfig
from quintet.image.data import ImageFolder
from quintet.media.errors import BadFile
from quintet.media.held_out import Contents, file_contents, recorded_contents, shared
from quintet.media.shards.pack import pack
from quintet.shared.segments import Recordings, Segments
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets, SpeechFolder
from quintet.speech.voicebox.config import VoiceBoxConfig

KINDS = {
    **{room: rooms.Room(room).data.Folder for room in rooms.rooms()},
    "image/clip": CaptionedFolder,
    "music/adopt": Recordings,
}


def put(folder: Path, names: str, suffix: str = ".png", first: int = 0) -> Path:
    """Files of equal size with captions. They cannot be decoded, which nothing here needs."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, first):
        (folder / f"{name}{suffix}").write_bytes(np.random.default_rng(number).bytes(9000))
        (folder / f"{name}.txt").write_text("a caption")
    return folder


def open_split(kind: Any, folder: Path | str, split: Any = "train", **changes: Any) -> Any:
    if kind is SpeechFolder:
        return kind(folder, Buckets(SpeechDataConfig(**changes), VoiceBoxConfig()), split, 0)
    how = (Segments(8, 8, 8000),) if kind is Recordings else ()
    return kind(folder, kind.Config(**changes), split, 0, *how)


def names(kind: Any, folder: Path | str, split: Any = "train", **changes: Any) -> list[str]:
    data = open_split(kind, folder, split, **changes)
    return [Path(data.name(index)).stem for index in range(len(data))]


@pytest.mark.parametrize("name", KINDS)
def test_no_room_trains_on_the_folder_of_validation_data_or_on_copies_of_it(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = KINDS[name]
    suffix = kind.suffixes[0]
    folder = put(tmp_path / "data", "abcdef", suffix)
    put(folder / "val", "xy", suffix, first=10)
    shutil.copy(folder / f"c{suffix}", folder / "val" / f"renamed{suffix}")
    (folder / "val/renamed.txt").write_text("a caption")
    held_out = {"valid_folder": str(folder / "val")}
    assert names(kind, folder, **held_out) == list("abdef")
    assert names(kind, folder, "valid", **held_out) == ["renamed", "x", "y"]
    said = capfd.readouterr().err
    assert f"held out from training: 3 of 9 {kind.what} are in {folder}/val\n" in said
    assert f"training: 1 of 6 {kind.what} are copies of files in {folder}/val\n" in said
    for other in (folder, shutil.copytree(folder, tmp_path / "copy")):
        with pytest.raises(BadFile, match=r"no training data is left.*give --valid another"):
            open_split(kind, folder, valid_folder=str(other))
    assert len(names(kind, folder, valid_folder=str(folder), exclude_held_out=False)) == 9


def test_copies_across_any_split_of_a_folder_are_left_out(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", "abcdefghijkl")
    for file in list(folder.glob("*.png")):
        shutil.copy(file, folder / f"copy-{file.name}")
    valid = names(ImageFolder, folder, "valid", valid_fraction=0.2)
    train = names(ImageFolder, folder, valid_fraction=0.2)
    originals = lambda stems: {stem.removeprefix("copy-") for stem in stems}
    assert len(train) > len(valid) > 0
    assert not originals(valid) & originals(train)
    sides = {"train": ["a.png", "b.png", "c.png"], "valid": ["b.png", "copy-c.png"]}
    (tmp_path / "split.json").write_text(json.dumps(sides))
    assert names(ImageFolder, folder, split_file=str(tmp_path / "split.json")) == ["a"]
    declared = tmp_path / "declared"
    put(declared / "train", "abc")
    put(declared / "validation", "nc")
    assert names(ImageFolder, declared) == ["c"]  # a and b have the content of n and c there
    for name in "abcd":
        put(tmp_path / "same", name)
    with pytest.raises(BadFile, match="all of its 3 images are copies of held-out ones; add other"):
        open_split(ImageFolder, tmp_path / "same")


def test_segments_of_one_recording_are_different_samples(tmp_path: Path) -> None:
    folder = put(tmp_path, "ab", ".wav")
    shutil.copy(folder / "a.wav", folder / "c.wav")
    sizes = {f"{name}.wav": 9000 for name in "abc"}
    held = file_contents(folder, ["a.wav#0.000-1.000"], sizes)
    train = ["a.wav#1.000-2.000", "b.wav#0.000-1.000", "c.wav#0.000-1.000"]
    assert shared(file_contents(folder, train, sizes), held).tolist() == [False, False, True]
    whole = file_contents(folder, ["a.wav"], sizes)
    assert shared(file_contents(folder, train, sizes, whole=True), whole).tolist() == [1, 0, 1]


def packed(folder: Path, out: Path) -> Path:
    pack(folder, sorted(folder.glob("*.png")), out, lambda name: {}, 20_000)
    return out


def as_table(folder: Path, out: Path) -> Path:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    files = sorted(folder.glob("*.png"))
    rows = pa.array([{"bytes": f.read_bytes(), "path": f.name} for f in files], kind)
    pq.write_table(pa.table({"image": rows}), out, row_group_size=2)
    return out


def test_shards_tables_and_folders_hold_out_from_each_other(tmp_path: Path) -> None:
    """The content counts, not what holds it: all pairs of the three."""
    train, valid = put(tmp_path / "train", "abcdef"), put(tmp_path / "valid", "xy", first=4)
    both = [
        (folder, packed(folder, tmp_path / f"{name}-shards"), as_table(folder, tmp_path / name))
        for name, folder in (("t.parquet", train), ("v.parquet", valid))
    ]
    for data in both[0]:
        for held_out in both[1]:
            assert names(ImageFolder, data, valid_folder=str(held_out)) == list("abcd")
        with pytest.raises(BadFile, match="no training data is left"):
            open_split(ImageFolder, data, valid_folder=str(data))


def test_files_are_read_only_where_cheaper_signs_are_equal(tmp_path: Path) -> None:
    folder = put(tmp_path / "train", "abcdef")
    (folder / "long.png").write_bytes(bytes(9001))
    middle = bytearray((folder / "a.png").read_bytes())
    middle[0] ^= 1  # of equal size and middle, and yet another file
    (folder / "z.png").write_bytes(middle)
    held = put(tmp_path / "valid", "x")
    read: dict[str, list[int]] = {"middles": [], "digests": []}

    def noting(contents: Contents) -> Contents:
        def wrapped(kind: str) -> Any:
            return lambda n: (read[kind].extend(n.tolist()), getattr(contents, kind)(n))[1]

        return contents._replace(**{kind: wrapped(kind) for kind in read})

    files = sorted(path.name for path in folder.glob("*.png"))
    sizes = {name: (folder / name).stat().st_size for name in files}
    contents = noting(file_contents(folder, files, sizes))
    mask = shared(contents, file_contents(held, ["x.png"], {"x.png": 9000}))
    assert [name for name, same in zip(files, mask.tolist()) if same] == ["a.png"]
    assert [files[number] for number in read["middles"]] == [*(f"{n}.png" for n in "abcdefz")]
    assert [files[number] for number in read["digests"]] == ["a.png", "z.png"]


def test_a_record_with_digests_stands_for_files_that_are_gone(tmp_path: Path) -> None:
    data = open_split(ImageFolder, put(tmp_path / "data", "abcd"))
    record = dict(data.files())
    copy = shutil.copytree(tmp_path / "data", tmp_path / "copy")
    shutil.rmtree(tmp_path / "data")
    recorded = recorded_contents(str(tmp_path / "data"), record)
    assert recorded is not None
    assert shared(open_split(ImageFolder, copy).contents(), recorded).all()
    assert recorded_contents(str(copy), {"a.png": "9000"}) is None  # sizes tell nothing


def test_a_record_settles_what_is_left_out_and_new_copies_stay_out(tmp_path: Path) -> None:
    folder, held_out = put(tmp_path / "data", "abcdef"), put(tmp_path / "valid", "x")
    config = ImageDataConfig(valid_folder=str(held_out))
    sides = {split: ImageFolder(folder, config, split, 0) for split in ("train", "valid")}
    record: dict[str, Any] = {split: dict(side.files()) for split, side in sides.items()}
    record["unused"] = {split: list(side.unused()) for split, side in sides.items()}
    assert record["unused"] == {"train": ["a.png"], "valid": []}
    shutil.copy(folder / "a.png", folder / "new-copy.png")
    put(folder, "n", first=20)
    for takes_new, expected in ((False, "bcdef"), (True, "bcdefn")):
        path = tmp_path / f"data-{takes_new}.json"
        path.write_text(json.dumps({**record, "takes_new": takes_new}))
        again = ImageFolder(folder, replace(config, split_file=str(path)), "train", 0)
        assert [again.name(index)[0] for index in range(len(again))] == list(expected)
