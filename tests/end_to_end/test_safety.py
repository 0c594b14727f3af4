"""No file that Quintet reads can run code, and nothing leaves the folder it was given.

Every trap is a pickle that would create a canary; after each attempt there must be none.
"""

import json
import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import TINY, Quintet, picture

import quintet as library
from harness import lines
from quintet.engine.errors import RunError
from quintet.files import digest_of

TRAIN = ["train", "image/vqgan_tiny"]


class Trap:
    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.canary),)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that makes a folder when it is loaded; the test fails if the folder appears."""
    canary = tmp_path / "canary"
    yield pickle.dumps({"weight": Trap(canary)})
    assert not canary.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


def plant(checkpoint: Path, name: str, content: bytes) -> None:
    """Put a file into a checkpoint, with a size and a digest that vouch for it."""
    (checkpoint / name).write_bytes(content)
    state = json.loads((checkpoint / "state.json").read_text())
    digest = digest_of(checkpoint / name)
    state["files"][name] = {"bytes": len(content), "sha256": digest}
    (checkpoint / "state.json").write_text(json.dumps(state))


# -- weights --------------------------------------------------------------------------------


@pytest.mark.by_default("vae.safetensors-*")
@pytest.mark.parametrize("command", ["resume", "evaluate", "sample"])
@pytest.mark.parametrize(
    "name", ["vae.safetensors", "vae.ema.safetensors", "vae.optim.safetensors"]
)
def test_a_pickle_in_place_of_a_checkpoints_file_is_refused(
    command: str, name: str, trap: bytes, copied: Path, quintet: Quintet
) -> None:
    checkpoints = list((copied / "checkpoints").iterdir())
    for checkpoint in checkpoints:
        plant(checkpoint, name, trap)
    said = quintet(command, copied)
    assert said.status == 2
    assert f"none of the {len(checkpoints)} checkpoints" in said.err


def test_replay_passes_a_pickle_over(trap: bytes, copied: Path, quintet: Quintet) -> None:
    """It goes back to the start instead, which gives the same numbers."""
    before = quintet("replay", copied, "--step", 2)
    for checkpoint in (copied / "checkpoints").iterdir():
        plant(checkpoint, "vae.safetensors", trap)
    after = quintet("replay", copied, "--step", 2)
    assert after.status == 0
    assert after.out == before.out


def test_pickles_beside_a_checkpoint_are_never_opened(
    trap: bytes, copied: Path, quintet: Quintet
) -> None:
    for place in ("checkpoints/step-00000006", "checkpoints", "."):
        for name in ("vae.pt", "pytorch_model.bin", "optimizer.bin", "random_states_0.pkl"):
            (copied / place / name).write_bytes(trap)
    assert quintet("resume", copied, "--steps", 7).status == 0
    assert quintet("evaluate", copied).status == 0


def test_a_pickle_as_exported_weights_is_refused(
    trap: bytes, trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    model = tmp_path / "model"
    assert quintet("export", trained, model).status == 0
    (model / "model.safetensors").write_bytes(trap)
    with pytest.raises(RunError, match=r"model\.safetensors cannot be read"):
        library.VQGanVAE.from_pretrained(model)
    with pytest.raises(RunError, match=r"model\.safetensors cannot be read"):
        library.load(model)
    said = quintet(*TRAIN, "--run", tmp_path / "run", *TINY, "--init-from", model)
    assert said.status == 2
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(trap)
    with pytest.raises(RunError, match=r"model\.safetensors"):
        library.VQGanVAE.from_pretrained(model)


def test_a_pickle_as_ids_is_refused(
    trap: bytes, trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    for name in ("x.ids.safetensors", "x.pt", "x.png"):
        (tmp_path / name).write_bytes(trap)
        said = quintet("sample", trained, tmp_path / name, "--out", tmp_path / "out")
        assert said.status == 2
        assert name in said.err


def test_a_header_that_claims_more_than_the_file_holds_is_refused(
    copied: Path, quintet: Quintet
) -> None:
    claim = b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    content = struct.pack("<Q", len(claim)) + claim
    for checkpoint in (copied / "checkpoints").iterdir():
        plant(checkpoint, "vae.safetensors", content)
    assert quintet("evaluate", copied).status == 2


# -- names in files -------------------------------------------------------------------------

NAMES = ["os/system", "image/../x", "image/os", "image/recipes", "../image/vqgan", "image/vqgan\n"]
NAMES += ["image/__import__", "image.recipes/vqgan", "engine/launch", "quintet.image/vqgan_tiny"]


@pytest.mark.by_default("evaluate-*", "*-os/system", "*-image/../x")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["resume", "evaluate", "sample", "report"])
def test_a_recorded_recipe_is_looked_up_and_never_imported(
    command: str, name: str, copied: Path, quintet: Quintet
) -> None:
    about = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**about, "recipe": name}))
    said = quintet(command, copied)
    assert said.status == 2
    assert "there is no recipe" in said.err


@pytest.mark.parametrize("name", ["os/system", "image/nn", "image/torch", "image/Any", "image/", 3])
def test_an_exported_class_is_looked_up_and_never_imported(
    name: object, exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    import shutil

    model = Path(shutil.copytree(exported, tmp_path / "model"))
    about = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**about, "model": name}))
    with pytest.raises(RunError, match="not Quintet's"):
        library.load(model)
    with pytest.raises(RunError, match="not image/vqgan"):
        library.VQGanVAE.from_pretrained(model)
    assert quintet("sample", model).status == 2


def test_a_state_page_cannot_point_out_of_its_checkpoint(
    trap: bytes, copied: Path, tmp_path: Path, quintet: Quintet
) -> None:
    """The name in state.json leads to an intact file elsewhere; it must not be read from there."""
    outside = tmp_path / "outside.safetensors"
    for checkpoint in (copied / "checkpoints").iterdir():
        state = json.loads((checkpoint / "state.json").read_text())
        facts = state["files"].pop("vae.safetensors")
        os.replace(checkpoint / "vae.safetensors", outside)
        state["files"]["../../../outside.safetensors"] = facts
        (checkpoint / "state.json").write_text(json.dumps(state))
    for command in ("resume", "evaluate", "sample"):
        said = quintet(command, copied)
        assert said.status == 2
        assert "intact" in said.err
    assert outside.exists()


# -- data -----------------------------------------------------------------------------------


def bomb(path: Path, side: int = 60_000) -> Path:
    """A PNG of a few bytes whose header promises 3.6 billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
        + chunk(b"IEND", b"")
    )
    return path


@pytest.fixture
def booby_trapped(tmp_path: Path, trap: bytes) -> Path:
    """Forty readable images among six damaged ones, and traps under other names."""
    folder = tmp_path / "photos"
    for index in range(40):
        picture(folder / f"{index:02d}.png", index, 36, 36)
    bomb(folder / "bomb.png")
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("a cat sat on a mat")
    (folder / "pickle.png").write_bytes(trap)
    (folder / "pickle.jpg").write_bytes(trap)
    (folder / "cut.png").write_bytes((folder / "00.png").read_bytes()[:200])
    for name in ("weights.pt", "data.pkl", "array.npy", "conftest.py", "metadata.pkl"):
        (folder / name).write_bytes(trap)
    return folder


BAD = {"bomb.png", "empty.png", "text.png", "pickle.png", "pickle.jpg", "cut.png"}
WHOLE = ["--images.valid-fraction", 0.05, "--batch-size", 8]


def test_damaged_images_are_skipped_counted_and_named(
    booby_trapped: Path, tmp_path: Path, quintet: Quintet
) -> None:
    run = tmp_path / "run"
    said = quintet(*TRAIN, booby_trapped, "--run", run, *TINY, *WHOLE, "--max-damaged", 0.5)
    assert said.status == 0, said.err
    messages = [e["message"] for e in lines(run, "events") if "skipped" in e["message"]]
    named = {name for name in BAD for message in messages if f"/{name}:" in message}
    assert len(named) >= 4  # six steps of eight meet nearly all of the forty-four once
    assert len(messages) == len(named)
    assert sum(r.get("data/damaged", 0) for r in lines(run)) >= len(named)
    assert all(
        message in (run / "report.html").read_text().replace("&#x27;", "'") for message in messages
    )


def test_past_the_stated_share_of_damage_the_run_is_refused(
    booby_trapped: Path, tmp_path: Path, quintet: Quintet
) -> None:
    words = [*TRAIN, booby_trapped, "--run", tmp_path / "run", *TINY, *WHOLE]
    said = quintet(*words, "--max-damaged", 0.02)
    assert said.status == 2
    assert "max_damaged = 2%" in said.err
    assert "quintet doctor" in said.err


def test_a_folder_of_nothing_but_damage_is_refused(
    trap: bytes, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "photos").mkdir()
    for index in range(20):
        (tmp_path / f"photos/{index}.png").write_bytes(trap + bytes([index]))
    said = quintet(*TRAIN, tmp_path / "photos", "--run", tmp_path / "run", *TINY)
    assert said.status == 2
    assert "could not be read" in said.err


def test_damaged_held_out_images_are_named_too(tmp_path: Path, quintet: Quintet) -> None:
    from quintet.image.config import ImageDataConfig
    from quintet.image.data import ImageFolder

    photos, run = tmp_path / "photos", tmp_path / "run"
    for index in range(20):
        picture(photos / f"{index:02d}.png", index, 36, 36)
    held = ImageFolder(photos, ImageDataConfig(valid_fraction=0.3), "valid", 0)
    victim = held.name(0)
    (photos / victim).write_bytes(b"")
    said = quintet(*TRAIN, photos, "--run", run, *TINY, "--images.valid-fraction", 0.3)
    assert said.status == 0, said.err
    assert any(victim in e["message"] for e in lines(run, "events"))


def test_doctor_opens_every_trap_and_springs_none(booby_trapped: Path, quintet: Quintet) -> None:
    said = quintet("doctor", "image", booby_trapped)
    assert said.status == 0
    assert "46 files, 40 usable, 6" in said.out
    for name in BAD:
        assert name in said.out


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "..\\secret.png", "a/../../x.png"]
)
def test_metadata_cannot_lead_out_of_the_folder(
    name: str, photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    picture(tmp_path / "secret.png", 1)
    (photos / "metadata.jsonl").write_text(json.dumps({"file_name": name, "text": "x"}) + "\n")
    said = quintet(*TRAIN, photos, "--run", tmp_path / "run", *TINY)
    assert said.status == 2
    assert "metadata.jsonl" in said.err
    assert "leads out of the folder" in said.err


def test_links_that_lead_out_of_the_folder_are_not_followed(
    photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "private").mkdir()
    picture(tmp_path / "private/secret.png", 1)
    (photos / "link.png").symlink_to(tmp_path / "private/secret.png")
    (photos / "folder").symlink_to(tmp_path / "private")
    assert "12 files" in quintet("doctor", "image", photos).out
    run = tmp_path / "run"
    words = ["--steps", 3, "--log-every", 1, "--images.valid-fraction", 0.1]
    assert quintet(*TRAIN, photos, "--run", run, *TINY, *words).status == 0
    assert not [e for e in lines(run, "events") if "link" in e["message"]]


def test_control_characters_in_a_files_name_do_not_reach_the_terminal(
    photos: Path, quintet: Quintet
) -> None:
    (photos / "evil\x1b[2Jname.png").write_bytes(b"")
    assert "\x1b" not in quintet("doctor", "image", photos).out


# -- links in a run folder that came from elsewhere -----------------------------------------


@pytest.mark.by_default("metrics.jsonl", "config.json", ".report.html.writing")
@pytest.mark.parametrize(
    "name",
    [
        ".report.html.writing",
        ".config.json.writing",
        ".metrics.jsonl.writing",
        ".events.jsonl.writing",
        "metrics.jsonl",
        "events.jsonl",
        "report.html",
        "config.json",
    ],
)
def test_a_link_in_a_run_folder_does_not_let_a_file_outside_be_changed(
    name: str, copied: Path, tmp_path: Path, quintet: Quintet
) -> None:
    outside = tmp_path / "outside"
    content = (copied / name).read_bytes() if (copied / name).exists() else b"mine\n"
    outside.write_bytes(content)
    (copied / name).unlink(missing_ok=True)
    (copied / name).symlink_to(outside)
    quintet("resume", copied, "--steps", 7)
    quintet("report", copied)
    assert outside.read_bytes() == content


def test_the_page_holds_no_picture_from_outside_the_run(
    copied: Path, tmp_path: Path, quintet: Quintet
) -> None:
    import base64

    secret = picture(tmp_path / "secret.png", 3)
    (copied / "exhibits/step-00000006/extra.png").symlink_to(secret)
    assert quintet("report", copied).status == 0
    held = base64.b64encode(secret.read_bytes()).decode()
    assert held[:200] not in (copied / "report.html").read_text()


# -- the page -------------------------------------------------------------------------------


def test_a_script_in_any_text_of_a_run_is_shown_and_not_run(copied: Path, quintet: Quintet) -> None:
    script = "<script>alert(1)</script>"
    evil = f'"><img src=x onerror=alert(1)>{script}'
    about = json.loads((copied / "config.json").read_text())
    about["settings"]["init_from"] = evil
    about |= {"processes": evil, "global_batch": evil, "note": evil}
    (copied / "config.json").write_text(json.dumps(about))
    (copied / "best.json").write_text(json.dumps({"metric": evil, "value": evil, "step": evil}))
    with open(copied / "events.jsonl", "a") as file:
        file.write(json.dumps({"step": evil, "message": evil}) + "\n")
        file.write(json.dumps({"message": [evil]}) + "\nnot json\n[1]\n")
    with open(copied / "metrics.jsonl", "a") as file:
        for step in (7, 8):
            file.write(json.dumps({"step": step, evil: step, f"val/{evil}": step}) + "\n")
        file.write(json.dumps({"step": evil, "val/x": evil, "samples_per_second": evil}) + "\n")
        file.write('{"step": 9, "val/psnr": NaN, "vae/loss": Infinity}\n')
    (copied / "exhibits/step-00000006" / "<script>.png").write_bytes(b"")
    said = quintet("report", copied)
    assert said.status == 0
    page = (copied / "report.html").read_text()
    assert page.count("<script") == 2  # the page's own
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
