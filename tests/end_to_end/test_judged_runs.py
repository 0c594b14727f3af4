"""`quintet evaluate RUN --judges`, as a user calls it."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from command import TINY, Quintet
from safetensors.torch import save_file

import quintet as library
from adopting import folder
from quintet.judges.weights import digest_of_tensors
from quintet.nn.lpips import vgg16_features


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path / "weights"))


@pytest.fixture
def vgg(tmp_path: Path) -> None:
    """Weights of a judge of sets."""
    torch.manual_seed(0)
    tensors = {f"features.{name}": x for name, x in vgg16_features().state_dict().items()}
    (tmp_path / "weights").mkdir()
    save_file(tensors, tmp_path / "weights/vgg16.safetensors")


def answer(said: Any) -> dict[str, Any]:
    assert said.status == 0, said.err
    return json.loads(said.out.splitlines()[-1])


def numbers(scores: dict[str, Any]) -> dict[str, Any]:
    return {name: [score[k] for k in ("value", "low", "high")] for name, score in scores.items()}


def test_reconstructions_are_judged_as_their_files_are(
    quintet: Quintet, trained: Path, tmp_path: Path
) -> None:
    plain = answer(quintet("evaluate", trained))
    said = quintet("evaluate", trained, "--judges", "all", "--save", tmp_path / "kept")
    found = answer(said)
    assert {name: found[name] for name in plain} == plain
    assert found["weights"] == digest_of_tensors(library.load(trained).state_dict())
    assert set(found["judges"]) == set(found["baselines"]["bicubic"]) == {"psnr", "ssim"}
    assert "not judged: lpips_vgg" in said.err
    receipt = found["judges"]["psnr"]["receipt"]
    assert receipt["count"] == 8
    assert (receipt["preparation"]["size"], receipt["preparation"]["rounding"]) == (
        "32 x 32",
        "8 bits",
    )
    assert found["baselines"]["bicubic"]["psnr"]["receipt"] == receipt
    assert found["judges"]["psnr"]["digest"] in said.out
    # The run's own measure is not rounded.
    assert found["judges"]["psnr"]["value"] == pytest.approx(found["psnr"], abs=0.05)
    assert found["baselines"]["bicubic"]["psnr"]["value"] == pytest.approx(
        found["psnr_bicubic"], abs=0.05
    )
    pair = quintet("evaluate", "--pair", tmp_path / "kept/originals", tmp_path / "kept/outputs")
    assert numbers(answer(pair)) == numbers(found["judges"])


def test_judges_do_not_depend_on_the_batch_size(
    quintet: Quintet, trained: Path, vgg: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("evaluate", trained, "--judges", "psnr", "ssim,frechet_vgg")
    found = answer(quintet(*words))
    smaller = answer(quintet(*words, "--batch-size", 3))
    for key in ("judges", "baselines", "weights"):
        assert smaller[key] == found[key]
    room = import_module("quintet.image.vqgan.outputs")
    monkeypatch.setattr(room.Reconstructions, "size", 3)
    groups = answer(quintet(*words))["judges"]
    for name, score in found["judges"].items():
        assert groups[name]["value"] == pytest.approx(score["value"], rel=1e-4)
        assert groups[name]["receipt"] == score["receipt"]


def test_a_count_takes_the_first_samples(quintet: Quintet, trained: Path, tmp_path: Path) -> None:
    words = ("evaluate", trained, "--judges", "psnr", "--count")
    for count in (3, 8):
        quintet(*words, count, "--save", tmp_path / str(count))
    few = sorted((tmp_path / "3/originals").glob("*.png"))
    many = sorted((tmp_path / "8/originals").glob("*.png"))
    assert (len(few), len(many)) == (3, 8)
    assert [path.read_bytes() for path in few] == [path.read_bytes() for path in many[:3]]
    assert answer(quintet(*words, 3))["judges"]["psnr"]["receipt"]["count"] == 3


def test_the_line_of_json_alone_is_one_line(quintet: Quintet, trained: Path) -> None:
    said = quintet("evaluate", trained, "--judges", "psnr", "--json-line")
    assert len(said.out.splitlines()) == 1
    assert "psnr" in answer(said)["judges"]


def test_damaged_pictures_of_a_folder_are_named_and_not_replaced(
    quintet: Quintet, trained: Path, photos: Path
) -> None:
    (photos / "damaged.png").write_bytes(b"no picture")
    said = quintet("evaluate", trained, photos, "--judges", "psnr")
    assert answer(said)["judges"]["psnr"]["receipt"]["count"] == 12
    assert "skipped: damaged.png" in said.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--judges", "fid"], "the judge fid needs the Inception-v3"),
        (["--judges", "beauty"], "there is no judge 'beauty' of image; there are psnr"),
        (["--judges", "wer"], "wer is a judge of speech; of image there are psnr"),
        (["--judges", "psnr", "--count", "0"], "--count is 0; it must be above 0"),
        (["--count", "3"], "--count is for --judges; name some, or all"),
        (["--save", "x"], "--save is for --judges; name some, or all"),
    ],
)
def test_what_cannot_be_judged_is_said_at_once(
    quintet: Quintet, trained: Path, flags: list[str], sentence: str
) -> None:
    said = quintet("evaluate", trained, *flags)
    assert said.status == 2
    assert sentence in said.err
    assert "measure" not in said.out


def test_a_run_is_judged_while_it_trains_and_trains_as_without_judges(
    quintet: Quintet, trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", "image/vqgan_tiny", "--run", run, *TINY)
    refused = quintet(*words, "--judges", "fid")
    assert (refused.status, run.exists()) == (2, False)
    assert "the judge fid needs the Inception-v3" in refused.err
    said = quintet(*words, "--judges", "psnr", "ssim")
    assert said.status == 0
    assert "judged: psnr" in said.err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    record = [line for line in lines if "val/judge/psnr" in line][-1]
    found = answer(quintet("evaluate", run, "--judges", "psnr,ssim"))
    for name, score in found["judges"].items():
        assert record[f"val/judge/{name}"] == pytest.approx(score["value"], rel=1e-6)
        assert record["receipts"][name] == {**score["receipt"], "digest": score["digest"]}
        bicubic = found["baselines"]["bicubic"][name]["value"]
        assert record[f"val/judge/{name}/bicubic"] == pytest.approx(bicubic, rel=1e-6)
    assert found["weights"] == digest_of_tensors(library.load(trained).state_dict())


def test_a_folder_with_files_is_not_written_into(
    quintet: Quintet, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/mine.txt").write_text("mine")
    said = quintet("evaluate", trained, "--judges", "psnr", "--save", tmp_path / "kept")
    assert said.status == 2
    assert "is not an empty folder; name a new one for --save" in said.err
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_two_processes_judge_as_one_and_answer_once(
    quintet: Quintet, trained: Path, vgg: None
) -> None:
    words = ["evaluate", str(trained), "--judges", "psnr,ssim,frechet_vgg", "--device", "cpu"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*launcher, "-m", "quintet", "--", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1
    one = answer(quintet(*words))
    found = json.loads(lines[0])
    assert {name: found[name] for name in ("judges", "baselines", "weights")} == {
        name: one[name] for name in ("judges", "baselines", "weights")
    }


# -- other media ----------------------------------------------------------------------------

FEW = ["--workers", "0", "--evaluate-every", "0", "--device", "cpu", "--precision", "fp32"]
MESHES = ["--meshes.valid-limit", "5", "--meshes.builtin-count", "16", "--meshes.max-faces", "12"]
SIZES = {
    "video/tokenizer_tiny": ["--videos.valid-limit", "3", "--videos.builtin-count", "8"],
    "mesh/autoencoder_tiny": MESHES,
    "music/mulan_tiny": ["--sounds.valid-limit", "12", "--sounds.builtin-count", "16"],
    "speech/voicebox_tiny": [
        *("--recordings.valid-limit", "3", "--recordings.builtin-count", "8"),
        *("--sampling.steps", "2", "--sampling.count", "1"),
    ],
}


def train(quintet: Quintet, recipe: str, run: Path, *words: object) -> Path:
    sizes = SIZES.get(recipe, MESHES)
    steps = ["--steps", 2, "--batch-size", 2]
    said = quintet("train", recipe, "--run", run, *steps, *FEW, *sizes, *words)
    assert said.status == 0, said.err
    return run


def judged(quintet: Quintet, run: Path, *words: object) -> dict[str, Any]:
    return answer(quintet("evaluate", run, "--judges", "all", *words))


def approximately(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, score in one.items():
        assert other[name]["value"] == pytest.approx(score["value"], rel=1e-3, abs=1e-6), name
        assert other[name]["receipt"] == score["receipt"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["video/tokenizer_tiny", "mesh/autoencoder_tiny"])
def test_clips_and_meshes_are_judged_as_their_files_are(
    recipe: str, quintet: Quintet, tmp_path: Path
) -> None:
    run = train(quintet, recipe, tmp_path / "run")
    found = judged(quintet, run, "--save", tmp_path / "kept")
    names = ",".join(found["judges"])
    folders = (tmp_path / "kept/originals", tmp_path / "kept/outputs")
    pair = answer(quintet("evaluate", "--pair", *folders, "--judges", names))
    assert numbers(pair) == numbers(found["judges"])
    baseline = found["baselines"]["mean_frame" if "video" in recipe else "rounded_to_bins"]
    if "video" in recipe:
        assert baseline["temporal_relative"]["value"] == pytest.approx(1)
    else:
        assert baseline["chamfer"]["value"] < 0.02
        said = quintet("evaluate", run, "--judges", "coverage")
        assert said.status == 2
        assert "coverage compares sets" in said.err


@pytest.mark.slow  # the judge itself: tests/judges/test_clip_score.py
def test_generated_pictures_are_judged_by_their_captions(
    quintet: Quintet, trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    more = ["--tokenizer", trained, "--generation.count", 3, "--model.dim", 32]
    sizes = ["--images.valid-limit", 4, "--images.builtin-count", 16, "--images.size", 32, 32]
    steps = ["--steps", 2, "--batch-size", 2, "--generation.reference-count", 4]
    run = tmp_path / "run"
    begun = quintet("train", "image/maskgit_tiny", "--run", run, *steps, *FEW, *sizes, *more)
    assert begun.status == 0, begun.err
    words = ("evaluate", run, "--judges", "clip_score")
    refused = quintet(*words)
    assert refused.status == 2
    assert "the judge clip_score needs a folder of a transformers CLIPModel" in refused.err
    shutil.copytree(folder("CLIPModel"), tmp_path / "weights/clip")
    said = quintet(*words, "--save", tmp_path / "kept")
    found = answer(said)
    score = found["judges"]["clip_score"]
    assert 0 <= score["low"] <= score["value"] <= score["high"] <= 100
    assert score["receipt"]["count"] == 3
    assert found["baselines"].keys() == {"originals", "training"}
    assert found["baselines"]["originals"]["clip_score"]["receipt"] == score["receipt"]
    assert "originals" in said.out
    assert (tmp_path / "kept/outputs/000002.txt").read_text()
    refused = quintet("evaluate", trained, "--judges", "clip_score")
    assert "clip_score compares captions, and there are none here" in refused.err


@pytest.mark.slow
def test_generated_meshes_are_judged_as_a_set(quintet: Quintet, tmp_path: Path) -> None:
    autoencoder = train(quintet, "mesh/autoencoder_tiny", tmp_path / "autoencoder")
    more = ["--autoencoder", autoencoder, "--generation.count", 4]
    run = train(quintet, "mesh/transformer_tiny", tmp_path / "run", *more)
    found = judged(quintet, run)
    assert set(found["judges"]) == {"coverage", "minimum_matching", "nearest_neighbour"}
    assert set(found["baselines"]) == {"training"}
    assert found["judges"]["coverage"]["receipt"]["count"] == 4
    assert judged(quintet, run, "--batch-size", 1)["judges"] == found["judges"]
    assert judged(quintet, run, "--count", 3)["judges"]["coverage"]["receipt"]["count"] == 3


@pytest.mark.slow
def test_embeddings_of_music_are_judged_by_recall(quintet: Quintet, tmp_path: Path) -> None:
    run = train(quintet, "music/mulan_tiny", tmp_path / "run")
    found = judged(quintet, run)
    for name in ("recall_at_1", "recall_at_10"):
        assert found["judges"][name]["value"] == pytest.approx(found[name])
    # 10 of 12 by chance.
    assert 0.6 < found["baselines"]["chance"]["recall_at_10"]["value"] <= 1
    said = quintet("evaluate", run, "--judges", "all", "--save", tmp_path / "kept")
    assert said.status == 2
    assert "outputs embeddings, not files; drop --save" in said.err


@pytest.mark.slow
def test_transcripts_are_spoken_and_judged_beside_recordings_and_copies(
    quintet: Quintet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(quintet, "speech/voicebox_tiny", tmp_path / "run")
    found = judged(quintet, run, "--save", tmp_path / "kept")
    assert {"pitch", "duration"} <= set(found["judges"])
    recordings, copies = (found["baselines"][name] for name in ("recordings", "copies"))
    assert recordings["pitch"]["value"] == recordings["duration"]["value"] == 0
    assert copies["pitch"]["value"] < 50 < found["judges"]["pitch"]["value"]
    folders = (tmp_path / "kept/originals", tmp_path / "kept/outputs")
    names = ",".join(found["judges"])
    pair = answer(quintet("evaluate", "--pair", *folders, "--judges", names))
    assert numbers(pair) == numbers(found["judges"])
    assert judged(quintet, run, "--batch-size", 1)["judges"] == found["judges"]
    room = import_module("quintet.speech.voicebox.outputs")
    monkeypatch.setattr(room.Spoken, "size", 2)
    approximately(judged(quintet, run)["judges"], found["judges"])
