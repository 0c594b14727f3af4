"""The .pt files of others give their tensors and nothing else: no code runs, nothing swells.
Traps are pickles that would make a folder; there must be none afterwards."""

import operator
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from quintet.engine.errors import RunError
from quintet.engine.models import sandbox
from quintet.engine.models.sandbox import Refused, to_safetensors

NEW = "tensors.safetensors"


class Trap:
    def __init__(self, call: Callable[..., Any], *given: Any):
        self.call, self.given = call, given

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.given


# Each starts a process; that of the archive is the same for files of before torch 1.6.
FORMATS = [
    pytest.param(True, id="archive"),
    pytest.param(False, id="before 1.6", marks=pytest.mark.slow),
]


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def saved(path: Path, content: Any, archive: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    return path


Save = Callable[[Any], Path]


@pytest.fixture(params=FORMATS)
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    """Into old.pt, in each of the two formats."""
    return lambda content: saved(tmp_path / "old.pt", content, request.param)


read = sandbox.read  # what the child does, without its process: these the reader must refuse


def rewritten(path: Path, edit: Callable[[bytes], bytes], how: int = zipfile.ZIP_STORED) -> Path:
    """The same archive with another directory of tensors."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in records.items():
            archive.writestr(name, edit(data) if name.endswith("data.pkl") else data)
    return path


# -- what comes out -----------------------------------------------------------------------------


def old_checkpoint() -> dict[str, Any]:
    """As the old packages wrote them: networks, optimizers, and what else was at hand."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {
        "model": network.state_dict(),
        "optim": optimizer.state_dict(),
        "step": 1200,
        "version": "0.3.1",
        "loss": float("inf"),
        "config": pickle.dumps({"dim": 3}),
        "tied": OrderedDict(a=network[0].weight, b=network[0].weight),
        "half": [torch.ones(2, dtype=torch.bfloat16), torch.tensor(3)],
    }


@pytest.mark.parametrize("archive", FORMATS)
def test_every_tensor_is_there_under_its_old_name_bit_for_bit_and_the_child_is_offline(
    archive: bool, tmp_path: Path, out: Path
) -> None:
    """Without network if the system allows it: as root, and wherever a user may have one of his
    own."""
    content = old_checkpoint()
    offline = to_safetensors(saved(tmp_path / "old.pt", content, archive), out / NEW)
    code = f"import ctypes; print(ctypes.CDLL(None).unshare({sandbox.CLONE_NEWNET}))"
    granted = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert offline or granted.stdout.strip() != "0"
    tensors = load_file(out / NEW)
    for name, tensor in content["model"].items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
    assert torch.equal(tensors["half/0"], content["half"][0])
    assert torch.equal(tensors["tied/a"], tensors["tied/b"])
    assert torch.equal(tensors["optim/state/0/exp_avg"], content["optim"]["state"][0]["exp_avg"])
    assert not any(name in tensors for name in ("step", "version", "loss", "config"))
    assert [path.name for path in out.iterdir()] == [NEW]


def test_without_a_network_nothing_is_reached() -> None:
    code = """
import socket
from quintet.engine.models.sandbox import cut_off_network
listening = socket.create_server(("127.0.0.1", 0))
where = listening.getsockname()
if not cut_off_network():
    print("not granted")
else:
    try:
        socket.create_connection(where, 1)
        print("reached")
    except OSError:
        print("cut off")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if "not granted" in said.stdout:
        pytest.skip("needs the right to make a network namespace")
    assert said.stdout.strip() == "cut off"


# -- traps --------------------------------------------------------------------------------------


def test_a_trap_in_a_real_process_runs_nothing(canary: Path, save: Save, out: Path) -> None:
    old = save({"a": torch.ones(2), "x": Trap(os.mkdir, str(canary))})
    with pytest.raises(
        RunError, match=r"names posix\.mkdir, which is not a tensor; nothing was run"
    ):
        to_safetensors(old, out / NEW)
    assert list(out.iterdir()) == []


TRAPS: dict[str, Callable[[str], Any]] = {
    "a call": lambda where: Trap(os.mkdir, where),
    "a command": lambda where: Trap(os.system, f"mkdir {where}"),
    "a process": lambda where: Trap(subprocess.check_output, ["mkdir", where]),
    "code": lambda where: Trap(eval, f"__import__('os').mkdir({where!r})"),
    "an import": lambda where: Trap(__import__, "antigravity"),
    "an attribute": lambda where: Trap(operator.attrgetter, "system"),
    "a loader": lambda where: Trap(pickle.loads, pickle.dumps(Trap(os.mkdir, where))),
    "a whole module": lambda where: nn.Linear(2, 2),
    "a path": lambda where: Path(where),
}


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_that_a_file_names_is_called(
    name: str, deep: bool, canary: Path, save: Save
) -> None:
    trap = TRAPS[name](str(canary))
    content = {"model": OrderedDict(w=torch.ones(2)), "x": [{"y": trap}]} if deep else trap
    with pytest.raises(Refused, match=r"names .*, which is not a tensor; nothing was run"):
        read(save(content))


def test_a_bare_pickle_is_not_opened(canary: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.pt"
    old.write_bytes(pickle.dumps(Trap(os.mkdir, str(canary))))
    with pytest.raises(Refused, match=r"is not a file of torch\.save"):
        read(old)
    with tarfile.open(old, "w") as archive:  # as torch 0.1 wrote them
        archive.add(__file__, "pickle")
    with pytest.raises(Refused, match=r"is a tar archive, as torch 0\.1"):
        read(old)


def test_a_program_is_not_opened(tmp_path: Path) -> None:
    old = saved(tmp_path / "old.pt", {"a": torch.ones(2)})
    with zipfile.ZipFile(old, "a") as archive:
        archive.writestr("old/code/__torch__.py", "import os")
    with pytest.raises(Refused, match="TorchScript"):
        read(old)


# -- sizes --------------------------------------------------------------------------------------


def test_compressed_records_are_not_opened(tmp_path: Path) -> None:
    """A bomb: a gigabyte of zeros in a megabyte."""
    old = saved(tmp_path / "old.pt", {"a": torch.zeros(1 << 20)})
    with pytest.raises(Refused, match="compressed records"):
        read(rewritten(old, bytes, zipfile.ZIP_DEFLATED))


def test_a_directory_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    """Many entries that all lead to the same bytes."""
    old = saved(tmp_path / "old.pt", {"a": torch.zeros(1 << 16)})
    with zipfile.ZipFile(old, "a") as archive:
        first = next(info for info in archive.infolist() if "/data/" in info.filename)
        archive.filelist += [first] * 50
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="claims more bytes than it has"):
        read(old)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(1).expand(10**6, 10**6), torch.ones(8)[:4].as_strided((1000, 1000), (0, 0))],
)
def test_an_expanded_tensor_is_refused(tensor: Any, save: Save) -> None:
    with pytest.raises(Refused, match=r"claims .* bytes for a, more than are stored"):
        read(save({"a": tensor}))


@pytest.mark.parametrize("claimed", [78, 200, 2**30])
def test_a_size_that_the_records_do_not_have_is_refused(claimed: int, tmp_path: Path) -> None:
    old = saved(tmp_path / "old.pt", {"a": torch.ones(77), "b": torch.ones(500)})
    wanted = b"J" + claimed.to_bytes(4, "little")
    with pytest.raises((Refused, RunError)):
        read(rewritten(old, lambda data: data.replace(b"KM", wanted)))


def test_many_views_of_one_tensor_do_not_fill_the_disk(save: Save) -> None:
    tied = torch.zeros(1 << 16)
    with pytest.raises(Refused, match="more than 4 times its own size"):
        read(save({str(n): tied for n in range(200)}))


def test_recursive_containers_are_refused(save: Save) -> None:
    endless: list[Any] = [torch.ones(1)]
    endless.append(endless)
    with pytest.raises(Refused, match="more than 32 deep"):
        read(save(endless))
    laughs: Any = [0]
    for _ in range(25):
        laughs = [laughs] * 10
    with pytest.raises(Refused, match="more than 200,000 values"):
        read(save({"a": laughs}))


def test_a_file_beyond_the_size_limit_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: Path
) -> None:
    old = saved(tmp_path / "old.pt", {"a": torch.ones(1000)})
    monkeypatch.setattr(sandbox, "MAX_BYTES", 100)
    with pytest.raises(RunError, match="more than 100: convert it where you trust it"):
        to_safetensors(old, out / NEW)


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: Path) -> None:
    old = saved(tmp_path / "old.pt", {"a": torch.ones(10)})
    monkeypatch.setattr(sandbox, "SECONDS", 0.01)
    with pytest.raises(RunError, match=r"was not read within 0\.01 seconds"):
        to_safetensors(old, out / NEW)


LIMITED = """
import resource
from quintet.engine.models.sandbox import set_limits
set_limits(1000, {memory}, 5)
{act}
"""


@pytest.mark.parametrize(
    ("act", "ended"),
    [
        ("bytearray(400_000_000)", "MemoryError"),
        ("while True: pass", ""),
        ("open('large', 'wb').write(bytes(200_000_000))", "File too large"),
        ("held = [open('/dev/null') for _ in range(100)]", "Too many open files"),
    ],
)
def test_memory_time_disk_and_handles_are_limited(act: str, ended: str, tmp_path: Path) -> None:
    code = LIMITED.format(memory=300_000_000, act=act).replace(", 5)", ", 1)")
    how = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 30}
    said = subprocess.run([sys.executable, "-c", code], check=False, **how)  # type: ignore[call-overload]
    assert said.returncode != 0
    assert ended in said.stderr


# -- files from before torch 1.6: five pickles, then the numbers --------------------------------


START = b"".join(pickle.dumps(value, 2) for value in (torch.serialization.MAGIC_NUMBER, 1001, {}))


def legacy(path: Path, edit: Callable[[bytes], bytes], **tensors: Any) -> Path:
    saved(path, tensors, archive=False)
    path.write_bytes(edit(path.read_bytes()))
    return path


@pytest.mark.parametrize("claimed", [78, 200, 2**30])
def test_numbers_that_are_not_there_are_refused(claimed: int, tmp_path: Path) -> None:
    """More than the file has, and more than stand there for this tensor."""
    wanted = b"J" + claimed.to_bytes(4, "little")
    old = legacy(
        tmp_path / "old.pt",
        lambda data: data.replace(b"KM", wanted),
        a=torch.ones(77),
        b=torch.ones(500),
    )
    with pytest.raises(Refused, match=r"claims more bytes|storage has wrong byte size"):
        read(old)


def test_a_claim_beyond_all_memory_is_a_sentence(tmp_path: Path) -> None:
    wanted = b"\x8a\x06" + (2**43).to_bytes(6, "little")
    old = legacy(tmp_path / "old.pt", lambda data: data.replace(b"KM", wanted), a=torch.ones(77))
    with pytest.raises(Refused, match="claims more bytes for its tensors than it has"):
        read(old)


def test_numbers_left_out_are_zeros_and_not_memory_of_the_process(tmp_path: Path) -> None:
    """The list of storages at the end leaves out the only one."""
    no_keys = pickle.dumps([], 2)

    def without_keys(data: bytes) -> bytes:
        start = data.rindex(b"\x80\x02]")
        return data[:start] + no_keys + data[start + len(no_keys) :]

    old = legacy(tmp_path / "old.pt", without_keys, a=torch.ones(5000))
    for _ in range(20):
        torch.ones(5000)  # freed, so that new memory is not zero by itself
        assert not read(old)["a"].any()


def test_a_tensor_without_numbers_in_the_file_is_refused(save: Save) -> None:
    """The reader knows the types of tensors, which are made of a size alone."""
    with pytest.raises(Refused, match=r"claims more bytes|has no numbers in the file"):
        read(save({"a": Trap(torch.FloatTensor, 20), "b": torch.ones(10)}))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"T\x02\x00\x00\x00ab.", r"\(Unsupported operand 84\)"),
        (b"", r"\(it ends too early\)"),
    ],
)
def test_the_reason_is_that_of_the_reader(body: bytes, reason: str, tmp_path: Path) -> None:
    """And not torch's advice to read the file without protection."""
    old = tmp_path / "old.pt"
    old.write_bytes(START + b"\x80\x02" + body)
    with pytest.raises(Refused, match=reason):
        read(old)


def test_a_legacy_pickle_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = saved(tmp_path / "old.pt", {"a": torch.ones(1), "s": "x" * 3000}, archive=False)
    monkeypatch.setattr(sandbox, "DIRECTORY_BYTES", 3000)
    with pytest.raises(Refused, match="its directory is missing or too large"):
        read(old)


def test_a_pickle_bomb_ends_at_the_limit_of_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: Path
) -> None:
    """Each byte of the file is a list."""
    old = tmp_path / "old.pt"
    old.write_bytes(START + b"\x80\x02" + b"]" * 1_000_000)
    monkeypatch.setattr(sandbox, "MEMORY", 10_000_000)
    with pytest.raises(RunError, match="memory"):
        to_safetensors(old, out / NEW)
    assert list(out.iterdir()) == []


# -- other content ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a": torch.ones(2).to_sparse()}, "sparse|cannot be read|no tensor"),
        ({"step": 3}, "holds no tensors"),
        ({"a": {0: torch.ones(1), "0": torch.ones(1)}}, "the name a/0 twice"),
        ({"__metadata__": torch.ones(1)}, "__metadata__"),
        ({(1, 2): torch.ones(1)}, "a name that is tuple"),
    ],
)
def test_unsupported_values_are_refused_by_name(content: Any, reason: str, save: Save) -> None:
    with pytest.raises(Refused, match=reason):
        read(save(content))


@pytest.mark.parametrize("kept", [0, 3, 100, 700, -1, -30, -200])
def test_a_truncated_file_is_refused(kept: int, save: Save) -> None:
    old = save(old_checkpoint())
    old.write_bytes(old.read_bytes()[:kept])
    with pytest.raises(Refused):
        read(old)


def test_flipped_bits_are_refused_or_change_numbers_only(save: Save, tmp_path: Path) -> None:
    """No exception of another kind, wherever they are."""
    import random

    whole, chance = save(old_checkpoint()).read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 4))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (tmp_path / "bad.pt").write_bytes(data)
        try:
            read(tmp_path / "bad.pt")
        except Refused:
            refused += 1
    assert 0 < refused < 150
