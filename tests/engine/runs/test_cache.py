"""What is kept on disk comes back as it was, or not at all."""

import contextlib
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness import _context, assert_same
from quintet.engine.runs import cache as caching
from quintet.engine.runs.cache import Cache

RESERVED = "__metadata__"
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def values(count: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"key {i}": torch.randn(i + 1, 2, generator=generator) for i in range(count)}


def shards(cache: Path) -> list[Path]:
    return sorted((cache / "things").glob("*.safetensors"))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that a NaN equals itself."""
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)


def test_what_is_added_is_found_and_nothing_else() -> None:
    Cache("things").add(values())
    assert_same(Cache("things").find([*values(), "unknown"]), values())
    assert list(Cache("things").find(["key 1"])) == ["key 1"]
    assert Cache("things").find(["unknown"]) == {}
    assert Cache("others").find(values()) == {}


def test_another_process_finds_it(cache: Path) -> None:
    Cache("things").add(values())
    expected = values()["key 2"].tolist()
    code = (
        f"import os; os.environ['QUINTET_CACHE'] = {str(cache)!r}\n"
        "from quintet.engine.runs.cache import Cache\n"
        "found = Cache('things').find(['key 2', 'key 9'])\n"
        f"assert {{n: t.tolist() for n, t in found.items()}} == {{'key 2': {expected}}}"
    )
    child = _context.Process(target=exec, args=(code, {}))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_a_key_in_two_files_is_found_once() -> None:
    Cache("things").add({"a": torch.ones(2), "b": torch.zeros(1)})
    Cache("things").add({"a": torch.ones(2)})
    assert_same(Cache("things").find(["a", "b"]), {"a": torch.ones(2), "b": torch.zeros(1)})


def test_adding_the_same_values_again_adds_no_file(cache: Path) -> None:
    Cache("things").add(values())
    before = shards(cache)
    Cache("things").add(values())
    assert shards(cache) == before
    Cache("things").add({})
    assert shards(cache) == before


def test_many_values_are_split_over_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "VALUES_PER_FILE", 4)
    Cache("things").add(values(10))
    assert len(shards(cache)) == 3
    assert_same(Cache("things").find(values(10)), values(10))
    assert not [path for path in (cache / "things").iterdir() if path not in shards(cache)]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a flipped bit of a value": lambda path: flip(path, -1),
    "a flipped bit of the length": lambda path: flip(path, 0),
    "an absurd length": lambda path: flip(path, 7),
    "a flipped bit of the header": lambda path: flip(path, 8),
    "cut in the values": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "cut in the length": lambda path: path.write_bytes(path.read_bytes()[:5]),
    "empty": lambda path: path.write_bytes(b""),
    "another shard's content": lambda path: path.write_bytes(
        b"\x10\0\0\0\0\0\0\0" + b'{"key 1":"what"}'
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_counts_as_missing_and_is_replaced(how: str, cache: Path) -> None:
    Cache("things").add({"other": torch.ones(3)})
    (sound,) = shards(cache)
    Cache("things").add(values())
    (path,) = [shard for shard in shards(cache) if shard != sound]
    whole = path.read_bytes()
    DAMAGE[how](path)
    assert path.read_bytes() != whole
    assert list(Cache("things").find([*values(), "other"])) == ["other"]
    Cache("things").add(values())
    assert path.read_bytes() == whole
    assert_same(Cache("things").find(values()), values())


@pytest.mark.parametrize(
    "content",
    [
        b"no tensors at all",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x04\0\0\0\0\0\0\0null",
        b'\x0f\0\0\0\0\0\0\0[{"key 1": [1]}]',
        b"\x40\x0d\x03\0\0\0\0\0" + b"[" * 200_000,
        b"\x04\0\0\0\0\0\0\0\xff\xff\xff\xff",
    ],
)
def test_other_files_in_the_cache_are_ignored(content: bytes, cache: Path) -> None:
    Cache("things").add(values())
    (cache / "things/0000.safetensors").write_bytes(content)
    (cache / "things/1111.safetensors").mkdir()
    (cache / "things/notes.txt").write_text("mine")
    (cache / "things/.123.writing").write_bytes(b"cut short")
    assert_same(Cache("things").find(values()), values())
    assert Cache("things").find(["unknown"]) == {}


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda key: key != RESERVED),
        st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    ),
    st.integers(0, 99),
)
@example({"": (torch.float32, [0])}, 0)
def test_any_tensors_under_any_keys_come_back(shapes: dict, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for key, (kind, shape) in shapes.items():
        raw = torch.randint(-4, 4, shape, generator=generator)
        made[key] = (raw / 3).to(kind) if kind.is_floating_point else raw.to(kind)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTET_CACHE", place)
        Cache("things").add(made)
        found = Cache("things").find([*made, "certainly not there"])
    assert found.keys() == made.keys()
    assert all(same_bits(found[key], made[key]) for key in made)


def test_the_reserved_name_of_the_format_does_no_harm() -> None:
    Cache("things").add(values())
    with contextlib.suppress(ValueError):
        Cache("things").add({RESERVED: torch.ones(1), "key 9": torch.ones(2)})
    assert_same(Cache("things").find(values()), values())
    assert Cache("things").find([RESERVED]) == {}


def test_non_finite_numbers_round_trip() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0])
    Cache("things").add({"odd": odd})
    assert same_bits(Cache("things").find(["odd"])["odd"], odd)


def test_a_view_is_kept_as_its_own_values() -> None:
    whole = torch.arange(12).view(3, 4)
    Cache("things").add({"column": whole[:, 1]})
    assert Cache("things").find(["column"])["column"].tolist() == [1, 5, 9]
