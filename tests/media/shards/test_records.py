"""MDS and LitData folders and parquet at addresses: read as their libraries write them."""

import gzip
import http.server
import io
import json
import multiprocessing
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from harness import Said, assert_same, lines, tensors
from quintet.engine.data.plans import CountPlan, order_of
from quintet.engine.data.stream import Stream
from quintet.image.config import ImageDataConfig
from quintet.image.data import open_data as open_images
from quintet.media.errors import BadFile
from quintet.media.pixels import SUFFIXES, read_image
from quintet.media.shards import store as shard_store
from quintet.media.shards.dataset import open_shards

TEXT = {"text": "str"}
COUNT = 24


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (40, 44, 3), np.uint8)


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, "PNG")
    return out.getvalue()


def pil(number: int) -> bytes:
    return struct.pack("<III", 44, 40, 3) + b"RGB" + pixels(number).tobytes()


# -- small writers, from the descriptions of the formats ------------------------------------


def joined(parts: list[bytes], extra: bytes = b"") -> bytes:
    ends = np.cumsum([4 * (len(parts) + 2) + len(extra), *map(len, parts)])
    return struct.pack(f"<{len(parts) + 2}I", len(parts), *ends) + extra + b"".join(parts)


def sample(parts: list[bytes], sizes: list[int | None]) -> bytes:
    varying = [len(part) for part, size in zip(parts, sizes) if size is None]
    return struct.pack(f"<{len(varying)}I", *varying) + b"".join(parts)


def write_mds(
    folder: Path,
    rows: list[dict[str, bytes]],
    kinds: dict[str, str],
    compress: tuple[str, Callable[[bytes], bytes]] | None = None,
    per_shard: int = 7,
) -> Path:
    folder.mkdir(parents=True)
    sizes = {"int": 8, "uint8": 1}
    widths: list[int | None] = [sizes.get(kind) for kind in kinds.values()]
    shards: list[dict[str, Any]] = []
    for first in range(0, len(rows), per_shard):
        some = [sample([row[k] for k in kinds], widths) for row in rows[first : first + per_shard]]
        content = joined(some, b'{"any": "configuration"}')
        names = [f"shard.{len(shards):05d}.mds"]
        raw = {"basename": names[0], "bytes": len(content), "hashes": {}}
        packed = None
        if compress:
            content = compress[1](content)
            names[0] += f".{compress[0]}"
            packed = {"basename": names[0], "bytes": len(content), "hashes": {}}
        (folder / names[0]).write_bytes(content)
        shards.append(
            {
                "format": "mds",
                "version": 2,
                "samples": len(some),
                "column_names": list(kinds),
                "column_encodings": list(kinds.values()),
                "column_sizes": widths,
                "compression": compress and f"{compress[0]}:3",
                "raw_data": raw,
                "zip_data": packed,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def write_litdata(folder: Path, rows: list[dict[str, bytes]], kinds: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    chunks: list[dict[str, Any]] = []
    for first in range(0, len(rows), 7):
        parts = [[row[k] for k in kinds] for row in rows[first : first + 7]]
        name = f"chunk-0-{len(chunks)}.bin"
        (folder / name).write_bytes(joined([sample(each, [None] * len(kinds)) for each in parts]))
        chunks.append({"chunk_size": len(parts), "filename": name})
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {
        "type": "builtins.dict",
        "context": json.dumps(list(kinds)),
        "children_spec": [leaf] * len(kinds),
    }
    config = {
        "compression": None,
        "data_format": list(kinds.values()),
        "data_spec": json.dumps([1, spec]),
        "encryption": None,
    }
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return folder


def rows(kind: Callable[[int], bytes], count: int = COUNT) -> list[dict[str, bytes]]:
    return [
        {"image": kind(n), "n": struct.pack("<q", n), "text": f"no {n}".encode()}
        for n in range(count)
    ]


def opened(data: object) -> Any:
    found = open_shards(str(data), SUFFIXES, "images")
    assert found is not None
    return found


def array(number: int) -> bytes:
    """An ndarray of MDS: type uint8, three axes of uint8 sizes."""
    return bytes([8, 3 << 2, 40, 44, 3]) + pixels(number).tobytes()


def numpy(number: int) -> bytes:
    return struct.pack("<5I", 4, 3, 40, 44, 3) + pixels(number).tobytes()


def tensor(number: int) -> bytes:
    planes = np.moveaxis(pixels(number), -1, 0)
    return struct.pack(">5I", 11, 3, *planes.shape) + planes.tobytes()


WRITERS: dict[str, Callable[[Path], Path]] = {}
for _kind, _content in (("bytes", png), ("png", png), ("pil", pil), ("ndarray", array)):
    WRITERS[f"mds {_kind}"] = lambda folder, kind=_kind, content=_content: write_mds(
        folder, rows(content), {"image": kind, "n": "int", "text": "str"}
    )
for _kind, _content in (
    ("bytes", png),
    ("image:png", png),
    ("pil", pil),
    ("numpy", numpy),
    ("tensor", tensor),
):
    WRITERS[f"litdata {_kind}"] = lambda folder, kind=_kind, content=_content: write_litdata(
        folder, rows(content), {"image": kind, "n": "int", "text": "str"}
    )


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_have_their_pixels_captions_and_order(kind: str, tmp_path: Path) -> None:
    found = opened(WRITERS[kind](tmp_path / "set"))
    assert len(found) == COUNT
    assert found.has_text().all()
    assert found.name(8).startswith(("shard.00001-00000001.", "chunk-0-1-00000001."))
    found.prefetch(range(COUNT))
    for number in range(COUNT):
        assert (read_image(found.path(number)) == pixels(number)).all()
        assert found.row(number) == {"n": number, "text": f"no {number}"}


def test_columns_are_chosen_by_format_name_and_room(tmp_path: Path) -> None:
    content = {"jpg": b"a", "mask": b"b", "note": b"c", "pkl": b"d", "json": b'{"caption": "e"}'}
    kinds = {"jpg": "bytes", "mask": "bytes", "note": "str", "pkl": "pkl", "json": "json"}
    found = opened(write_mds(tmp_path / "named", [content], kinds))
    assert found.path(0).read_bytes() == b"a"
    assert found.path(0).suffix == ".jpg"
    assert found.row(0) == {"note": "c", "text": "e"}  # and the pickle was never opened
    one = opened(write_mds(tmp_path / "one", [{"x": b"a"}], {"x": "bytes"}))
    assert (one.path(0).read_bytes(), one.has_text().tolist()) == (b"a", [False])
    folder = write_mds(tmp_path / "two", [{"x": b"a", "y": b"b"}], {"x": "bytes", "y": "bytes"})
    with pytest.raises(BadFile, match=r"no column of images .*among x \(bytes\), y \(bytes\)"):
        opened(folder)


@pytest.mark.parametrize("name", ["gz", "zstd"])
def test_compressed_shards_are_unpacked_into_the_cache(name: str, tmp_path: Path) -> None:
    compress: Callable[[bytes], bytes] = gzip.compress
    if name == "zstd":
        zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
        compress = zstandard.ZstdCompressor().compress
    folder = write_mds(tmp_path / "set", rows(png), {"image": "png", **TEXT}, (name, compress))
    found = opened(folder)
    for number in range(COUNT):
        assert found.path(number).read_bytes() == png(number)
    for path in folder.glob("*.mds.*"):
        about = path.stat()
        path.write_bytes(bytes(about.st_size))  # all is read from the cache
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert opened(folder).row(20)["text"] == "no 20"


def test_missing_zstandard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_mds(tmp_path / "set", rows(png), {"image": "png"}, ("zstd", bytes))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match="pip install zstandard"):
        opened(folder)


def _edit(key: str, value: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        index["shards"][1][key] = value
        (folder / "index.json").write_text(json.dumps(index))

    return edit


def _shard(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    path = "shard.00001.mds"
    return lambda folder: (folder / path).write_bytes(change((folder / path).read_bytes())) and None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "shard.00001.mds").unlink(), r"shard\.00001\.mds: is missing"),
        (_shard(lambda content: content[:-1]), r"shard\.00001\.mds: has [\d,]+ bytes, not"),
        (
            _shard(lambda content: b"\xff" * len(content)),
            r"shard\.00001\.mds: is damaged.*sample 0",
        ),
        (_shard(lambda c: c[:4] + b"\xff" * 40 + c[44:]), r"its offsets point outside.*sample 0"),
        (_edit("format", "csv"), r"index\.json: lists shards of the format 'csv'"),
        (_edit("column_names", ["image"]), r"index\.json: is not a valid index"),
        (_edit("raw_data", {"basename": "../x", "bytes": 1}), r"index\.json: names '\.\./x'"),
        (_edit("samples", 8), r"shard\.00001\.mds: is damaged \(it does not have the 8 samples"),
    ],
)
def test_what_is_wrong_is_named(damage: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "set", rows(png), {"image": "png", **TEXT})
    damage(folder)
    with pytest.raises(BadFile, match=said):
        opened(folder).path(7).read_bytes()


def test_any_damage_to_a_shard_is_a_bad_file(tmp_path: Path) -> None:
    folder = WRITERS["mds ndarray"](tmp_path / "set")
    path = folder / "shard.00000.mds"
    content, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(content)
        for at in random.integers(0, 120, 3):
            changed[at] = random.integers(0, 256)
        path.write_bytes(changed)
        found = opened(folder)
        for number in range(2):
            with suppress(BadFile):
                found.row(number), read_image(found.path(number))


def test_an_index_of_something_else_is_a_file_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "index.json").write_text('["a.png"]')
    assert open_shards(str(tmp_path), SUFFIXES, "images") is None


# -- training -------------------------------------------------------------------------------

TINY = ["--batch-size", 4, "--device", "cpu", "--precision", "fp32", "--trackers", "--log-every", 1]
TINY += ["--schedule-steps", 2]
TINY += ["--images.size", 32, 32, "--model.dim", 16, "--discriminator.dim", 8]


@pytest.mark.slow  # so does the order below, and end_to_end/test_pack.py
def test_a_run_on_mds_resumes_bit_for_bit(tmp_path: Path, cli: Callable[..., Said]) -> None:
    data = WRITERS["mds pil"](tmp_path / "set")
    for name, steps, workers in (("whole", 2, 0), ("half", 1, 2)):
        command = ["train", "image/vqgan_tiny", data, "--run", tmp_path / name, *TINY]
        said = cli(*command, "--steps", steps, "--workers", workers)
        assert said.status == 0, said.err
    said = cli("resume", tmp_path / "half", "--steps", 2)
    assert said.status == 0, said.err
    assert_same(tensors(tmp_path / "whole", 2), tensors(tmp_path / "half", 2))
    orders = [
        [line["order"] for line in lines(tmp_path / name) if "order" in line]
        for name in ("whole", "half")
    ]
    assert orders[0] == orders[1]


def seat(rank: int, size: int) -> SimpleNamespace:
    place = lambda tensor: tensor
    return SimpleNamespace(
        rank=rank, size=size, device=torch.device("cpu"), dtype=torch.float32, place=place
    )


@pytest.mark.parametrize("window", ["", "#window=8"])
def test_the_order_is_that_of_one_process_and_survives_a_resume(
    window: str, tmp_path: Path
) -> None:
    folder = WRITERS["litdata pil"](tmp_path / "set")
    data = open_images(f"file://{folder}{window}", ImageDataConfig(size=(32, 32)), "train", 0)
    size = len(data)

    def steps(processes: int, begin: int, end: int) -> list[list[bytes]]:
        """The pixels of the global batches of 8, as dealt to the processes."""
        each: list[list[list[bytes]]] = []
        for rank in range(processes):
            plan = CountPlan(size, 3, 8 // processes, order_of(data, 3))
            stream = Stream(
                data, list, plan, seat(rank, processes), seed=3, accumulate=1, workers=0
            )
            stream.seek(8 * begin)
            each.append(
                [
                    [item["image"].numpy().tobytes() for item in stream.take(1)[0].data]
                    for _ in range(begin, end)
                ]
            )
            stream.close()
        return [list(chain(*parts)) for parts in zip(*each)]

    one = steps(1, 0, 4)
    assert len({image for step in one for image in step}) > size // 2
    assert steps(2, 0, 4) == one
    assert steps(4, 0, 4) == one
    assert steps(2, 2, 4) == one[2:]  # begun by one process, resumed by two


# -- at addresses ---------------------------------------------------------------------------

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Puts a folder into memory://."""
    memory = fsspec.filesystem("memory")

    def put(folder: Path) -> str:
        for path in folder.rglob("*.*"):
            memory.pipe_file(f"/records/{path.relative_to(folder)}", path.read_bytes())
        return "memory://records"

    yield put
    memory.rm("/records", recursive=True)


@pytest.mark.parametrize("kind", ["mds png", "litdata pil"])
def test_a_bucket_gives_the_samples_of_the_folder(
    kind: str, tmp_path: Path, bucket: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_store, "PIECE", 1000)
    folder = WRITERS[kind](tmp_path / "set")
    near, far = opened(folder), opened(bucket(folder))
    assert list(near.names()) == list(far.names())
    far.prefetch(range(COUNT))
    monkeypatch.setattr(fsspec.filesystem("memory"), "cat_file", None)  # all is in the cache
    for number in range(COUNT):
        assert near.path(number).read_bytes() == far.path(number).read_bytes()
        assert near.row(number) == far.row(number)


def test_parquet_in_a_bucket_is_read_as_on_disk(
    tmp_path: Path, bucket: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_store, "PIECE", 1000)
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "set/data").mkdir(parents=True)
    images = [{"bytes": png(number), "path": f"{number:02d}.png"} for number in range(COUNT)]
    table = pa.table({"image": images, "caption": [f"no {n}" for n in range(COUNT)]})
    for part in range(2):
        path = tmp_path / f"set/data/train-{part}.parquet"
        pq.write_table(table.slice(12 * part, 12), path, row_group_size=5)
    far = bucket(tmp_path / "set")
    near = opened(tmp_path / "set")
    for location in (far, f"{far}/data", f"{far}/data/train-*.parquet"):
        found = opened(location)
        assert list(found.names()) == list(near.names())
        for number in (0, 7, 23):
            assert found.path(number).read_bytes() == png(number)
            assert found.row(number)["text"] == f"no {number}"
    assert opened(f"{far}/data/train-0.parquet#window=64").window == 64
    fsspec.filesystem("memory").pipe_file("/records/data/test-0.parquet", path.read_bytes())
    with pytest.raises(BadFile, match=r"several splits \(train, test\).*data/train\*\.parquet"):
        opened(far)


class Faulty(http.server.BaseHTTPRequestHandler):
    """Serves byte ranges of a folder, with faults by path: each is taken once, or for ever."""

    protocol_version = "HTTP/1.1"
    root: Path
    faults: dict[str, list[str]]
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.root / self.path.strip("/")
        fault = ""
        if self.command == "GET":
            self.asked.append(path.name)
            waiting = self.faults.get(path.name, [])
            fault = (
                waiting[0] if waiting[:1] == ["503 always"] else waiting.pop(0) if waiting else ""
            )
        if fault == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault.startswith("503") or not path.is_file():
            self.send_response(503 if fault else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, wanted = path.read_bytes(), self.headers.get("Range")
        ranged = wanted and fault != "whole"
        if ranged:
            first, last = wanted.removeprefix("bytes=").split("-")
            content = content[int(first) : int(last) + 1]
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", "1")
        self.end_headers()
        if fault == "cut":
            content = content[: len(content) // 2]
            self.close_connection = True
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[type[Faulty]]:
    pytest.importorskip("aiohttp", reason="http:// needs aiohttp")
    (tmp_path / "web").mkdir()
    kind = type("Handler", (Faulty,), {"root": tmp_path / "web", "faults": {}, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        kind.url = f"http://127.0.0.1:{running.server_port}"
        yield kind
        running.shutdown()


@pytest.mark.parametrize("kind", ["mds png", "litdata image:png"])
def test_faults_of_a_server_are_retried(kind: str, server: Any) -> None:
    folder = WRITERS[kind](server.root / "set")
    shards = sorted(path.name for path in folder.iterdir() if path.name != "index.json")
    server.faults |= {"index.json": ["503"], shards[0]: ["drop", "503", "cut"], shards[1]: ["cut"]}
    found = opened(f"{server.url}/set")
    for number in range(COUNT):
        assert found.path(number).read_bytes() == png(number)
    assert not any(server.faults.values())
    assert server.asked.count(shards[0]) >= 4
    assert server.asked.count(shards[2]) == 1  # one piece of the cache


def test_what_cannot_be_fetched_is_named(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = WRITERS["mds png"](server.root / "set")
    name = "shard.00001.mds"
    server.faults[name] = ["503 always"]
    found = opened(f"{server.url}/set")
    assert found.path(0).read_bytes() == png(0)
    with pytest.raises(BadFile) as error:
        found.path(9).read_bytes()
    said = str(error.value)
    assert said.startswith(f"{server.url}/set/{name}: cannot be read (")
    assert "503" in said
    assert "(sample 2); check address, permissions and network" in said
    assert server.asked.count(name) == shard_store.ATTEMPTS
    monkeypatch.setattr(shard_store, "PIECE", 1000)
    server.faults[name] = ["whole"]
    with pytest.raises(BadFile, match="ignores byte ranges"):
        found.path(9).read_bytes()
    (folder / name).unlink()
    with pytest.raises(BadFile, match=rf"/set/{name}: is missing, though index\.json lists it"):
        opened(f"{server.url}/set")


def _reader(location: str, worker: int) -> None:
    found = opened(location)
    for number in np.random.default_rng(worker).permutation(2 * COUNT) % COUNT:
        assert found.path(int(number)).read_bytes() == png(int(number))


@pytest.mark.by_default("True")
@pytest.mark.parametrize("compressed", [False, True])
def test_the_cache_stays_within_its_limit_with_several_readers(
    compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress = ("gz", gzip.compress) if compressed else None
    folder = write_mds(tmp_path / "set", rows(png), {"image": "png"}, compress)
    limit = 3 * max(path.stat().st_size for path in folder.glob("shard*")) // 2
    monkeypatch.setenv("QUINTET_CACHE_BYTES", str(limit))
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_reader, args=(f"file://{folder}", n)) for n in range(3)]
    for reader in readers:
        reader.start()
    sizes: list[int] = []
    while any(reader.is_alive() for reader in readers):
        sizes.append(_cached(tmp_path / "cache/shards"))
    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    assert 0 < max(sizes) <= limit


def _cached(folder: Path) -> int:
    total = 0
    for path in folder.glob("[!.C]*"):
        with suppress(FileNotFoundError):  # evicted since
            total += path.stat().st_size
    return total


# -- the libraries themselves ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "gz", "zstd"])
def test_we_read_what_mosaicml_streaming_writes(compression: str | None, tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    kinds = {"jpeg": "jpeg", "png": "png", "pil": "pil", "ndarray": "ndarray", "bytes": "bytes"}
    kinds |= {"fixed": "ndarray:uint8:40,44,3"}
    plain = {"caption": "str", "n": "int", "x": "float32", "many": "str_int", "about": "json"}
    for name, kind in kinds.items():
        columns = {"image": kind, **plain}
        with streaming.MDSWriter(
            out=str(tmp_path / name), columns=columns, compression=compression, size_limit=30_000
        ) as out:
            for number in range(COUNT):
                image = Image.fromarray(pixels(number))
                value = {"bytes": png(number), "ndarray": pixels(number), "fixed": pixels(number)}
                row = {"caption": f"no {number}", "n": number, "x": 0.5, "many": 10**9}
                out.write({"image": value.get(name, image), "about": {"a": [1]}, **row})
        found = opened(tmp_path / name)
        assert len(found) == COUNT
        read = [read_image(found.path(number)) for number in range(COUNT)]
        same = [(image == pixels(number)).all() for number, image in enumerate(read)]
        assert all(same) or name == "jpeg"
        about = {"n": 5, "x": 0.5, "many": 10**9, "about": {"a": [1]}, "text": "no 5"}
        assert found.row(5) == about


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "level"),
    [(None, None), ("zstd", "batch"), ("zstd", "sample"), ("zstd", "chunk")],
)
def test_we_read_what_litdata_writes(
    compression: str | None, level: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("litdata", reason="litdata is not installed")
    from litdata.streaming.writer import BinaryWriter

    picture = tmp_path / "a.png"
    Image.fromarray(pixels(5)).save(picture)
    values: dict[str, Callable[[int], Any]] = {
        "bytes": png,  # with only plain columns beside it: an Arrow file
        "pil": lambda number: Image.fromarray(pixels(number)),
        "jpeg": lambda number: Image.open(io.BytesIO(jpeg(number))),
        "numpy": pixels,
        "tensor": lambda number: torch.from_numpy(np.moveaxis(pixels(number), -1, 0).copy()),
        "path": lambda number: str(picture),
    }
    for name, value in values.items():
        out = BinaryWriter(
            str(tmp_path / name), chunk_size=7, compression=compression, compression_level=level
        )
        for number in range(COUNT):
            out[number] = {
                "image": value(number),
                "captions": [f"no {number}", "other"],
                "about": {"n": number, "x": 0.5, "yes": True},
            }
        out.done()
        out.merge()
        found = opened(tmp_path / name)
        assert len(found) == COUNT
        read = [read_image(found.path(number)) for number in range(COUNT)]
        same = [(image == pixels(number)).all() for number, image in enumerate(read)]
        assert all(same) or name == "jpeg" or (name == "path" and same[5])
        about = {"about.n": 5, "about.x": 0.5, "about.yes": True}
        assert found.row(5) == {
            **about,
            "texts": ["no 5", "other"],
            "text": "no 5",
            "captions": ["no 5", "other"],
        }


def jpeg(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, "JPEG")
    return out.getvalue()


@pytest.mark.slow
def test_a_set_in_s3_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        files = fsspec.filesystem("s3", skip_instance_cache=True)
        files.mkdir("bucket")
        folder = WRITERS["mds pil"](tmp_path / "set")
        files.put(str(folder), "bucket/set", recursive=True)
        found = opened("s3://bucket/set")
        for number in range(COUNT):
            assert (read_image(found.path(number)) == pixels(number)).all()
        files.rm("bucket/set/shard.00002.mds")
        with pytest.raises(BadFile, match=r"s3://bucket/set/shard\.00002\.mds: is missing"):
            opened("s3://bucket/set")
    finally:
        running.stop()
