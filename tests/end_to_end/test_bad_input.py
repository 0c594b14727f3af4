"""What a person gets wrong: a sentence that names it and the remedy, and exit status 2."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import TINY, Quintet, Said, picture

import quintet as library
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError

TRAIN = ["train", "image/vqgan_tiny"]


def assert_one_sentence(said: Said, *words: object) -> None:
    assert said.status == 2
    spoken = [line for line in said.err.splitlines() if line.startswith("quintet: ")]
    assert len(spoken) == 1, said.err
    for word in words:
        assert str(word) in spoken[0]


def assert_usage(said: Said, *words: str) -> None:
    """The parser's own box: it says what is wrong and where help is."""
    assert said.status == 2
    text = re.sub(r"[\s│╭╰─╮╯]+", " ", said.err)
    for word in (*words, "--help"):
        assert word in text


def change(run: Path, **settings: object) -> None:
    """Edit config.json as a person would; dots are written as double underscores."""
    path = run / "config.json"
    about = json.loads(path.read_text())
    for name, value in settings.items():
        *folders, last = name.split("__")
        place = about["settings"]
        for folder in folders:
            place = place[folder]
        place[last] = value
    path.write_text(json.dumps(about))


# -- words on the command line --------------------------------------------------------------


def test_an_unknown_command_is_answered_with_the_nearest_or_all(quintet: Quintet) -> None:
    assert_one_sentence(quintet("trian"), "'trian'; did you mean train?")
    assert_one_sentence(quintet("xyz"), "'xyz'", "train, resume")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("image/vqgna", "image/vqgan"), ("vqgan_tiny", "image/vqgan_tiny")),
        *(("Speech/VoiceBox", "speech/voicebox"), ("/mulan", "music/mulan")),
    ],
)
def test_a_mistyped_recipe_is_answered_with_the_one_meant(
    name: str, meant: str, quintet: Quintet
) -> None:
    assert_one_sentence(quintet("train", name), f"'{name}'; did you mean {meant}? (quintet list")


@pytest.mark.parametrize("name", ["image", "sound/x", "image/", "os/system"])
def test_an_unknown_recipe_is_answered_with_those_there_are(name: str, quintet: Quintet) -> None:
    assert_one_sentence(quintet("train", name), f"'{name}'", "image/vqgan_tiny", "quintet list")


def test_train_without_a_recipe_says_what_to_name(quintet: Quintet) -> None:
    assert_one_sentence(quintet("train"), "name a recipe")
    assert_one_sentence(quintet("sample"), "name a run")


def test_an_unknown_flag_is_named_with_the_nearest_one(tmp_path: Path, quintet: Quintet) -> None:
    said = quintet(*TRAIN, "--run", tmp_path / "run", "--sptes", 3)
    assert_usage(said, "--sptes", "Perhaps you meant", "--steps")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["list", "resume", "evaluate", "report", "replay", "doctor"])
def test_every_command_refuses_an_unknown_flag(
    command: str, trained: Path, quintet: Quintet
) -> None:
    said = quintet(command, *([] if command in ("list", "doctor") else [trained]), "--frobnicate")
    assert_usage(said, "--frobnicate")


def test_fp16_is_refused_with_what_is_allowed(tmp_path: Path, quintet: Quintet) -> None:
    said = quintet(*TRAIN, "--run", tmp_path / "run", "--precision", "fp16")
    assert_usage(said, "--precision", "fp16", "fp32", "bf16")
    with pytest.raises(ConfigError, match="bf16"):
        library.VQGanVAETrainer(library.VQGanVAE(dim=16), steps=1, precision="fp16")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--images.size", 36, 36], ["images.size", "(36, 36)", "factor 8"]),
        (["--steps", 0], ["steps is 0", "1 or more"]),
        (["--batch-size", 0], ["batch_size is 0"]),
        (["--losses.adversarial-from", 2], ["adversarial_from is 2", "between 0 and 1"]),
        (["--optim.learning-rate", 0], ["rate is 0", "above 0"]),
        (["--trackers", "paper"], ["trackers", "tensorboard"]),
    ],
)
def test_an_invalid_setting_is_named_with_the_remedy(
    flags: list, words: list[str], tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet(*TRAIN, "--run", tmp_path / "run", *TINY, *flags)
    assert said.status == 2
    text = re.sub(r"[\s│]+", " ", said.err)
    for word in words:
        assert word in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--images.min-crop", 0], "min_crop"),
        (["--images.valid-fraction", 1], "valid_fraction"),
        (["--images.valid-limit", 0], "valid_limit"),
        (["--images.size", 0, 0], "size"),
        (["--model.levels", 1, 1], "levels"),
        (["--losses.adversarial-cap", 0], "cap"),
    ],
)
def test_an_invalid_setting_of_the_room_is_named_too(
    flags: list, word: str, tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet(*TRAIN, "--run", tmp_path / "run", *TINY, *flags)
    assert said.status == 2
    assert word in said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed_in_a_sentence(
    tmp_path: Path, trained: Path, quintet: Quintet
) -> None:
    words = [*TRAIN, "--run", tmp_path / "run", *TINY, "--device", "cuda"]
    assert_one_sentence(quintet(*words), "cuda", "--device cpu")
    assert_one_sentence(quintet("evaluate", trained, "--device", "cuda"), "--device cpu")
    assert_usage(quintet("evaluate", trained, "--device", "tpu"), "tpu", "cuda")


# -- data -----------------------------------------------------------------------------------


def test_an_empty_folder_is_named_with_what_belongs_there(tmp_path: Path, quintet: Quintet) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/notes.txt").write_text("none yet")
    said = quintet(*TRAIN, tmp_path / "photos", "--run", tmp_path / "run", *TINY)
    assert_one_sentence(said, tmp_path / "photos", "no images", ".png")


def test_a_missing_folder_is_named(tmp_path: Path, quintet: Quintet) -> None:
    said = quintet(*TRAIN, tmp_path / "photos", "--run", tmp_path / "run", *TINY)
    assert_one_sentence(said, tmp_path / "photos", "does not exist")
    assert_one_sentence(quintet("doctor", "image", tmp_path / "photos"), "does not exist")
    assert_one_sentence(quintet("doctor", "sound", tmp_path), "image")


def test_a_file_where_a_folder_belongs_is_named(tmp_path: Path, quintet: Quintet) -> None:
    photo = picture(tmp_path / "one.png", 0)
    said = quintet(*TRAIN, photo, "--run", tmp_path / "run", *TINY)
    assert_one_sentence(said, photo, "not a folder")


def test_fewer_images_than_a_batch_are_counted(tmp_path: Path, quintet: Quintet) -> None:
    for index in range(4):
        picture(tmp_path / f"photos/{index}.png", index)
    said = quintet(*TRAIN, tmp_path / "photos", "--run", tmp_path / "run", *TINY)
    assert_one_sentence(said, "3 samples", "takes 4", "--batch-size")


def test_a_start_that_failed_does_not_stand_in_the_way_of_the_next(
    tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "photos").mkdir()
    words = [*TRAIN, tmp_path / "photos", "--run", tmp_path / "run", *TINY, "--steps", 1]
    assert quintet(*words).status == 2
    for index in range(6):
        picture(tmp_path / f"photos/{index}.png", index)
    said = quintet(*words)
    assert said.status == 0, said.err


class Bytes:
    """Images as floats of 0 to 255, as a person might have them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 16, 16), 30.0 * index)


def test_images_in_the_wrong_range_are_refused_at_the_first_batch(tmp_path: Path) -> None:
    vae = library.VQGanVAE(dim=8, channel_multipliers=(1, 2), num_res_blocks=1, attention_layers=0)
    trainer = library.VQGanVAETrainer(
        vae,
        dataset=Bytes(),
        steps=2,
        batch_size=4,
        workers=0,
        device="cpu",
        trackers=(),
        progress=False,
        run=tmp_path / "run",
    )
    with pytest.raises(RunError, match="divide by 255"):
        trainer.train()


# -- run folders ----------------------------------------------------------------------------


def test_an_existing_run_is_not_trained_over(trained: Path, quintet: Quintet) -> None:
    said = quintet(*TRAIN, "--run", trained, *TINY)
    assert_one_sentence(said, trained, "quintet resume", "--resume")


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path, quintet: Quintet) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("years of work")
    for words in ([], ["--resume"]):
        said = quintet(*TRAIN, "--run", tmp_path / "run", *TINY, *words)
        assert_one_sentence(said, tmp_path / "run", "choose another --run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "words",
    [
        ["resume"],
        ["evaluate"],
        ["report"],
        ["sample"],
        ["replay", "--step", "1"],
        ["export", "somewhere"],
    ],
)
def test_a_run_that_is_not_there_is_named(
    words: list[str], tmp_path: Path, quintet: Quintet
) -> None:
    command, *rest = words
    assert_one_sentence(quintet(command, tmp_path / "nowhere", *rest), tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert_one_sentence(quintet(command, tmp_path / "empty", *rest), tmp_path / "empty")


@pytest.mark.parametrize("words", [["resume"], ["report"], ["replay", "--step", "1"]])
def test_an_export_is_not_taken_for_a_run(
    words: list[str], exported: Path, quintet: Quintet
) -> None:
    command, *rest = words
    assert_one_sentence(quintet(command, exported, *rest), exported, "exported model")


def test_an_export_does_not_write_over_what_is_there(
    trained: Path, exported: Path, quintet: Quintet
) -> None:
    assert_one_sentence(quintet("export", trained, exported), exported, "choose a new folder")


HOLDER = """
import fcntl, os, sys, time
handle = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(copied: Path) -> Iterator[Path]:
    """A run whose folder another process holds."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(copied / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stdin
    assert child.stdout.readline().strip() == "held"
    yield copied
    child.stdin.close()
    child.wait(10)
    child.stdout.close()


def test_a_run_that_another_process_trains_is_left_alone(held: Path, quintet: Quintet) -> None:
    config = (held / "config.json").read_bytes()
    for words in (
        ["resume", held, "--steps", 8],
        ["resume", held, "--schedule-steps", 8],
        [*TRAIN, "--run", held, *TINY, "--resume"],
    ):
        assert_one_sentence(quintet(*words), held, "another process")
    assert (held / "config.json").read_bytes() == config
    assert quintet("evaluate", held).status == 0


def test_fewer_steps_than_were_taken_are_refused(copied: Path, quintet: Quintet) -> None:
    before = (copied / "config.json").read_bytes()
    assert_one_sentence(quintet("resume", copied, "--steps", 3), "at step 6 already")
    assert_one_sentence(quintet("resume", copied, "--schedule-steps", 0), "schedule_steps is 0")
    assert (copied / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sptes": 5}, ["config.json", "sptes"]),
        ({"model__dmi": 5}, ["config.json", "model.dmi"]),
        ({"steps": "many"}, ["config.json", "steps", "'many'", "int"]),
        ({"model__dim": 16.5}, ["config.json", "model.dim", "16.5"]),
        ({"images__size": [32]}, ["config.json", "images.size"]),
        ({"batch_size": -4}, ["config.json", "batch_size is -4"]),
        ({"images__size": [30, 30]}, ["config.json", "images.size", "factor"]),
        ({"model__multipliers": []}, ["config.json", "model"]),
        ({"precision": "fp16"}, ["config.json", "precision", "'bf16'"]),
        ({"vae": None}, ["config.json", "vae"]),
    ],
)
@pytest.mark.parametrize("command", ["resume", "evaluate", "sample"])
def test_an_edited_configuration_is_refused_by_the_fields_name(
    command: str, changes: dict, words: list[str], copied: Path, quintet: Quintet
) -> None:
    change(copied, **changes)
    assert_one_sentence(quintet(command, copied), *words)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"recipe": 3}', "\ufeff\0"])
def test_a_configuration_that_is_no_json_object_is_named(
    text: str, copied: Path, quintet: Quintet
) -> None:
    (copied / "config.json").write_text(text)
    assert_one_sentence(quintet("resume", copied), copied)


def test_a_configuration_nested_without_end_is_refused(copied: Path, quintet: Quintet) -> None:
    (copied / "config.json").write_text('{"a":' + "[" * 100_000)
    assert_one_sentence(quintet("resume", copied), "config.json")


def test_a_changed_model_is_refused_by_what_no_longer_fits(copied: Path, quintet: Quintet) -> None:
    change(copied, model__dim=32)
    said = quintet("evaluate", copied)
    assert_one_sentence(said, "has shape")


def test_a_seed_that_was_changed_does_not_go_unnoticed(copied: Path, quintet: Quintet) -> None:
    """config.json says one thing, the checkpoints another."""
    change(copied, seed=7)
    assert_one_sentence(quintet("resume", copied, "--steps", 7), "seed")


def test_a_run_without_a_sound_checkpoint_says_how_many_it_looked_at(
    copied: Path, quintet: Quintet
) -> None:
    folders = sorted((copied / "checkpoints").iterdir())
    for folder in folders:
        (folder / "vae.safetensors").write_bytes(b"cut short")
    for command in ("resume", "evaluate", "sample"):
        said = quintet(command, copied)
        assert_one_sentence(said, f"none of the {len(folders)} checkpoints", "backup")


def test_a_run_without_any_checkpoint_says_so(copied: Path, quintet: Quintet) -> None:
    shutil.rmtree(copied / "checkpoints")
    for command in ("evaluate", "sample"):
        assert_one_sentence(quintet(command, copied), copied, "no checkpoint")


def test_a_damaged_newest_checkpoint_is_named_when_a_model_is_loaded(
    copied: Path, quintet: Quintet
) -> None:
    (copied / "checkpoints/step-00000006/vae.safetensors").write_bytes(b"cut short")
    said = quintet("sample", copied, "--count", 1, "--out", copied / "out")
    assert said.status == 0
    assert "step-00000006 is damaged" in said.out + said.err


@pytest.mark.by_default("{}")
@pytest.mark.parametrize("state", ['{"files": {}}', '{"files": {}, "step": "x"}', "{}", "[]"])
def test_a_state_page_that_says_nothing_is_a_damaged_checkpoint(
    state: str, copied: Path, quintet: Quintet
) -> None:
    (copied / "checkpoints/step-00000006/state.json").write_text(state)
    said = quintet("resume", copied)
    assert said.status == 0, said.err
    assert "step-00000006 is damaged" in said.err


def test_the_checkpoint_of_another_run_is_not_taken(copied: Path, quintet: Quintet) -> None:
    about = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**about, "id": "another"}))
    assert_one_sentence(quintet("resume", copied, "--steps", 8), "belongs to another run")


def permissions_bind(folder: Path) -> bool:
    probe = folder / "probe"
    probe.mkdir()
    probe.chmod(0o500)
    try:
        (probe / "x").touch()
    except PermissionError:
        return True
    finally:
        probe.chmod(0o700)
    return False


def test_a_run_folder_that_cannot_be_written_is_named(tmp_path: Path, quintet: Quintet) -> None:
    (tmp_path / "file").write_text("in the way")
    said = quintet(*TRAIN, "--run", tmp_path / "file/run", *TINY)
    assert_one_sentence(said, tmp_path / "file/run")
    assert_one_sentence(quintet(*TRAIN, "--run", tmp_path / "file", *TINY), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_read_only_parent_folder_is_named(tmp_path: Path, quintet: Quintet) -> None:
    if not permissions_bind(tmp_path):
        pytest.skip("permissions do not bind this user")
    (tmp_path / "locked").mkdir(mode=0o500)
    said = quintet(*TRAIN, "--run", tmp_path / "locked/run", *TINY)
    assert_one_sentence(said, tmp_path / "locked/run", "Permission denied")


def test_checkpoints_that_cannot_be_written_end_the_run_with_a_sentence(
    copied: Path, quintet: Quintet
) -> None:
    """For a user whom permissions do not bind, a file where the folder belongs does the same."""
    checkpoints = copied / "checkpoints"
    shutil.rmtree(checkpoints)
    if permissions_bind(copied):
        checkpoints.mkdir(mode=0o500)
    else:
        checkpoints.write_text("in the way")
    said = quintet("resume", copied)
    assert_one_sentence(said, "checkpoint")


# -- what is made of a model ----------------------------------------------------------------


def test_sample_names_the_input_that_cannot_be_used(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    from quintet.engine.runs.checkpoint import write_safetensors

    out = ["--out", tmp_path / "out"]
    (tmp_path / "text.png").write_text("no picture")
    small = picture(tmp_path / "small.png", 0, 4, 40)
    ids = {"wrong": {"x": torch.ones(1)}, "floats": {"ids": torch.ones(1, 2, 2)}}
    ids |= {
        "high": {"ids": torch.full((1, 2, 2), 10**6)},
        "none": {"ids": torch.ones(1, 0, 2).int()},
    }
    for name, tensors in ids.items():
        write_safetensors(tmp_path / f"{name}.safetensors", tensors)
    for name, word in [
        ("absent.png", "not a file"),
        ("text.png", "text.png"),
        ("small.png", "factor 8"),
        ("wrong.safetensors", "'ids'"),
        ("floats.safetensors", "'ids'"),
        ("none.safetensors", "'ids'"),
        ("high.safetensors", "outside 0 … 1599"),
    ]:
        assert_one_sentence(quintet("sample", trained, tmp_path / name, *out), name, word)
    said = quintet("sample", trained, small, *out, "--size", 30, 30)
    assert_one_sentence(said, "(30, 30)", "factor 8")


def test_sample_refuses_two_inputs_of_one_name(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    photos = [picture(tmp_path / place / "cat.png", 1) for place in "ab"]
    said = quintet("sample", trained, *photos, "--out", tmp_path / "out")
    assert_one_sentence(said, "cat")
    assert not (tmp_path / "out").exists()


def test_sample_without_input_asks_an_export_for_pictures(
    exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    model = Path(shutil.copytree(exported, tmp_path / "model"))
    about = json.loads((model / "config.json").read_text())
    del about["recipe"]  # as the export of a run on files of a user
    (model / "config.json").write_text(json.dumps(about))
    said = quintet("sample", model, "--out", tmp_path / "out")
    assert_one_sentence(said, "give images")


@pytest.mark.parametrize("step", [0, -1, 7, 99])
def test_a_step_that_was_never_taken_cannot_be_replayed(
    step: int, trained: Path, quintet: Quintet
) -> None:
    assert_one_sentence(quintet("replay", trained, f"--step={step}"), f"step {step}", "1 … 6")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    from quintet.cli import main

    with pytest.raises(RunError, match="no run at"):
        main(["resume", str(tmp_path / "nowhere"), "--debug"])


@pytest.mark.slow  # test_fresh_process.py interrupts one
def test_a_real_process_exits_with_2_and_no_traceback(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "quintet", "resume", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert found.returncode == 2
    assert found.stderr == f"quintet: there is no run at {tmp_path / 'nowhere'}\n"
    assert found.stdout == ""
