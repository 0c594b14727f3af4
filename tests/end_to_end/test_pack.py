"""`quintet pack`, and training from what it packs, through the command line."""

import json
import tarfile
from pathlib import Path

import pytest
from command import Quintet, Said, picture

from harness import assert_same, lines, run, tensors, trajectory
from quintet import rooms
from quintet.media.shards.index import Index

FEW = [
    *("--steps", "4", "--batch-size", "4", "--workers", "0", "--precision", "fp32"),
    *("--device", "cpu", "--trackers", "--images.size", "16", "16", "--model.dim", "16"),
    *("--images.valid-limit", "4", "--losses.adversarial", "none"),
    *("--evaluate-every", "4", "--save-every", "2", "--log-every", "1"),
]


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    folder = tmp_path / "captioned"
    for index in range(24):
        picture(folder / f"{'sub/' if index > 15 else ''}{index:02d}.png", index)
    rows = [{"file_name": f"{index:02d}.png", "text": f"number {index}"} for index in range(16)]
    (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


@pytest.fixture
def shards(quintet: Quintet, captioned: Path, tmp_path: Path) -> Path:
    """The same, packed."""
    said = quintet("pack", captioned, tmp_path / "shards", "--room", "image")
    assert said.status == 0, said
    return tmp_path / "shards"


def train(quintet: Quintet, data: object, folder: Path, *more: object) -> Said:
    return quintet("train", "image/vqgan_tiny", data, "--run", folder, *FEW, *more)


def sentence(said: Said) -> str:
    assert said.status == 2, said
    spoken = [line for line in said.err.splitlines() if line.startswith("quintet: ")]
    assert len(spoken) == 1, said
    return spoken[0]


def test_training_from_shards_equals_training_from_the_folder(quintet, captioned, shards, tmp_path):
    for data, name in ((captioned, "loose"), (shards, "packed")):
        assert train(quintet, data, tmp_path / name).status == 0
    assert trajectory(tmp_path / "loose") == trajectory(tmp_path / "packed")
    assert_same(tensors(tmp_path / "loose", 4), tensors(tmp_path / "packed", 4))


def test_what_was_packed_is_said(quintet, captioned, tmp_path):
    said = quintet("pack", captioned, tmp_path / "out")
    assert said.status == 0
    assert "24 images in 1 shards" in said.out
    assert "quintet train image/" in said.out


@pytest.mark.parametrize("room", ["music", "speech"])
def test_a_folder_that_two_rooms_read_needs_the_room(quintet, tmp_path, room):
    folder = tmp_path / "sounds"
    folder.mkdir()
    (folder / "a.wav").write_bytes(b"no sound")
    (folder / "a.txt").write_text("a text")
    assert "music or speech; give --room" in sentence(quintet("pack", folder, tmp_path / "out"))
    said = quintet("pack", folder, tmp_path / "out", "--room", room)
    assert said.status == 0
    assert "a.wav: its header cannot be read" in said.out


def test_what_cannot_be_packed_is_refused_in_a_sentence(quintet, captioned, shards, tmp_path):
    out = tmp_path / "new"
    assert "not empty" in sentence(quintet("pack", captioned, shards, "--room", "image"))
    assert "does not exist" in sentence(quintet("pack", tmp_path / "nothing", out))
    assert "no room 'poems'" in sentence(quintet("pack", captioned, out, "--room", "poems"))
    assert "no meshes" in sentence(quintet("pack", captioned, out, "--room", "mesh"))
    assert "--shard-mb" in sentence(quintet("pack", captioned, out, "--shard-mb", "0"))
    assert not out.exists()


def test_foreign_shards_train(quintet, captioned, tmp_path):
    with tarfile.open(tmp_path / "foreign.tar", "w") as archive:
        for path in sorted(captioned.rglob("*.png")):
            archive.add(path, f"{path.stem}.png")
    said = train(quintet, tmp_path / "foreign.tar", tmp_path / "run")
    assert said.status == 0, said
    assert len(trajectory(tmp_path / "run")) == 5


def test_a_window_resumes_exactly_and_is_another_order(quintet, shards, tmp_path):
    data = f"{shards}#window=8"
    assert train(quintet, shards, tmp_path / "plain").status == 0
    assert train(quintet, data, tmp_path / "whole").status == 0
    assert train(quintet, data, tmp_path / "parts", "--steps", "2").status == 0
    assert quintet("resume", tmp_path / "parts", "--steps", "4").status == 0
    orders = {
        name: [line["order"] for line in lines(tmp_path / name) if "order" in line]
        for name in ("plain", "whole", "parts")
    }
    assert orders["whole"] == orders["parts"]
    assert orders["whole"] != orders["plain"]


def test_an_address_trains_like_the_folder_at_it(quintet, shards, tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    for path in shards.iterdir():
        memory.pipe_file(f"/end/{path.name}", path.read_bytes())
    try:
        for data, name in ((shards, "near"), ("memory://end", "far")):
            assert train(quintet, data, tmp_path / name).status == 0
    finally:
        memory.rm("/end", recursive=True)
    assert trajectory(tmp_path / "near") == trajectory(tmp_path / "far")


def test_a_damaged_sample_is_named_and_the_run_goes_on(quintet, shards, tmp_path):
    path = shards / "shard-000000.tar"
    index = Index(shards / "shard-000000.index", path.name, path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[int(index.offset[3]) + 60] ^= 1
    path.write_bytes(content)
    said = train(quintet, shards, tmp_path / "run", "--steps", "8", "--max-damaged", "0.5")
    assert said.status == 0, said
    assert "shard-000000.tar" in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_missing_shard_and_a_damaged_index_stop_the_run_at_its_start(quintet, shards, tmp_path):
    index = shards / "shard-000000.index"
    index.write_bytes(index.read_bytes()[:-9])
    assert "shard-000000.index" in sentence(train(quintet, shards, tmp_path / "run"))
    (shards / "shard-000000.tar").unlink()
    assert "shard-000000.tar is missing" in sentence(train(quintet, shards, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_read_the_order_that_one_reads(shards, tmp_path):
    recipe = rooms.recipe_function("image/vqgan_tiny")()
    from dataclasses import replace

    settings = replace(
        recipe,
        data=f"{shards}#window=8",
        steps=3,
        batch_size=4,
        accumulate=1,
        workers=1,
        device="cpu",
        precision="fp32",
        trackers=(),
        log_every=1,
    )
    run(replace(settings, batch_size=8), tmp_path / "one", name="image/vqgan_tiny")
    run(settings, tmp_path / "two", size=2, name="image/vqgan_tiny")
    orders = [
        [line["order"] for line in lines(tmp_path / name) if "order" in line]
        for name in ("one", "two")
    ]
    assert orders[0] == orders[1]
    assert len(orders[0]) == 3
