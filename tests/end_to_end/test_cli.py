"""Every command, from the words on the command line to what is on the disk."""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command import TINY, Quintet, picture, with_nan
from PIL import Image
from safetensors.torch import load_file

import quintet as library
from campaign.children import until
from campaign.numbers import Everywhere
from harness import assert_same, lines, tensors, trajectory
from quintet import cli
from quintet.cli import COMMANDS
from quintet.image.config import ImageDataConfig
from quintet.image.data import open_data
from quintet.media.pixels import read_image
from quintet.shared.tokenizer.pixels import to_bytes

TRAIN = ["train", "image/vqgan_tiny"]
MOMENT = 1e-9


def settings(run: Path) -> dict:
    return json.loads((run / "config.json").read_text())["settings"]


def last_json(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def some_images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


# -- help -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, quintet: Quintet) -> None:
    said = quintet(command, "--help")
    assert said.status == 0
    assert f"  quintet {command}" in said.out


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(words: list[str], quintet: Quintet) -> None:
    said = quintet(*words)
    assert said.status == 0
    assert all(f"  quintet {command}" in said.out for command in COMMANDS)


def test_help_of_a_recipe_shows_every_setting_with_its_sentence(quintet: Quintet) -> None:
    said = quintet("train", "image/vqgan", "--help-all")
    assert said.status == 0
    for words in ("--steps", "--model.dim", "--losses.adversarial-from", "--resume", "--minutes"):
        assert words in said.out
    assert "Discriminators start after this fraction of the run" in said.out


@pytest.mark.by_default("words0")
@pytest.mark.parametrize("words", [["--help"], ["train", "image/vqgan", "--help"], ["list"]])
def test_help_loads_no_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom quintet.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"


def test_the_version_is_the_librarys(quintet: Quintet) -> None:
    assert quintet("--version").out.strip() == library.__version__


def test_the_list_names_every_recipe_and_its_twin(quintet: Quintet) -> None:
    said = quintet("list")
    recipes = said.out.partition("\n\n")[0]
    names = [line.split()[0] for line in recipes.splitlines()]
    assert {"image/vqgan", "image/vqgan_tiny"} <= set(names)
    twins = {re.sub("_(tiny|medium|large).*", "", name) for name in names}
    assert {f"{name}_tiny" for name in twins} <= set(names)


# -- train ----------------------------------------------------------------------------------


def test_a_run_leaves_reports_checkpoints_pictures_and_a_page(trained: Path) -> None:
    assert [r["step"] for r in lines(trained) if "vae/loss" in r] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in lines(trained) if "val/psnr" in r] == [3, 6]
    steps = sorted(path.name for path in (trained / "checkpoints").iterdir())
    assert {"step-00000002", "step-00000004", "step-00000006"} <= set(steps)
    assert read_image(trained / "exhibits/step-00000006/reconstructions.png").size
    assert (trained / "report.html").stat().st_size > 1000
    assert not (trained / "tensorboard").exists()
    assert not list(trained.rglob("*writing*"))


def test_the_discriminator_is_reported_from_its_start_on(trained: Path) -> None:
    assert [r["step"] for r in lines(trained) if "discriminator/loss" in r] == [4, 5, 6]


def test_dotted_flags_reach_the_recorded_configuration(trained: Path) -> None:
    found = settings(trained)
    assert found["images"]["size"] == [32, 32]
    assert found["model"]["dim"] == 16
    assert found["losses"]["adversarial_from"] == 0.5
    assert found["trackers"] == []
    assert (found["steps"], found["batch_size"], found["precision"]) == (6, 4, "fp32")
    assert json.loads((trained / "config.json").read_text())["global_batch"] == 4


@pytest.mark.by_default("words0-off", "words2-auto")
@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--no-compile"], "off"),
        (["--compile", "off"], "off"),
        (["--compile", "auto"], "auto"),
        ([], "auto"),
    ],
)
def test_compile_is_spelt_as_people_spell_it(
    words: list[str], value: str, tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet(*TRAIN, "--run", tmp_path / "run", *TINY, "--steps", 1, *words)
    assert said.status == 0
    assert settings(tmp_path / "run")["compile"] == value


def test_a_bare_compile_flag_means_on() -> None:
    from quintet.cli.train import spell_out

    assert spell_out(["--compile", "--steps", "2"]) == ["--compile", "on", "--steps", "2"]
    assert spell_out(["--steps", "2", "--compile"]) == ["--steps", "2", "--compile", "on"]


def test_a_folder_of_mixed_images_trains_and_is_recorded_in_full(
    photos: Path, tmp_path: Path, quintet: Quintet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = quintet(*TRAIN, "photos", "--run", "run", *TINY, "--images.valid-fraction", 0.2)
    assert said.status == 0, said.err
    assert settings(tmp_path / "run")["data"] == str(photos)
    assert lines(tmp_path / "run")[-2]["data/damaged"] == 0
    assert "run is at step 6" in said.out


def test_a_run_on_a_folder_resumes_from_another_working_folder(
    photos: Path, tmp_path: Path, quintet: Quintet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert quintet(*TRAIN, "photos", "--run", "run", *TINY, "--steps", 2).status == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = quintet("resume", "../run", "--steps", 3)
    assert said.status == 0, said.err
    assert (tmp_path / "run/checkpoints/step-00000003").is_dir()


def test_a_folder_of_validation_data_is_used_as_it_is(
    photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    for number in range(3):
        picture(tmp_path / "own" / f"{number}.png", 50 + number)
    run = tmp_path / "run"
    result = quintet(*TRAIN, photos, "--valid", tmp_path / "own", "--run", run, *TINY)
    assert result.status == 0, result.err
    data = json.loads((run / "config.json").read_text())["data"]
    count = sum(path.suffix in (".png", ".jpg", ".webp") for path in photos.rglob("*"))
    assert data["valid"] == 3
    assert data["train"] >= count  # nothing of the training data is held out
    assert settings(run)["images"]["valid_folder"] == str(tmp_path / "own")
    assert quintet("resume", run, "--steps", 7).status == 0
    refused = quintet(*TRAIN, "--valid", tmp_path / "own", "--run", tmp_path / "x", *TINY)
    assert refused.status == 2
    assert "--valid goes with DATA" in refused.err


@pytest.mark.parametrize("valid", ["validation", "valid", "val", "test"])
def test_sub_folders_for_training_and_validation_are_recognised(
    valid: str, tmp_path: Path, quintet: Quintet
) -> None:
    for folder, count in (("train", 5), (valid, 2), ("left-over", 4)):
        for number in range(count):
            picture(tmp_path / "data" / folder / f"{number}.png", 10 * count + number)
    config = ImageDataConfig(valid_limit=9)
    sides = [open_data(tmp_path / "data", config, split, 0) for split in ("train", "valid")]
    names = [[side.name(i).split("/")[0] for i in range(len(side))] for side in sides]
    assert names == [["train"] * 5, [valid] * 2]
    assert (
        "held out: 2 of 11 files by their folder"
        in quintet("doctor", "image", tmp_path / "data").out
    )


# -- resuming --------------------------------------------------------------------------------


def test_resume_gives_a_run_more_steps_on_a_longer_schedule(copied: Path, quintet: Quintet) -> None:
    said = quintet("resume", copied, "--steps", 8)
    assert said.status == 0
    assert settings(copied)["steps"] == 8
    assert settings(copied)["schedule_steps"] == 8
    assert settings(copied)["planned_steps"] == 6  # the discriminator does not start again
    assert "schedule is 8 steps long instead of 6; the rate at step 6 is 'vae'" in said.err
    assert [r["step"] for r in lines(copied) if "vae/loss" in r] == list(range(1, 9))


@pytest.mark.slow  # contract/test_recipes.py resumes
def test_a_run_in_two_parts_is_the_run_in_one(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    run = tmp_path / "run"
    short = quintet(*TRAIN, "--run", run, *TINY, "--minutes", MOMENT)
    assert short.status == 0
    assert "stopped at step 1" in short.err
    assert quintet("resume", run).status == 0
    assert_same(tensors(trained, 6), tensors(run, 6))
    assert trajectory(trained) == trajectory(run)


def test_resume_past_the_end_changes_nothing(copied: Path, quintet: Quintet) -> None:
    before = tensors(copied, 6)
    assert quintet("resume", copied).status == 0
    assert_same(before, tensors(copied, 6))


def test_a_new_schedule_length_is_taken_only_when_asked_for(copied: Path, quintet: Quintet) -> None:
    assert quintet("resume", copied, "--steps", 7, "--schedule-steps", 9).status == 0
    assert settings(copied)["schedule_steps"] == 9


def test_train_resume_starts_a_run_and_then_resumes_it(tmp_path: Path, quintet: Quintet) -> None:
    words = [*TRAIN, "--run", tmp_path / "run", *TINY, "--resume"]
    assert quintet(*words, "--minutes", MOMENT).status == 0
    assert not (tmp_path / "run/checkpoints/step-00000006").exists()
    again = quintet(*words)
    assert again.status == 0, again.err
    assert "resuming at step 1" in again.err
    assert (tmp_path / "run/checkpoints/step-00000006").is_dir()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--seed", 3], "it determines all randomness of the run"),
        (["--model.dim=32"], "the weights and their use depend on it"),
        (["--images.no-flip"], "later steps would read different samples"),
        (["--optim.warmup-steps", 9], "the learning rate may change"),
        (["--valid", "photos"], "metrics would not be comparable"),
    ],
)
def test_resume_explains_what_cannot_change(
    words: list[object], reason: str, trained: Path, quintet: Quintet
) -> None:
    said = quintet("resume", trained, *words, "--steps", 9)
    flag = " ".join(map(str, words))
    assert said.status == 2
    assert f"quintet: {flag.split()[0]} cannot change on resume" in said.err
    assert reason in said.err
    command = said.err.partition("Start a new run with it: ")[2]
    data = "FOLDER " if "--valid" in flag else ""  # validation data of one's own needs data
    assert command.startswith(f"quintet train image/vqgan_tiny {data}--batch-size 4 ")
    assert f" {flag} --steps 9 --init-from {trained} --init-partial --run {trained}-2" in command
    assert ("--model.dim 16" in command) == ("--model.dim" not in flag)


def test_resume_takes_another_learning_rate_and_records_it(copied: Path, quintet: Quintet) -> None:
    said = quintet("resume", copied, "--steps", 8, "--optim.learning-rate", 5e-4)
    assert said.status == 0, said.err
    assert "learning rate of 'vae' changed from 0.001 to 0.0005 at step 6" in said.err
    assert settings(copied)["optim"]["learning_rate"] == 5e-4


def test_train_resume_refuses_a_changed_configuration_by_the_fields_name(
    copied: Path, quintet: Quintet
) -> None:
    said = quintet(*TRAIN, "--run", copied, *TINY, "--resume", "--losses.l1", 3)
    assert said.status == 2
    assert "losses.l1 was 1.0 and is now 3.0" in said.err


@pytest.mark.slow
def test_a_signal_stops_a_real_process_cleanly_and_it_resumes(
    tmp_path: Path, quintet: Quintet
) -> None:
    run = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "quintet", *TRAIN, "--run", str(run), *TINY, "--steps", "10000"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while len(lines(run)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 143, said
    assert f"Resume with: quintet resume {run}" in said
    assert "Traceback" not in said
    reached = lines(run)[-1]["step"]
    assert quintet("resume", run, "--steps", reached + 1).status == 0


# -- after training -------------------------------------------------------------------------


def is_alive(process: str) -> bool:
    """A dead process whose parent has not asked for it stays in the table, as Z."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc for the workers of a process")
@pytest.mark.parametrize(
    "again", [pytest.param("resume", marks=pytest.mark.slow), "train --resume"]
)
def test_a_run_killed_while_its_workers_are_stopped_is_restarted_at_once(
    again: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    start = ["train", "image/vqgan_tiny", "--run", run, *TINY]
    for flag, value in (("--workers", 2), ("--steps", 100_000), ("--evaluate-every", 0)):
        start[start.index(flag) + 1] = value
    first = Everywhere([str(word) for word in start], run, 1)
    (process,) = first.children
    try:
        assert until(lambda: any((run / "checkpoints").glob("step-*")), first), first.said()
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        own = Path(f"/proc/{process.pid}/cmdline").read_bytes()  # of its forks, too
        workers = [pid for pid in listed if Path(f"/proc/{pid}/cmdline").read_bytes() == own]
        assert len(workers) >= 2
        for worker in workers:
            os.kill(int(worker), signal.SIGSTOP)
    finally:
        process.kill()  # it alone: its workers stay
        process.join()
    words = ["resume", run] if again == "resume" else [*start, "--resume"]
    second = Everywhere([str(word) for word in words], run, 1)
    try:
        assert until(lambda: "resuming at step" in second.said(), second), second.said()
        assert not any(is_alive(worker) for worker in workers)
    finally:
        second.signal(signal.SIGKILL)
        second.wait()


def test_evaluate_repeats_the_runs_own_numbers(trained: Path, quintet: Quintet) -> None:
    said = quintet("evaluate", trained)
    assert said.status == 0
    found = last_json(said.out)
    own = next(r for r in reversed(lines(trained)) if "val/psnr" in r)
    expected = {k.removeprefix("val/"): v for k, v in own.items() if k.startswith("val/")}
    assert found == {"step": 6, "samples": 8, **expected}
    assert "psnr" in said.out.splitlines()[5]


def test_evaluate_takes_the_checkpoint_that_is_named(trained: Path, quintet: Quintet) -> None:
    found = last_json(quintet("evaluate", trained, "--step", 3).out)
    own = next(r for r in lines(trained) if "val/psnr" in r)
    assert (found["step"], found["psnr"]) == (3, own["val/psnr"])


def test_a_checkpoint_is_chosen_by_step_or_as_the_best_by_every_command(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    early = library.load(trained, step=2).state_dict()
    newest = library.load(trained).state_dict()
    assert any(not early[name].equal(newest[name]) for name in newest)
    best = json.loads((trained / "best.json").read_text())["step"]
    assert_same(library.load(f"{trained}@2").state_dict(), early)
    for chosen in (library.load(f"{trained}@best"), library.load(trained, step="best")):
        assert_same(chosen.state_dict(), library.load(trained, step=best).state_dict())
    assert_same(library.VQGanVAE.from_pretrained(f"{trained}@2").state_dict(), early)
    assert quintet("export", trained, tmp_path / "early", "--step", 2).status == 0
    assert_same(library.VQGanVAE.from_pretrained(tmp_path / "early").state_dict(), early)
    assert "2 steps of" in (tmp_path / "early/README.md").read_text()
    said = quintet("evaluate", trained, "--step", "best")
    assert json.loads(said.out.splitlines()[-1])["step"] == best
    assert (
        quintet("sample", trained, "--step", 2, "--count", 1, "--out", tmp_path / "a").status == 0
    )
    assert quintet("sample", f"{trained}@best", "--count", 1, "--out", tmp_path / "b").status == 0
    new = [*TRAIN, "--run", tmp_path / "new", *TINY, "--steps", 1]
    assert quintet(*new, "--init-from", f"{trained}@2").status == 0
    for words in (["export", trained, tmp_path / "x"], ["evaluate", trained], ["sample", trained]):
        said = quintet(*words, "--step", 5)
        assert said.status == 2
        assert f"{trained} has no checkpoint 5; it has those of 2, " in said.err
        said = quintet(*words, "--step", -1)
        assert said.status == 2
        assert "--step is -1; give the step of a checkpoint, or best" in said.err


def test_evaluate_measures_all_of_a_folder(trained: Path, photos: Path, quintet: Quintet) -> None:
    found = last_json(quintet("evaluate", trained, photos).out)
    assert found["samples"] == 12
    smaller = last_json(quintet("evaluate", trained, photos, "--batch-size", 5).out)
    assert smaller["psnr"] == pytest.approx(found["psnr"], rel=1e-5)


@pytest.mark.parametrize("size", [0, -1])
def test_evaluate_refuses_a_batch_of_nothing(size: int, trained: Path, quintet: Quintet) -> None:
    said = quintet("evaluate", trained, "--batch-size", size)
    assert said.status == 2
    assert f"--batch-size is {size}; it must be above 0" in said.err


def test_evaluate_counts_the_samples_that_the_run_was_trained_on(
    photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    """In the same folder behind a link, in a part of it, in one around it, and in a copy."""
    run, other = tmp_path / "run", tmp_path / "other/photos"
    few = ["--images.valid-fraction", 0.2, "--steps", 1]
    assert quintet(*TRAIN, photos, "--run", run, *TINY, *few).status == 0
    data = json.loads((run / "config.json").read_text())["data"]
    assert data["train"] == 12 - data["valid"] < 12
    picture(other / "new.png", 77)
    around = tmp_path / "around"
    around.mkdir()
    (photos).rename(around / "photos")
    photos.symlink_to(around / "photos")
    picture(around / "new.png", 78)
    trained_in_sub = len({"09.png", "10.jpg", "11.jpg"}) - sum(
        name.startswith("sub/") for name in held_out(photos, run)
    )
    for folder, samples, trained in (
        (photos, 12, data["train"]),
        (photos / "sub", 3, trained_in_sub),
        (around, 13, data["train"]),
    ):
        said = quintet("evaluate", run, folder)
        assert said.status == 0, said.err
        found = last_json(said.out)
        assert (found["samples"], found["trained_on"]) == (samples, trained)
        assert f"{trained} of the {samples} samples were trained on" in said.err
        assert "optimistic" in said.err
    copy = shutil.copytree(around / "photos", tmp_path / "copy")
    (copy / "00.png").rename(copy / "renamed.png")
    assert last_json(quintet("evaluate", run, copy).out)["trained_on"] == data["train"]
    (around / "photos").rename(tmp_path / "gone")  # the record of the run has digests
    assert last_json(quintet("evaluate", run, copy).out)["trained_on"] == data["train"]
    (tmp_path / "gone").rename(around / "photos")
    apart = quintet("evaluate", run, other)
    assert last_json(apart.out)["trained_on"] == 0
    assert "trained on" not in apart.err
    own = quintet("evaluate", run)
    assert "trained_on" not in last_json(own.out)
    assert "trained on" not in own.err


def test_what_is_held_out_is_not_trained_on_and_the_doctor_looks(
    photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    valid, run = shutil.copytree(photos / "sub", tmp_path / "valid"), tmp_path / "run"
    (valid / "09.png").rename(valid / "another.png")
    said = quintet(*TRAIN, photos, "--valid", valid, "--run", run, *TINY, "--steps", 1)
    assert said.status == 0, said.err
    assert f"held out from training: 3 of 12 images are copies of files in {valid}" in said.err
    before = (run / "data.json").read_bytes()
    lists = json.loads(before)
    assert [len(lists["train"]), len(lists["valid"])] == [9, 3]
    said = quintet("resume", run, "--steps", 2)
    assert said.status == 0
    assert "new since the run began" not in said.err
    assert (run / "data.json").read_bytes() == before
    assert quintet("doctor", run).status == 0
    lists["train"]["copy.png"] = lists["valid"]["another.png"]
    (run / "data.json").write_text(json.dumps(lists))
    said = quintet("doctor", run)
    assert said.status == 2
    assert "1 of 3 validation samples were trained on, by path or by content" in said.out
    for other in (photos, f"{photos}/../photos"):
        said = quintet(*TRAIN, photos, "--valid", other, "--run", tmp_path / "none", *TINY)
        assert said.status == 2
        assert "no training data is left" in said.err
        assert not (tmp_path / "none").exists()


def held_out(photos: Path, run: Path) -> list[str]:
    config = ImageDataConfig(valid_fraction=0.2, size=(32, 32))
    source = open_data(photos, config, "valid", settings(run)["seed"])
    return [source.name(index) for index in range(len(source))]


def test_evaluate_on_a_folder_leaves_the_validation_folder_of_the_run_alone(
    photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    picture(tmp_path / "own/a.png", 50)
    for number in range(2):
        picture(tmp_path / "other" / f"{number}.png", 60 + number)
    run = tmp_path / "run"
    words = [*TRAIN, photos, "--valid", tmp_path / "own", "--run", run, *TINY, "--steps", 1]
    assert quintet(*words).status == 0
    found = last_json(quintet("evaluate", run, tmp_path / "other").out)
    assert (found["samples"], found["trained_on"]) == (2, 0)


def strict_json(text: str) -> dict:
    """The last line, by a reader that knows no NaN, as those of other languages."""
    return json.loads(text.strip().splitlines()[-1], parse_constant=pytest.fail)


def test_a_line_of_json_has_null_for_what_is_not_finite(copied: Path, quintet: Quintet) -> None:
    run = with_nan(copied)
    measured = strict_json(quintet("evaluate", run).out)
    assert measured["psnr"] is None
    assert measured["step"] == 6
    repeated = strict_json(quintet("replay", run, "--step", 6).out)
    assert repeated["losses"]["vae/l1"] is None


def test_evaluate_and_replay_write_nothing(trained: Path, quintet: Quintet) -> None:
    before = digests(trained)
    assert quintet("evaluate", trained).status == 0
    assert quintet("replay", trained, "--step", 4).status == 0
    assert digests(trained) == before


def test_sample_reconstructs_pictures_and_ids_decode_to_the_same(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    photo = picture(tmp_path / "cat.png", 5)
    said = quintet("sample", trained, photo, "--out", tmp_path / "out")
    assert said.status == 0
    alone, sheet, ids = [Path(line) for line in said.out.split()]
    assert (alone.name, sheet.name) == ("cat.reconstruction.png", "cat.comparison.png")
    assert ids.name == "cat.ids.safetensors"
    again = quintet("sample", trained, ids, "--out", tmp_path / "out")
    decoded = read_image(Path(again.out.strip()))
    made = library.load(trained).decode_from_ids(load_file(ids)["ids"])[0]
    assert np.array_equal(decoded, to_bytes(made))
    assert decoded.shape == (40, 48, 3)
    assert np.array_equal(read_image(alone), decoded)
    whole = read_image(sheet)
    assert any(
        np.array_equal(whole[y : y + 40, x : x + 48], decoded)
        for y in range(whole.shape[0] - 39)
        for x in range(whole.shape[1] - 47)
    )


def test_sample_writes_continuous_latents_which_decode_to_the_same(
    continuous: Path, trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    photo, out = picture(tmp_path / "cat.png", 5), tmp_path / "out"
    said = quintet("sample", continuous, photo, "--out", out)
    assert said.status == 0, said.err
    alone, _, latents = [Path(line) for line in said.out.split()]
    assert latents.name == "cat.latents.safetensors"
    assert load_file(latents)["latents"].shape == (1, 3, 5, 6)
    again = quintet("sample", continuous, latents, "--out", out)
    assert Path(again.out.strip()).name == "cat.decoded.png"
    assert np.array_equal(read_image(Path(again.out.strip())), read_image(alone))
    refused = quintet("sample", trained, latents, "--out", out)
    assert refused.status == 2
    assert "must contain a tensor 'ids' of shape (batch, h, w) int64 below" in refused.err


def test_sample_without_input_shows_held_out_pictures(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet("sample", trained, "--out", tmp_path / "out", "--count", 2)
    assert said.status == 0
    written = [Path(line) for line in said.out.split()]
    assert len(written) == 6
    assert all(path.is_file() for path in written)


def test_what_sample_wrote_is_neither_its_input_nor_training_data(
    trained: Path, photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    for _ in range(2):
        said = quintet("sample", trained, photos, "--out", photos)
        assert said.status == 0, said.err
        assert len(said.out.splitlines()) == 3 * 12
    assert quintet("sample", trained, "--out", photos / "out", "--count", 2).status == 0
    save = ("--judges", "psnr", "--save", photos / "judged")
    assert quintet("evaluate", trained, *save).status == 0
    run = tmp_path / "run"
    said = quintet(*TRAIN, photos, "--run", run, *TINY, "--steps", 1)
    assert said.status == 0, said.err
    assert "outputs of `sample` or `evaluate`: 46;" in said.err
    data = json.loads((run / "data.json").read_text())
    assert len(data["train"]) + len(data["valid"]) == 12
    assert "reconstruction" not in json.dumps(data)
    # A folder of nothing but outputs is data for those who name it.
    said = quintet("sample", trained, photos / "judged/originals", "--out", tmp_path / "again")
    assert len(said.out.splitlines()) == 3 * 8
    assert quintet("compare", photos / "judged/outputs", trained).status == 0


def test_sample_keeps_the_structure_of_a_folder(
    trained: Path, photos: Path, tmp_path: Path, quintet: Quintet
) -> None:
    for name in ("one/cat.png", "two/cat.png", "two/cat.jpg"):
        picture(photos / name, 3)
    (photos / "torn.png").write_bytes(b"\x89PNG")
    said = quintet("sample", trained, photos, "--out", tmp_path / "out")
    assert said.status == 0, said.err
    written = [Path(line) for line in said.out.splitlines()]
    assert len(written) == len(set(written)) == 3 * 15
    assert all(path.is_file() for path in written)
    names = {path.relative_to(tmp_path / "out").as_posix() for path in written}
    assert {
        "00.ids.safetensors",
        "sub/09.comparison.png",
        "one/cat.reconstruction.png",
        "two/cat.png.reconstruction.png",
        "two/cat.jpg.reconstruction.png",
    } <= names
    assert "skipped: " in said.err
    assert "torn.png" in said.err
    assert "1 of 16 files were skipped" in said.err
    ids = tmp_path / "ids"
    for path in sorted(written)[:2] + [path for path in written if path.parent.name == "one"]:
        (ids / path.parent.name).mkdir(parents=True, exist_ok=True)
        if path.name.endswith(".ids.safetensors"):
            path.rename(ids / path.parent.name / path.name)
    decoded = quintet("sample", trained, ids, "--out", tmp_path / "decoded")
    assert decoded.status == 0, decoded.err
    assert (tmp_path / "decoded/one/cat.decoded.png").is_file()


def test_a_folder_of_which_no_file_can_be_used_is_refused(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "torn").mkdir()
    assert "holds no images" in quintet("sample", trained, tmp_path / "torn").err
    (tmp_path / "torn/a.png").write_bytes(b"\x89PNG")
    said = quintet("sample", trained, tmp_path / "torn", "--out", tmp_path / "out")
    assert said.status == 2
    assert "none of 1 files can be used" in said.err


def test_ids_of_another_checkpoint_are_refused_unless_told_otherwise(
    trained: Path, exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    out = tmp_path / "out"
    photo = picture(tmp_path / "cat.png", 5)
    assert quintet("sample", trained, photo, "--out", out).status == 0
    ids = out / "cat.ids.safetensors"
    assert quintet("sample", exported, ids, "--out", out).status == 0
    refused = quintet("sample", trained, "--step", 2, ids, "--out", out)
    assert refused.status == 2
    assert "ids of another model, or of another checkpoint" in refused.err
    words = ["sample", trained, ids, "--step", 2, "--out", out, "--any-model"]
    assert quintet(*words).status == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_elsewhere_a_line_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quintet.shared import sampling

    screen, file = Terminal(), io.StringIO()
    assert list(sampling.with_progress([1, 2, 3], screen)) == [1, 2, 3]
    assert "sampling" in screen.getvalue()
    assert list(sampling.with_progress([1, 2, 3], file)) == [1, 2, 3]
    assert file.getvalue() == ""
    monkeypatch.setattr(sampling, "LINE_EVERY", 0.0)
    assert list(sampling.with_progress([1, 2, 3], file)) == [1, 2, 3]
    assert "sampling: 2 of 3, about 0 s left" in file.getvalue()


def test_sample_names_every_picture_of_several_ids(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    from quintet.engine.runs.checkpoint import write_safetensors

    write_safetensors(tmp_path / "two.safetensors", {"ids": torch.ones(2, 4, 5, dtype=torch.int32)})
    said = quintet("sample", trained, tmp_path / "two.safetensors", "--out", tmp_path / "out")
    written = [Path(line) for line in said.out.split()]
    assert len(written) == 2
    assert all(read_image(path).shape == (32, 40, 3) for path in written)


def test_sample_works_on_an_export(
    trained: Path, exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    photo = picture(tmp_path / "cat.png", 5)
    for name, source in (("run", trained), ("export", exported)):
        assert quintet("sample", source, photo, "--out", tmp_path / name).status == 0
    one, other = (tmp_path / n / "cat.reconstruction.png" for n in ("run", "export"))
    assert one.read_bytes() == other.read_bytes()


def test_an_export_is_the_runs_averaged_model(trained: Path, exported: Path) -> None:
    images = some_images()
    loaded = library.load(trained)
    back = library.VQGanVAE.from_pretrained(exported)
    assert not back.training
    assert torch.equal(loaded(images).output, back(images).output)
    assert torch.equal(loaded.tokenize(images), library.load(exported).tokenize(images))
    weights = load_file(exported / "model.safetensors")
    averaged = load_file(trained / "checkpoints/step-00000006/vae.ema.safetensors")
    assert averaged
    assert all(weights[name].equal(value) for name, value in averaged.items())


def test_from_pretrained_reads_a_run_too(trained: Path) -> None:
    images = some_images()
    model = library.VQGanVAE.from_pretrained(trained)
    assert torch.equal(model.tokenize(images), library.load(trained).tokenize(images))


def test_the_model_card_shows_the_numbers_and_not_the_path_of_the_data(
    trained: Path, exported: Path
) -> None:
    card = (exported / "README.md").read_text()
    psnr = lines(trained)[-1]["val/psnr"]
    assert f"| psnr | {psnr:.5g} |" in card
    assert "from_pretrained" in card
    assert '"data"' not in card


@pytest.mark.by_default("4")
@pytest.mark.parametrize("step", [1, 4, 6])
def test_replay_gives_the_numbers_of_that_step_bit_for_bit(
    step: int, trained: Path, quintet: Quintet
) -> None:
    found = last_json(quintet("replay", trained, "--step", step).out)
    own = next(r for r in lines(trained) if r["step"] == step and "vae/loss" in r)
    expected = {
        name: value
        for name, value in own.items()
        if name.startswith(("vae/", "discriminator/")) and not name.endswith("/learning_rate")
    }
    assert found["losses"] == expected
    assert len(found["samples"]) == 4


def test_replay_verifies_the_log_of_a_run_bit_for_bit(trained: Path, quintet: Quintet) -> None:
    before = digests(trained)
    said = quintet("replay", trained, "--verify", 99)
    assert said.status == 0, said.out
    found = last_json(said.out)
    assert found["verified"]
    assert found["tolerance"] == found["largest_difference"] == 0.0
    assert found["steps"] == [r["step"] for r in lines(trained) if "vae/loss" in r]
    assert digests(trained) == before


@pytest.mark.by_default("val/psnr-*")
@pytest.mark.parametrize(
    ("name", "factor"), [("vae/loss", 1.01), ("val/psnr", 1.0001), ("seconds", 0.5)]
)
def test_replay_refuses_a_log_that_was_edited(
    name: str, factor: float, copied: Path, quintet: Quintet
) -> None:
    records = [{**r, name: r[name] * factor} if name in r else r for r in lines(copied)]
    (copied / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    said = quintet("replay", copied, "--verify", 1, "--seed", 0)
    assert said.status == 1
    assert "differs from the replay" in said.err
    found = last_json(said.out)
    assert not found["verified"]
    words = ("contradicts", "samples_per_second") if name == "seconds" else (name,)
    assert all(any(word in text for word in words) for text in found["differs"])


def test_a_replayed_step_has_the_losses_of_the_log_or_says_that_it_has_not(
    copied: Path, quintet: Quintet
) -> None:
    said = quintet("replay", copied, "--step", 4)
    assert "The samples and losses of steps 4 to 4 match the log." in said.out
    assert last_json(said.out)["compared"] == ["samples", "losses"]
    records = [{**r, "vae/loss": 1.0} if "vae/loss" in r else r for r in lines(copied)]
    (copied / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    said = quintet("replay", copied, "--step", 4)
    assert said.status == 1
    assert not last_json(said.out)["checked"]
    assert "The samples of steps 4 to 4 match the log." in said.out
    assert "the log of steps 4 to 4 has other losses: vae/loss 1.0 -> " in said.err


def test_a_replay_elsewhere_compares_losses_right_after_a_checkpoint_alone(
    copied: Path, quintet: Quintet
) -> None:
    about = json.loads((copied / "config.json").read_text())
    about["versions"]["torch"] = "another"
    (copied / "config.json").write_text(json.dumps(about))
    saved = {int(path.name.partition("-")[2]) for path in (copied / "checkpoints").glob("step-*")}
    far = next(step for step in range(2, 7) if step - 1 not in saved)
    for step, compared in ((1, ["samples", "losses"]), (far, ["samples"])):
        said = quintet("replay", copied, "--step", step)
        assert last_json(said.out)["compared"] == compared
        assert ("losses were not compared: rounding errors" in said.out) == (step == far)


def test_replay_elsewhere_compares_what_follows_checkpoints(copied: Path, quintet: Quintet) -> None:
    about = json.loads((copied / "config.json").read_text())
    about["versions"]["torch"] = "another"
    (copied / "config.json").write_text(json.dumps(about))
    said = quintet("replay", copied, "--verify", 99)
    found = last_json(said.out)
    assert found["verified"]
    assert found["tolerance"] > 0
    assert "torch was another" in said.out
    saved = [int(path.name.partition("-")[2]) for path in (copied / "checkpoints").glob("step-*")]
    logged = {r["step"] for r in lines(copied) if "vae/loss" in r}
    assert set(found["steps"]) - {max(saved)} == {1, *(step + 1 for step in saved)} & logged


def test_replay_asks_for_a_step_or_for_a_number_of_reports(trained: Path, quintet: Quintet) -> None:
    for words in ([], ["--step", 1, "--verify", 1]):
        said = quintet("replay", trained, *words)
        assert said.status == 2
        assert "--step N to repeat a step, or --verify N" in said.err


def test_doctor_describes_the_machine(quintet: Quintet) -> None:
    said = quintet("doctor")
    assert said.status == 0
    assert torch.__version__ in said.out


def test_doctor_names_what_training_would_skip(photos: Path, quintet: Quintet) -> None:
    assert "12 files, 12 usable, 0" in quintet("doctor", "image", photos).out
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n")
    said = quintet("doctor", "image", photos)
    assert said.status == 0
    assert "broken.png" in said.out
    assert "13 files, 12 usable, 1" in said.out


def test_doctor_refuses_a_folder_of_which_nothing_can_be_used(
    tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "broken.png").write_bytes(b"")
    said = quintet("doctor", "image", tmp_path)
    assert said.status == 2
    assert "can be used" in said.err


# -- starting from weights ------------------------------------------------------------------


def first_loss(run: Path) -> float:
    return lines(run)[0]["vae/loss"]


def test_a_run_starts_from_the_weights_of_a_run_or_of_an_export(
    trained: Path, exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    for name, source in (("a", trained), ("b", exported)):
        run = tmp_path / name
        said = quintet(*TRAIN, "--run", run, *TINY, "--steps", 1, "--init-from", source)
        assert said.status == 0, said.err
    assert first_loss(tmp_path / "a") == first_loss(tmp_path / "b")
    assert first_loss(tmp_path / "a") != first_loss(trained)
    assert settings(tmp_path / "a")["init_from"] == str(trained)


def test_replay_begins_with_the_weights_that_the_run_began_with(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    run = tmp_path / "run"
    quintet(*TRAIN, "--run", run, *TINY, "--steps", 1, "--init-from", trained)
    found = last_json(quintet("replay", run, "--step", 1).out)
    assert found["losses"]["vae/loss"] == first_loss(run)


def test_weights_of_another_model_are_refused_by_name(
    exported: Path, tmp_path: Path, quintet: Quintet
) -> None:
    run = tmp_path / "run"
    said = quintet(*TRAIN, "--run", run, *TINY, "--init-from", exported, "--model.dim", 32)
    assert said.status == 2
    assert str(exported) in said.err
    assert "has shape" in said.err
    said = quintet(
        *TRAIN, "--run", tmp_path / "x", *TINY, "--init-from", exported, "--model.num-res-blocks", 2
    )
    assert said.status == 2
    assert "does not fit" in said.err


def test_a_run_resumes_after_the_weights_it_began_with_are_gone(
    copied: Path, tmp_path: Path, quintet: Quintet
) -> None:
    import shutil

    run = tmp_path / "run"
    words = [*TRAIN, "--run", run, *TINY, "--steps", 2, "--init-from", copied]
    assert quintet(*words).status == 0
    shutil.rmtree(copied)
    said = quintet("resume", run, "--steps", 3)
    assert said.status == 0, said.err


# -- the page -------------------------------------------------------------------------------


def test_report_writes_one_page_that_needs_no_network(copied: Path, quintet: Quintet) -> None:
    (copied / "report.html").unlink()
    said = quintet("report", copied)
    assert said.status == 0
    page = (copied / "report.html").read_text()
    assert said.out.strip() == str(copied / "report.html")
    assert "data:image/png;base64," in page
    assert "vae/loss" in page
    assert page.count("<script") == 2  # plotly, packed, and the page's own
    for outside in ("http:", "https:", "<link", "@import", "src=/", 'src="/'):
        assert outside not in page, outside


def test_a_picture_in_the_page_is_the_exhibit(copied: Path, quintet: Quintet) -> None:
    import base64
    import io
    import re

    quintet("report", copied)
    found = re.search(r"base64,([^\"]+)", (copied / "report.html").read_text())
    assert found
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))
    newest = copied / "exhibits/step-00000006/reconstructions.png"
    assert np.array_equal(shown, read_image(newest))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            torch.AcceleratorError("CUDA error: unspecified launch failure\nSearch"),
            "the GPU failed",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 1 GiB"), "not enough memory"),
        (RuntimeError("CUDA error: out of memory"), "not enough memory"),
    ],
)
def test_a_failing_device_is_a_sentence_and_a_traceback_with_debug(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def failing(given: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "run_command", failing)
    assert cli.answered(["train"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert str(error).splitlines()[0] in said
    assert "Search" not in said
    with pytest.raises(type(error)):
        cli.answered(["train", "--debug"])
