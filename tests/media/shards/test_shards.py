"""Shards: packing, reading at any place, and every way in which one can be wrong."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from quintet.media.audio import AudioCaps, probe, read_audio, write_wav
from quintet.media.errors import BadFile
from quintet.media.folder import files, read_metadata
from quintet.media.pixels import SUFFIXES, read_image
from quintet.media.shards import store as shard_store
from quintet.media.shards.cache import Cache
from quintet.media.shards.dataset import Shards, open_shards
from quintet.media.shards.index import Index
from quintet.media.shards.listing import expand_braces
from quintet.media.shards.pack import pack
from quintet.media.shards.tar import Damage, entries
from quintet.media.splits import InFolder, split_names, split_numbers

CONFIG = SimpleNamespace(
    valid_fraction=0.2,
    valid_limit=4,
    max_missing=0.5,
    valid_folder=None,
    split_file=None,
    exclude_held_out=True,
)


class Pictures(InFolder):
    suffixes, what = SUFFIXES, "images"


class Captioned(Pictures):
    lacking = "images have no caption"


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (20, 24, 3), np.uint8)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    """Thirty pictures with awkward names, most of them with captions."""
    folder, rows = tmp_path / "photos", []
    for index in range(30):
        name = f"{'sub.x/' if index > 20 else ''}{index:02d}.a b{'.JPG' if index % 3 else '.png'}"
        picture(folder / name, index)
        rows.append({"file_name": name, "caption": f"picture {index}", "more": index})
    lines = "\n".join(json.dumps(row) for row in rows[:27])
    (folder / "metadata.jsonl").write_text(lines)
    return folder


def packed(folder: Path, out: Path, shard_bytes: int = 8_000) -> Path:
    rows = read_metadata(folder)
    pack(folder, files(folder, SUFFIXES), out, lambda name: rows.get(name, {}), shard_bytes)
    return out


@pytest.fixture
def shards(photos, tmp_path):
    return packed(photos, tmp_path / "shards")


def opened(data: object) -> Shards:
    found = open_shards(str(data), SUFFIXES, "images")
    assert found is not None
    return found


# -- packing --------------------------------------------------------------------------------


def test_what_was_packed_is_what_the_folder_holds(photos, shards):
    found = opened(shards)
    loose = files(photos, SUFFIXES)
    assert len(list(shards.glob("*.tar"))) > 3
    assert [found.name(i) for i in range(len(found))] == [
        path.relative_to(photos).as_posix() for path in loose
    ]
    for number, path in enumerate(loose):
        assert found.path(number).read_bytes() == path.read_bytes()
        assert (read_image(found.path(number)) == read_image(path)).all()
        assert found.path(number).header[:2] == (24, 20)


@pytest.mark.parametrize("kind", [Pictures, Captioned])
@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.filterwarnings("ignore:.*have no caption")
def test_a_room_finds_the_same_samples_in_shards_as_in_the_folder(photos, shards, kind, split):
    found, loose = kind(shards, CONFIG, split, seed=3), Pictures(photos, CONFIG, split, seed=3)
    if kind is Captioned:  # three pictures have none, and change sides or not without the others
        assert all(found.text(i) for i in range(len(found)))
        return
    assert [found.name(i) for i in range(len(found))] == [loose.name(i) for i in range(len(loose))]
    assert [found.text(i) for i in range(len(found))] == [loose.text(i) for i in range(len(loose))]


@given(
    st.lists(st.text("abc/é", min_size=1, max_size=8), min_size=1, max_size=60, unique=True),
    st.floats(0, 1),
    st.integers(0, 99),
    st.none() | st.integers(1, 9),
)
@settings(max_examples=100)
def test_names_are_split_by_their_own_hash(names, fraction, seed, limit):
    digests = {n: blake2b(f"{seed}/{n}".encode(), digest_size=8).digest() for n in names}
    ordered = sorted(names, key=digests.__getitem__)
    count = sum(int.from_bytes(d, "big") < fraction * 2**64 for d in digests.values())
    least = max(1, min(8, limit or 8, len(names) // 4))
    count = min(max(count, least), len(names) - 1) if fraction and len(names) > 1 else 0
    train, valid = split_names(names, fraction, seed, limit)
    assert train == [name for name in names if name not in ordered[:count]]
    assert valid == [name for name in names if name in ordered[:count][:limit]]
    numbers = split_numbers((name.encode() for name in names), fraction, seed, limit)
    assert [[names[i] for i in side] for side in numbers] == [train, valid]


def test_the_same_folder_gives_the_same_bytes(photos, shards, tmp_path):
    os.utime(files(photos, SUFFIXES)[0])
    again = packed(photos, tmp_path / "again")
    assert [p.name for p in sorted(again.iterdir())] == [p.name for p in sorted(shards.iterdir())]
    for path in shards.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_a_folder_that_is_not_empty_is_refused(photos, shards):
    before = sorted(path.name for path in shards.iterdir())
    with pytest.raises(BadFile, match="not empty"):
        packed(photos, shards)
    assert sorted(path.name for path in shards.iterdir()) == before


def test_packing_that_fails_leaves_nothing(photos, tmp_path):
    def describe(name):
        if name.startswith("15"):
            raise OSError("the disk is full")
        return {}

    with pytest.raises(OSError, match="full"):
        pack(photos, files(photos, SUFFIXES), tmp_path / "out", describe, 8000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_damaged_files_are_packed_as_they_are_and_named(photos, tmp_path):
    bad = photos / "05.a b.JPG"
    bad.write_bytes(bad.read_bytes()[:20])
    found = pack(photos, files(photos, SUFFIXES), tmp_path / "out", lambda name: {}, 8000)
    assert len(found.problems) == 1
    assert "05.a b.JPG" in found.problems[0]
    shards = opened(tmp_path / "out")
    number = [shards.name(i) for i in range(len(shards))].index("05.a b.JPG")
    with pytest.raises(BadFile, match=r"05\.a b\.JPG"):
        read_image(shards.path(number))


def test_lengths_of_sounds_come_from_the_index_and_open_nothing(tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    write_wav(folder / "a.wav", np.sin(np.arange(12_345) / 9), 16_000)
    pack(folder, files(folder, (".wav",)), tmp_path / "out", lambda name: {}, 10**6)
    shards = Shards(str(tmp_path / "out"), (".wav",), "sounds")
    member = shards.path(0)
    member.load = None  # whoever opens it now fails
    member.stat = lambda: os.stat(folder / "a.wav")
    assert probe(member) == probe(folder / "a.wav")
    with pytest.raises(BadFile, match="max_seconds"):
        probe(member, AudioCaps(max_seconds=0.5))
    same = read_audio(shards.path(0), rate=8000) == read_audio(folder / "a.wav", rate=8000)
    assert same.all()


# -- which shards are meant -----------------------------------------------------------------


def test_one_shard_a_pattern_and_an_address_name_the_same_samples(shards):
    every = opened(shards)
    count = len(list(shards.glob("*.tar")))
    pattern = opened(shards / f"shard-{{000000..{count - 1:06d}}}.tar")
    address = opened(f"file://{shards}")
    assert len(every) == len(pattern) == len(address)
    assert every.path(7).read_bytes() == address.path(7).read_bytes()
    first, second = (opened(shards / f"shard-00000{i}.tar") for i in (0, 1))
    both = opened(shards / "shard-{000000,000001}.tar")
    assert len(both) == len(first) + len(second)
    assert both.name(len(first)) == second.name(0)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("a-{8..10}.tar", ["a-8.tar", "a-9.tar", "a-10.tar"]),
        ("{x,y}-{0..1}.tar", ["x-0.tar", "x-1.tar", "y-0.tar", "y-1.tar"]),
    ],
)
def test_braces_stand_for_names(pattern, names):
    assert expand_braces(pattern) == names


@pytest.mark.parametrize(
    "pattern", ["a-{5..1}.tar", "a-{0..99999999}.tar", "{0..9999}{0..9999}.tar"]
)
def test_invalid_patterns_are_refused(pattern):
    with pytest.raises(BadFile):
        expand_braces(pattern)


def test_a_folder_of_files_stays_one_though_an_archive_lies_in_it(photos):
    with tarfile.open(photos / "backup.tar", "w"):
        pass
    assert open_shards(str(photos), SUFFIXES, "images") is None


def test_a_window_is_part_of_the_name(shards, photos):
    found = Pictures(f"{shards}#window=64", CONFIG, "train", 0)
    assert found.window == 64
    assert Pictures(shards, CONFIG, "train", 0).window == 0
    with pytest.raises(BadFile, match="not sharded"):
        open_shards(f"{photos}#window=64", SUFFIXES, "images")


def test_compressed_archives_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(BadFile, match=r"plain \.tar"):
        opened(tmp_path / "a.tar.gz")


# -- what can be wrong ----------------------------------------------------------------------


def test_a_missing_shard_is_named(shards):
    (shards / "shard-000001.tar").unlink()
    with pytest.raises(BadFile, match=r"shard-000001.tar is missing"):
        opened(shards)
    (shards / "shard-000001.index").unlink()
    with pytest.raises(BadFile, match=r"1 of \d+ shards are missing, number 000001"):
        opened(shards)
    with pytest.raises(BadFile, match=r"shard-000001.tar: does not exist"):
        opened(shards / "shard-{000000..000002}.tar")
    assert len(opened(shards / "shard-{000000,000002}.tar")) > 0


def test_a_shard_of_another_size_than_its_index_says_is_refused(shards):
    path = shards / "shard-000002.tar"
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(BadFile, match=r"shard-000002.index: is for a shard of"):
        opened(shards)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_index_is_refused(shards, share):
    path = shards / "shard-000000.index"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadFile, match=r"shard-000000.index"):
        opened(shards)


def column(path: Path, name: str) -> tuple[bytearray, int]:
    """The content of an index, and where a column begins in it."""
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + header])
    return content, 8 + header + about[name]["data_offsets"][0]


@pytest.mark.parametrize("name", ["offset", "length", "name_end", "row_end", "kind"])
def test_an_index_that_points_outside_is_refused(shards, name):
    path = shards / "shard-000000.index"
    content, begin = column(path, name)
    content[begin : begin + (1 if name == "kind" else 8)] = b"\xff" * (1 if name == "kind" else 8)
    path.write_bytes(content)
    with pytest.raises(
        BadFile, match=r"shard-000000.index: (points outside|has a suffix number out of range)"
    ):
        opened(shards)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_index_is_always_a_bad_file(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    picture(folder / "in" / "a.png", 0)
    packed(folder / "in", folder / "out")
    path = folder / "out" / "shard-000000.index"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = opened(folder / "out")
        found.name(0), found.row(0)
        read_image(found.path(0))
    except BadFile:
        pass


def test_a_damaged_shard_costs_the_samples_in_it_and_names_them(shards):
    path = shards / "shard-000001.tar"
    found = opened(shards)
    index = Index(shards / "shard-000001.index", path.name, path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[int(index.offset[0]) + 30] ^= 1
    path.write_bytes(content)
    first = len(opened(shards / "shard-000000.tar"))
    with pytest.raises(BadFile, match=r"shard-000001.tar.*digest.*copy shard-000001.tar again"):
        opened(shards).path(first).read_bytes()
    assert found.path(first + 1).read_bytes()


# -- shards from elsewhere ------------------------------------------------------------------


def add(archive: tarfile.TarFile, name: str, content: bytes, **about: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in about.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(content))


def png(seed: int) -> bytes:
    out = io.BytesIO()
    values = np.random.default_rng(seed).integers(0, 255, (8, 9, 3), np.uint8)
    Image.fromarray(values).save(out, "PNG")
    return out.getvalue()


def foreign(path: Path, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for i in range(5):
            add(archive, f"set/{i:03d}.json", json.dumps({"caption": f"no {i}", "x": i}).encode())
            add(archive, f"set/{i:03d}.png", png(i))
            add(archive, f"set/{i:03d}.mask.png", png(100 + i))
            add(archive, f"set/{i:03d}.cls", b"7")
        add(archive, f"{'deep/' * 40}long.png", png(9))
        add(archive, f"{'deep/' * 40}long.txt", b"a long name")
    return path


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_foreign_shards_are_indexed_once(tmp_path, form, monkeypatch):
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    path = foreign(tmp_path / "foreign.tar", form)
    found = opened(path)
    assert len(found) == 6
    assert found.name(2) == "set/002.png"
    assert found.row(2) == {"text": "no 2", "x": 2}
    assert found.row(5) == {"text": "a long name"}
    assert found.path(2).read_bytes() == png(2)
    assert found.has_text().all()
    kept = [p for p in (tmp_path / "cache" / "shard-indexes").iterdir() if p.name[0] not in ".C"]
    assert len(kept) == 1
    before = kept[0].stat().st_ino
    assert len(opened(path)) == 6
    assert kept[0].stat().st_ino == before
    kept[0].write_bytes(b"damaged")
    assert len(opened(path)) == 6


def test_a_changed_foreign_shard_is_indexed_again(tmp_path):
    path = foreign(tmp_path / "foreign.tar")
    assert len(opened(path)) == 6
    with tarfile.open(path, "w") as archive:
        add(archive, "one.png", png(1))
    assert len(opened(path)) == 1


def test_members_that_are_not_regular_files_are_reported_and_skipped(tmp_path):
    path = tmp_path / "odd.tar"
    (tmp_path / "secret.png").write_bytes(png(50))
    with tarfile.open(path, "w") as archive:
        add(archive, "../secret.png", png(0))
        add(archive, "/etc/a.png", png(0))
        add(archive, "sym.png", b"", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret.png"))
        add(archive, "hard.png", b"", type=tarfile.LNKTYPE, linkname="good.png")
        add(archive, "device.png", b"", type=tarfile.CHRTYPE)
        add(archive, "pipe.png", b"", type=tarfile.FIFOTYPE)
        add(archive, "folder", b"", type=tarfile.DIRTYPE)
        add(archive, "good.png", png(3))
    with pytest.warns(UserWarning, match=r"odd.tar: ../secret.png has a name.*and 5 more"):
        found = opened(path)
    assert [found.name(i) for i in range(len(found))] == ["good.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["odd.tar", "secret.png"]


def test_two_samples_of_one_key_are_named_and_the_first_counts(tmp_path):
    path = tmp_path / "twice.tar"
    with tarfile.open(path, "w") as archive:
        for name, seed in (("a.png", 0), ("a.png", 1), ("b.png", 2), ("a.png", 3)):
            add(archive, name, png(seed))
    with pytest.warns(UserWarning, match=r"twice.tar: a.png occurs twice.*and 1 more"):
        found = opened(path)
    assert [found.path(i).read_bytes() for i in range(len(found))] == [png(0), png(2)]


def test_what_could_run_code_is_never_opened(tmp_path):
    import pickle

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = tmp_path / "bomb.tar"
    with tarfile.open(path, "w") as archive:
        for ext in ("pyd", "pickle", "pth", "npy", "pkl"):
            add(archive, f"a.{ext}", pickle.dumps(Bomb()))
        add(archive, "a.png", png(0))
    found = opened(path)
    assert len(found) == 1
    read_image(found.path(0))
    assert not (tmp_path / "ran").exists()


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    block = bytearray(512)
    block[: len(name)], block[124 : 124 + len(size)], block[156:157] = name, size, kind
    block[257:263] = b"ustar\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header(b"a.png", b"77777777777"), "ends inside the member"),
        (header(b"a.png", b"\x80" + b"\xff" * 11), "invalid size"),
        (header(b"a.png", b"\xff" * 12), "invalid size"),
        (header(b"a.png", b"zzz"), "invalid size"),
        (header(b"x", b"00000300000", b"x") + b"0" * 98304, "extension header of 98,304 bytes"),
        (header(b"L", b"00007777777", b"L") + b"0" * 512, "ends inside the member"),
        (header(b"x", b"00000001000", b"x") + b"7 nonsense" + b"1" * 502, "damaged extension"),
        (b"\1" * 512, "no valid header"),
        (header(b"a.png", b"00000000000")[:300] + b"x" * 212, "no valid header"),
        (header(b"a.png", b"0" * 11) + b"half", "ends inside a header"),
    ],
)
def test_absurd_headers_end_the_archive_with_an_error(content, said):
    with pytest.raises(Damage, match=said):
        list(entries(lambda begin, count: content[begin : begin + count], len(content)))


def test_an_absurd_size_in_a_pax_header_takes_no_memory():
    record = b"30 size=99999999999999999999\n"
    record = b"%d%s" % (len(record), record[2:])
    content = header(b"x", b"%011o" % len(record), b"x") + record.ljust(512, b"\0")
    content += header(b"a.png", b"0" * 11)
    with pytest.raises(Damage, match="invalid size"):
        list(entries(lambda begin, count: content[begin : begin + count], len(content)))


def test_sparse_members_are_skipped():
    record = b"GNU.sparse.major=1\n"
    record = b"%d %s" % (len(record) + 3, record)
    content = header(b"x", b"%011o" % len(record), b"x") + record.ljust(512, b"\0")
    content += header(b"a.png", b"0" * 11) + header(b"b.png", b"0" * 11, b"S") + bytes(1024)
    found = list(entries(lambda begin, count: content[begin : begin + count], len(content)))
    assert [entry.problem for entry in found] == ["is a sparse file"] * 2


def test_a_truncated_shard_gives_its_complete_samples(tmp_path):
    path = foreign(tmp_path / "cut.tar")
    with tarfile.open(path) as archive:
        third = archive.getmember("set/003.png").offset_data
    path.write_bytes(path.read_bytes()[: third + 10])
    with pytest.warns(UserWarning, match=r"cut.tar: the archive ends inside the member"):
        found = opened(path)
    assert [found.name(i) for i in range(len(found))] == [f"set/{i:03d}.png" for i in range(3)]


@given(st.binary(max_size=3000))
@settings(max_examples=100)
def test_any_bytes_are_an_archive_or_an_error(content):
    try:
        for entry in entries(lambda begin, count: content[begin : begin + count], len(content)):
            assert 0 <= entry.offset <= entry.offset + entry.length <= len(content)
    except Damage:
        pass


# -- afar -----------------------------------------------------------------------------------

fsspec = pytest.importorskip(
    "fsspec", reason="fsspec is not installed: pip install quintet[shards]"
)


@pytest.fixture
def remote(shards, monkeypatch, tmp_path):
    """The shards at a memory:// address, with pieces small enough that there are many."""
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shard_store, "PIECE", 1024)
    memory = fsspec.filesystem("memory")
    for path in shards.iterdir():
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    yield "memory://bucket"
    memory.rm("/bucket", recursive=True)


def kept(tmp_path: Path) -> list[Path]:
    return [p for p in (tmp_path / "cache" / "shards").iterdir() if p.name[0] not in ".C"]


def test_an_address_gives_the_same_samples(remote, shards, tmp_path):
    here, there = opened(shards), opened(remote)
    there.prefetch(range(len(there)))
    assert [there.name(i) for i in range(len(there))] == [here.name(i) for i in range(len(here))]
    assert all(there.path(i).read_bytes() == here.path(i).read_bytes() for i in range(len(here)))
    tar = opened(f"{remote}/shard-{{000000..000001}}.tar")
    assert tar.path(1).read_bytes() == here.path(1).read_bytes()


def test_fetched_pieces_are_not_fetched_again(remote, monkeypatch):
    first = opened(remote)
    content = [first.path(i).read_bytes() for i in range(len(first))]
    again = opened(remote)
    monkeypatch.delattr(type(again._store._filesystem()), "cat_file")  # whoever calls it fails
    assert [again.path(i).read_bytes() for i in range(len(again))] == content


def test_the_cache_stays_within_its_limit_and_evicts_the_least_recently_used(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path))
    monkeypatch.setenv("QUINTET_CACHE_BYTES", "1000")
    cache = Cache("few")
    for number in range(3):
        cache.put(str(number), bytes(300))
        os.utime(cache.path(str(number)), (number, number))
    assert cache.read("0", 0, 5) == bytes(5)  # used now
    cache.put("3", bytes(300))
    assert [cache.find(str(number)) is not None for number in range(4)] == [True, False, True, True]
    assert cache.put("large", bytes(1001)) is None
    assert cache.find("0")


def test_reading_more_than_the_cache_limit_works(remote, monkeypatch, tmp_path, shards):
    monkeypatch.setenv("QUINTET_CACHE_BYTES", "1000")
    with pytest.raises(BadFile, match="QUINTET_CACHE"):
        opened(remote)  # not even the indexes fit
    monkeypatch.setenv("QUINTET_CACHE_BYTES", "20000")
    found, here = opened(remote), opened(shards)
    for number in range(len(found)):
        assert found.path(number).read_bytes() == here.path(number).read_bytes()
        assert sum(path.stat().st_size for path in kept(tmp_path)) <= 20_000


def test_a_damaged_cache_heals_itself(remote, tmp_path):
    found = opened(remote)
    content = found.path(4).read_bytes()
    for path in kept(tmp_path):
        path.write_bytes(bytes(path.stat().st_size))
    assert found.path(4).read_bytes() == content


def test_an_unwritable_cache_is_skipped(shards, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "file"))
    store = shard_store.RemoteStore(f"file://{shards}")
    place = store.find(f"file://{shards}/shard-000000.tar")
    with pytest.warns(UserWarning, match="nothing is cached"):
        found = store.read(place, 0, 100)
    assert found == (shards / "shard-000000.tar").read_bytes()[:100]


ADD_MANY = """
import sys
from quintet.media.shards.cache import Cache

cache, worker = Cache("many"), int(sys.argv[1])
for number in range(60):
    key = str((number * 7 + worker) % 40)
    content = key.encode().ljust(3000, b".")
    with cache.claim(key):
        if cache.read(key, 0, 3000) is None:
            cache.put(key, content)
    assert cache.read(key, 0, 3000) in (None, content)
"""


def test_several_processes_share_the_cache_within_its_limit(tmp_path):
    env = {**os.environ, "QUINTET_CACHE": str(tmp_path), "QUINTET_CACHE_BYTES": "50000"}
    commands = [[sys.executable, "-c", ADD_MANY, str(worker)] for worker in range(3)]
    workers = [subprocess.Popen(command, env=env) for command in commands]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    found = [path for path in (tmp_path / "many").iterdir() if path.name[0] != "."]
    assert 45_000 < sum(path.stat().st_size for path in found) <= 50_000
    assert not list((tmp_path / "many").glob("*.writing"))


def test_a_network_error_is_retried_and_then_reported(remote, monkeypatch):
    found = opened(remote)
    files_of, asked = found._store._filesystem(), []

    def failing(*_, **__):
        asked.append(1)
        raise RuntimeError("connection reset")

    monkeypatch.setattr(files_of, "cat_file", failing)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(BadFile, match="connection reset"):
        found.path(0).read_bytes()
    assert len(asked) == shard_store.ATTEMPTS


@pytest.mark.parametrize("address", ["nowhere://a/b", "memory://not-there", "memory://no/a.tar"])
def test_invalid_urls_are_errors(address):
    with pytest.raises(BadFile):
        opened(address)


# -- webdataset -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it closes no file
def test_webdataset_reads_our_shards(photos, shards):
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    rows = read_metadata(photos)
    places = [str(path) for path in sorted(shards.glob("*.tar"))]
    read = list(wds.WebDataset(places, shardshuffle=False, empty_check=False))
    assert len(read) == 30
    for sample in read:
        about = json.loads(sample["json"])
        image = sample.get("jpg") or sample.get("png")
        assert image == (photos / about["file_name"]).read_bytes()
        text = rows.get(about["file_name"], {}).get("text")
        assert sample.get("txt", b"").decode() == (text or "")


def test_we_read_shards_that_webdataset_wrote(tmp_path):
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    with wds.ShardWriter(str(tmp_path / "w-%06d.tar"), maxcount=4, verbose=0) as out:
        for index in range(10):
            image = read_image(picture(tmp_path / "p" / f"{index}.png", index))
            out.write({"__key__": f"k{index:03d}", "png": image, "txt": f"number {index}"})
    shutil.rmtree(tmp_path / "p")
    found = opened(tmp_path)
    assert [found.name(i) for i in range(10)] == [f"k{i:03d}.png" for i in range(10)]
    assert [found.row(i)["text"] for i in range(10)] == [f"number {i}" for i in range(10)]
    assert read_image(found.path(3)).shape == (20, 24, 3)
