"""`quintet doctor` as a user calls it: with nothing, a recipe, a folder of data, or a run."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import TINY, Quintet, Said, picture

from quintet.cli.doctor import command
from quintet.media.audio import write_wav

SMALL = [word for word in TINY if word not in ("--keep-last", "10")]


def sentence(said: Said) -> str:
    """The one line that refuses what was asked."""
    spoken = [line for line in said.err.splitlines() if line.startswith("quintet: ")]
    assert said.status == 2, said
    assert len(spoken) == 1, said
    return spoken[0]


# -- the machine ----------------------------------------------------------------------------


def test_the_machine_is_described_and_nothing_is_left_in_the_folder(
    quintet: Quintet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = quintet("doctor")
    assert said.status == 0
    for word in ("torch", "cores", "threads", "shared memory", "MB/s", "for reading and writing"):
        assert word in said.out
    assert "quintet[" in said.out or "trackio" not in said.out, "brackets are shown, not read"
    assert list(tmp_path.iterdir()) == []


# -- words that are nothing -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "own", "line"),
    [
        ("image", "a.png", "1 .glb, 1 .mp4, 1 .wav"),
        ("video", "a.gif", "1 .glb, 1 .wav"),
        ("speech", "a.wav", "1 .glb, 1 .mp4, 1 .png"),
        ("music", "a.wav", "1 .glb, 1 .mp4, 1 .png"),
        ("mesh", "a.glb", "1 .mp4, 1 .wav"),  # pictures are textures
    ],
)
def test_files_of_other_media_are_counted(room: str, own: str, line: str, tmp_path: Path) -> None:
    from quintet import rooms
    from quintet.media.folder import listing
    from quintet.media.splits import passed_over

    kind = rooms.Room(room).data.Folder
    for name in {own, "b.glb", "b.mp4", "b.png", "b.wav"}:
        (tmp_path / name).touch()
    (said,) = passed_over(listing(tmp_path, kind.suffixes, kind.left_out()))
    assert sorted(said.rpartition(": ")[2].split(", ")) == line.split(", ")


def test_a_clip_among_pictures_is_counted_by_training_and_the_doctor(
    quintet: Quintet, photos: Path, tmp_path: Path
) -> None:
    (photos / "clip.mp4").touch()
    line = "left out, formats that are not read: 1 .mp4"
    flags = ["--steps", 1, "--model.dim", 16, "--images.size", 16, 16, "--workers", 0]
    train = ["train", "image/vqgan_tiny", photos, *flags, "--run", tmp_path / "run"]
    assert line in quintet(*train).err
    assert line in quintet("doctor", "image", photos).out


def test_an_unknown_argument_is_an_error_with_suggestions(quintet: Quintet, tmp_path: Path) -> None:
    said = sentence(quintet("doctor", "frobnicate"))
    assert "neither a room (image, mesh" in said
    assert "nor a recipe" in said
    assert "did you mean image/vqgan" in sentence(quintet("doctor", "image/vqgam"))
    assert "quintet doctor image FOLDER" in sentence(quintet("doctor", "image"))
    assert "it is not a run" in sentence(quintet("doctor", tmp_path))
    assert "neither" in sentence(quintet("doctor", tmp_path, tmp_path))


# -- a recipe -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_recipe_is_measured_before_it_is_trained(
    quintet: Quintet, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = quintet("doctor", "image/vqgan_tiny", photos, *SMALL)
    assert said.status == 0, said
    for word in ("fits: ", "samples/s", "step from 3 on", "for 6 steps", "at once", "free here"):
        assert word in said.out
    assert list(place.iterdir()) == []
    said = quintet("doctor", "image/vqgan_tiny", tmp_path / "nowhere", *SMALL)
    assert "does not exist" in sentence(said)


def test_a_recipe_takes_the_flags_of_train(quintet: Quintet, tmp_path: Path) -> None:
    assert "batch_size is 0" in quintet("doctor", "image/vqgan_tiny", "--batch-size", 0).err
    assert quintet("doctor", "image/vqgan_tiny", "--frobnicate").status == 2
    assert "--model.dim" in quintet("doctor", "image/vqgan_tiny", "--help").out


def test_a_recipe_with_stages_requires_them(
    quintet: Quintet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "START", "forkserver")  # a new process would import torch again
    assert "set --autoencoder to a run of" in sentence(quintet("doctor", "mesh/transformer_tiny"))


# -- a folder -------------------------------------------------------------------------------


def test_a_folder_is_described_completely(quintet: Quintet, photos: Path) -> None:
    shutil.copy(photos / "00.png", photos / "copy.png")
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n")
    rows = [{"file_name": "00.png", "text": "a"}, {"file_name": "01.png", "text": "b"}]
    (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = quintet("doctor", "image", photos)
    assert said.status == 0
    assert "14 files, 13 usable, 1 skipped by training" in said.out
    assert "broken.png: " in said.out
    assert "pixels of the shorter side:" in said.out
    assert "█" in said.out
    assert "12 of 14 files have none, 02.jpg is the first without" in said.out
    assert "1 files are copies of other files" in said.out
    assert "00.png = copy.png" in said.out
    assert "held out: 3 of 14 files" in said.out
    assert "reading" not in said.err, "a progress bar is for terminals"


def test_captions_that_are_cut_or_of_no_file_are_counted(quintet: Quintet, photos: Path) -> None:
    rows = [{"file_name": name, "text": "word " * 30} for name in ("00.png", "gone.png")]
    (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = quintet("doctor", "image", photos)
    assert "captions for image/maskgit: 1 of 1 captions have more than 95 bytes" in said.out
    assert "captions for image/maskgit_tiny: 1 of 1 captions have more than 15 words" in said.out
    assert "its metadata names files that do not exist: 1, gone.png is the first" in said.err


def test_copies_in_both_splits_are_reported(quintet: Quintet, tmp_path: Path) -> None:
    first = picture(tmp_path / "00.png", 1)
    for number in range(1, 12):
        shutil.copy(first, tmp_path / f"{number:02d}.png")
    assert "1 groups are in both splits" in quintet("doctor", "image", tmp_path).out


def test_audio_without_a_caption_is_counted_and_durations_shown(
    quintet: Quintet, tmp_path: Path
) -> None:
    for number in range(6):
        tone = np.sin(np.arange(8000 * (number + 1)) * 0.1) * 0.5
        write_wav(tmp_path / f"{number}.wav", tone, 16_000)
        if number:
            (tmp_path / f"{number}.txt").write_text(f"tone {number}")
    said = quintet("doctor", "music", tmp_path)
    assert said.status == 0, said
    assert "6 files, 5 usable, 1 skipped" in said.out
    assert "seconds:" in said.out
    assert "1 of 6 files have none, 0.wav is the first without; they are left out" in said.out
    assert "held out: 1 of 5 files" in said.out


# -- a run ----------------------------------------------------------------------------------


def files(run: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def test_a_finished_run_has_no_faults(quintet: Quintet, trained: Path) -> None:
    before = files(trained)
    said = quintet("doctor", trained)
    assert said.status == 0, said
    assert "4 intact checkpoints, the newest at step 6" in said.out
    assert "No faults found" in said.out
    assert files(trained) == before


def test_each_fault_of_a_damaged_run_comes_with_its_repair(quintet: Quintet, copied: Path) -> None:
    newest = copied / "checkpoints/step-00000006"
    os.truncate(newest / "vae.safetensors", 100)
    (copied / "best.json").write_text("{}")
    said = quintet("doctor", copied)
    assert "2 faults" in sentence(said)
    assert "vae.safetensors has 100 bytes" in said.out
    assert f"`quintet resume {copied}` resumes from step 4" in said.out
    assert f"delete {copied / 'best.json'};" in said.out


def test_a_run_with_a_changed_recipe_is_reported(quintet: Quintet, copied: Path) -> None:
    page = json.loads((copied / "config.json").read_text())
    page["settings"]["model"]["dim"] = 32
    (copied / "config.json").write_text(json.dumps(page))
    said = quintet("doctor", copied)
    assert said.status == 2
    assert "the recipe builds" in said.out
    page["settings"]["model"]["dim"] = "wide"
    (copied / "config.json").write_text(json.dumps(page))
    said = quintet("doctor", copied)
    assert "model.dim is 'wide'" in said.out
    page["recipe"] = "os/system"
    (copied / "config.json").write_text(json.dumps(page))
    assert "no recipe 'os/system'" in quintet("doctor", copied).out


def test_an_exported_model_is_not_a_run(quintet: Quintet, exported: Path) -> None:
    said = quintet("doctor", exported)
    assert said.status == 2
    assert "exported model" in said.out + said.err


def test_hostile_text_in_a_run_does_not_reach_the_terminal(quintet: Quintet, copied: Path) -> None:
    page = json.loads((copied / "config.json").read_text())
    page["settings"]["\x1b[2J"] = 1
    (copied / "config.json").write_text(json.dumps(page))
    said = quintet("doctor", copied)
    assert said.status == 2
    assert "\x1b" not in said.out + said.err


# -- --auto-batch ----------------------------------------------------------------------------------


def test_train_with_auto_batch_reports_the_micro_batch(quintet: Quintet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = quintet("train", "image/vqgan_tiny", "--run", run, *SMALL, "--steps", 2, "--auto-batch")
    assert said.status == 0, said
    assert "4 of 4 samples fit at a time" in said.err
    assert json.loads((run / "config.json").read_text())["auto_batch"] == {"asked": 4, "found": 4}
    assert quintet("resume", run, "--steps", 3).status == 0
    assert quintet("doctor", run).status == 0
