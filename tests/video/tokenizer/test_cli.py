"""The video room from the command line: what is asked, what is written, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import quintet
from harness import Said, lines
from quintet.cli import main
from quintet.media.clips.reader import frames_of, probe
from quintet.media.clips.writer import write_gif, write_mp4
from quintet.media.pixels import read_image, write_png
from quintet.shared.tokenizer.pixels import to_bytes

FEW = [
    *("--batch-size", 2, "--workers", 0, "--device", "cpu", "--precision", "fp32", "--trackers"),
    *("--log-every", 1, "--videos.frames", 5, "--videos.size", 16, 16, "--videos.valid-limit", 2),
    *("--model.init-dim", 16, "--model.max-dim", 16, "--losses.adversarial-from", 0.5),
    *("--frame-discriminator.dim", 8, "--motion-discriminator.dim", 8),
]
TRAIN = ["train", "video/tokenizer_tiny", *FEW]
FACTOR, TIME_FACTOR = 4, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three steps on built-in clips. Never to be written to."""
    path = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in (*TRAIN, "--run", path, "--steps", 3)])
    assert not ended.value.code
    return path


@pytest.fixture(scope="module")
def model(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What it has learned, as an exported folder."""
    return quintet.load(run).save_pretrained(tmp_path_factory.mktemp("exported") / "model")


def waves(length: int, height: int, width: int) -> np.ndarray:
    """Smooth colours that move: uint8 (t, h, w, 3)."""
    y, x, t = np.mgrid[:height, :width, :length].astype(np.float32)
    colours = [np.sin((x + 3 * t) / 9), np.cos((y + 2 * t) / 7), np.sin((x + y - t) / 11)]
    return (127 + 100 * np.stack(colours, -1)).astype(np.uint8).transpose(2, 0, 1, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five videos, three GIFs and four images in one folder. Never to be written to."""
    folder = tmp_path_factory.mktemp("written")
    for index in range(12):
        frames = waves(9 + index, 20 + index, 24)
        if index < 5:
            write_mp4(folder / f"{index:02d}.mp4", frames, 12)
        elif index < 8:
            write_gif(folder / f"{index:02d}.gif", frames, 10)
        else:
            write_png(folder / f"{index:02d}.png", frames[0])
    return folder


@pytest.fixture
def footage(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "footage"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))


def ids_of(path: Path) -> torch.Tensor:
    return load_file(path)["ids"]


# -- train, resume, evaluate, export, doctor --------------------------------------------------


def test_a_folder_of_videos_and_images_goes_all_the_way(
    footage: Path, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    folder = tmp_path / "run"
    result = cli(*TRAIN, footage, "--run", folder, "--steps", 2)
    assert result.status == 0, result.err
    assert "run is at step 2" in result.out
    assert json.loads((folder / "config.json").read_text())["settings"]["data"] == str(footage)
    assert lines(folder)[0]["data/damaged"] == 0
    shown = {path.suffix for path in (folder / "exhibits").rglob("*") if path.is_file()}
    assert shown == {".png", ".gif", ".mp4"}
    assert (folder / "report.html").stat().st_size > 1000
    result = cli("resume", folder, "--steps", 3)
    assert result.status == 0, result.err
    assert "run is at step 3" in result.out
    assert {"frame_discriminator/loss", "motion_discriminator/loss"} <= lines(folder)[-2].keys()
    result = cli("export", folder, tmp_path / "model")
    assert result.status == 0, result.err
    again, loaded = quintet.VideoTokenizer.from_pretrained(tmp_path / "model"), quintet.load(folder)
    clip = torch.rand(1, 3, 5, 16, 16)
    assert again.tokenize(clip).equal(loaded.tokenize(clip))


def test_a_run_is_measured_on_another_folder_and_on_its_own_data(
    footage: Path, run: Path, cli: Callable[..., Said]
) -> None:
    result = cli("evaluate", run, footage, "--device", "cpu")
    assert result.status == 0, result.err
    record = json.loads(result.out.splitlines()[-1])
    assert record["samples"] == 12
    own = json.loads(cli("evaluate", run, "--device", "cpu").out.splitlines()[-1])
    last = [line for line in lines(run) if "val/psnr" in line][-1]
    assert own["samples"] == 2
    assert own["psnr"] == last["val/psnr"] != record["psnr"]


def test_all_of_another_folder_is_measured_however_few_are_held_out(
    footage: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    path = tmp_path / "run"
    more = ["--videos.valid-fraction", 0.5, "--videos.valid-limit", 1]
    assert cli(*TRAIN, footage, *more, "--run", path, "--steps", 1).status == 0
    record = json.loads(cli("evaluate", path, footage).out.splitlines()[-1])
    assert record["samples"] == 12


def test_the_doctor_reads_every_video_and_image(footage: Path, cli: Callable[..., Said]) -> None:
    write_mp4(footage / "slow.mp4", waves(4, 32, 32), 0.2)  # a show of slides
    assert "13 files, 13 usable, 0" in cli("doctor", "video", footage).out
    (footage / "letter.mp4").write_text("hello, I am a letter")
    result = cli("doctor", "video", footage)
    assert result.status == 0
    assert "14 files, 13 usable, 1" in result.out
    assert "letter.mp4" in result.out


@pytest.mark.parametrize("workers", [0, 2])
def test_a_library_that_has_changed_ends_the_run_and_is_named(
    workers: int,
    footage: Path,
    tmp_path: Path,
    cli: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that the installed version does not know is no damage of any file."""

    def newer(*_: object, **keywords: object) -> None:
        raise TypeError("open() got an unexpected keyword argument 'options'")

    monkeypatch.setattr(av, "open", newer)
    command = [*TRAIN, footage, "--run", tmp_path / "run", "--max-damaged", 1]
    result = cli(*command, "--workers", workers)
    assert result.status == 2
    assert f"not because it is damaged: av {av.__version__} raised TypeError: open()" in result.err
    assert "Traceback" not in result.err
    assert cli("doctor", "video", footage).status == 2


def test_a_newer_av_is_not_given_a_keyword_that_it_lacks(
    footage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = av.open

    def of_19(file: object, mode: str, form: str, options: dict[str, str]) -> object:
        return original(file, mode, form, options)

    monkeypatch.setattr(av, "open", of_19)
    monkeypatch.setattr(av, "__version__", "19.0.0")
    for path in footage.rglob("*.mp4"):
        assert probe(path).frames


def test_bad_files_among_good_ones_are_skipped_by_name(
    footage: Path, bad: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    shutil.copytree(bad, footage, dirs_exist_ok=True)
    more = ["--run", tmp_path / "run", "--batch-size", 12, "--steps", 2, "--max-damaged", 0.9]
    result = cli(*TRAIN, footage, *more)
    assert result.status == 0, result.err
    events = [line["message"] for line in lines(tmp_path / "run", "events")]
    skipped = " ".join(event for event in events if event.startswith("skipped "))
    assert all(name in skipped for name in BAD if name != "half.mp4")
    assert "half.mp4" not in skipped, "the frames that are there are used"


def test_held_out_files_that_cannot_be_read_do_not_stop_a_sample(
    footage: Path, bad: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    shutil.copytree(bad, footage, dirs_exist_ok=True)
    more = ["--videos.valid-fraction", 0.6, "--videos.valid-limit", 20, "--max-damaged", 1]
    assert cli(*TRAIN, footage, *more, "--run", tmp_path / "run", "--steps", 1).status == 0
    result = cli("sample", tmp_path / "run", "--count", 20, "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert len(names(tmp_path / "out")) >= 3


# -- sample: what comes back ------------------------------------------------------------------


@pytest.mark.by_default("odd.mp4*", "moving.gif*", "alone.mp4*")
@pytest.mark.parametrize(
    ("name", "length", "height", "width", "rate"),
    [
        ("even.mp4", 12, 32, 48, 24.0),
        ("odd.mp4", 11, 50, 71, 29.97),
        ("alone.mp4", 1, 32, 32, 25.0),
        ("slow.mp4", 5, 32, 32, 0.5),
        ("moving.gif", 9, 33, 41, 12.5),
        ("alone.gif", 1, 20, 20, 10.0),
        ("LOUD.GIF", 3, 20, 20, 10.0),
    ],
)
def test_a_clip_comes_back_alone_and_beside_its_original(
    name: str,
    length: int,
    height: int,
    width: int,
    rate: float,
    run: Path,
    tmp_path: Path,
    cli: Callable[..., Said],
) -> None:
    inputs, out = tmp_path / name, tmp_path / "out"
    write = write_mp4 if name.endswith("mp4") else write_gif
    write(inputs, waves(length, height, width), rate)
    stored = probe(inputs)
    result = cli("sample", run, inputs, "--out", out, "--chunk", 4, "--device", "cpu")
    assert result.status == 0, result.err
    endings = ("reconstruction.mp4", "comparison.mp4", "ids.safetensors")
    output = [out / f"{inputs.stem}.{ending}" for ending in endings]
    assert result.out.split() == [str(path) for path in output]
    assert names(out) == sorted(path.name for path in output)
    rows, columns = (side // FACTOR * FACTOR for side in (stored.height, stored.width))
    alone = np.stack(list(frames_of(output[0]))).astype(int)
    frames = np.stack(list(frames_of(output[1])))
    assert frames.shape == (length, rows, 2 * columns + 4, 3)
    assert alone.shape[:2] == (length, rows + rows % 2)
    for clip in output[:2]:
        actual = probe(clip)
        assert actual.rate == pytest.approx(stored.rate, rel=1e-3)
        assert actual.seconds == pytest.approx(length / stored.rate, abs=2 / stored.rate / length)
    original = np.stack(list(frames_of(inputs)))[:, :rows, :columns].astype(int)
    assert np.abs(frames[:, :, :columns] - original).mean() < 12
    assert np.abs(frames[:, :, columns + 4 :] - alone[:, :rows, :columns]).mean() < 8
    latents = 1 + -(-(length - 1) // TIME_FACTOR)
    assert ids_of(output[2]).shape == (1, latents, rows // FACTOR, columns // FACTOR)


def test_an_image_comes_back_alone_and_beside_its_original(
    run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    write_png(tmp_path / "photo.png", waves(1, 40, 56)[0])
    result = cli("sample", run, tmp_path / "photo.png", "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert names(tmp_path / "out") == [
        "photo.comparison.png",
        "photo.ids.safetensors",
        "photo.reconstruction.png",
    ]
    picture = read_image(tmp_path / "out/photo.reconstruction.png")
    whole = torch.from_numpy(waves(1, 40, 56)[0]).permute(2, 0, 1)[None].float() / 255
    assert np.array_equal(picture, to_bytes(quintet.load(run).reconstruct(whole)[0, :, 0]))
    assert read_image(tmp_path / "out/photo.comparison.png").shape[1] > 2 * 56
    actual = load_file(tmp_path / "out/photo.ids.safetensors")
    assert actual["ids"].shape == (1, 1, 10, 14)
    assert actual["frames"].tolist() == [1]


def test_indivisible_sizes_are_cropped_and_not_resampled(
    run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (43, 58, 3), np.uint8)
    write_png(tmp_path / "noise.png", noise)
    assert cli("sample", run, tmp_path / "noise.png", "--out", tmp_path / "out").status == 0
    middle = torch.from_numpy(noise[1:41, 1:57]).permute(2, 0, 1)[None].float() / 255
    expected = quintet.load(run).tokenize(middle)
    assert ids_of(tmp_path / "out/noise.ids.safetensors").equal(expected)


def test_size_resizes_and_crops(run: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    write_mp4(tmp_path / "a.mp4", waves(3, 50, 70), 10)
    out = tmp_path / "out"
    assert cli("sample", run, tmp_path / "a.mp4", "--size", 16, 24, "--out", out).status == 0
    assert ids_of(out / "a.ids.safetensors").shape == (1, 2, 4, 6)
    actual = probe(out / "a.reconstruction.mp4")
    assert (actual.height, actual.width) == (16, 24)


CHUNKS = [(10, 1), (10, 3), (10, 7), (11, 2), (11, 10), (11, 1000)]
OTHER_CHUNKS = [(10, 2), (10, 10), (10, 1000), (11, 1), (11, 3), (11, 7)]


@pytest.mark.by_default("10-3", "11-10")
@pytest.mark.parametrize(
    ("length", "chunk"),
    [*CHUNKS, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_CHUNKS)],
)
def test_ids_in_chunks_of_any_size_are_those_of_the_whole(
    length: int, chunk: int, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    frames = waves(length, 16, 24)
    write_gif(tmp_path / "a.gif", frames, 10)
    stored = np.stack(list(frames_of(tmp_path / "a.gif")))
    padded = np.concatenate([stored, stored[-1:]]) if length == 10 else stored
    clip = torch.from_numpy(padded).permute(3, 0, 1, 2)[None].float() / 255
    expected = quintet.load(run).tokenize(clip)
    out = tmp_path / "out"
    assert cli("sample", run, tmp_path / "a.gif", "--chunk", chunk, "--out", out).status == 0
    actual = load_file(out / "a.ids.safetensors")
    assert actual["ids"].equal(expected)
    assert actual["frames"].tolist() == [length]
    assert len(list(frames_of(out / "a.reconstruction.mp4"))) == length


@pytest.mark.by_default("11")
@pytest.mark.parametrize("length", [1, 10, 11])
def test_ids_decode_to_the_clip_that_they_came_from(
    length: int, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    write_mp4(tmp_path / "a.mp4", waves(length, 32, 32), 10)
    out = tmp_path / "out"
    assert cli("sample", run, tmp_path / "a.mp4", "--out", out).status == 0
    arguments = [out / "a.ids.safetensors", "--fps", 10, "--chunk", 3]
    result = cli("sample", run, *arguments, "--out", out)
    assert result.status == 0, result.err
    assert result.out.split() == [str(out / "a.decoded.mp4")]
    output = np.stack(list(frames_of(out / "a.reconstruction.mp4")))
    decoded = np.stack(list(frames_of(out / "a.decoded.mp4")))
    assert decoded.shape == output.shape == (length, 32, 32, 3)
    assert np.abs(decoded.astype(int) - output).mean() < 8  # both have been through H.264
    assert probe(out / "a.decoded.mp4").rate == pytest.approx(10)


def test_latents_in_chunks_are_those_of_the_whole_and_decode_to_the_clip(
    tmp_path: Path, cli: Callable[..., Said]
) -> None:
    layers = ("residual", "compress_time")
    sizes: dict[str, Any] = {"init_dim": 8, "max_dim": 8, "patch_size": 4, "layers": layers}
    torch.manual_seed(0)
    tokenizer = quintet.VideoTokenizer(**sizes, quantiser="kl", latent_channels=3).eval()
    folder = tokenizer.save_pretrained(tmp_path / "model")
    write_gif(tmp_path / "a.gif", waves(11, 16, 24), 10)
    out = tmp_path / "out"
    assert cli("sample", folder, tmp_path / "a.gif", "--chunk", 4, "--out", out).status == 0
    stored = np.stack(list(frames_of(tmp_path / "a.gif")))
    clip = torch.from_numpy(stored).permute(3, 0, 1, 2)[None].float() / 255
    latents = load_file(out / "a.latents.safetensors")["latents"]
    assert latents.shape == (1, 3, 6, 4, 6)
    torch.testing.assert_close(latents, tokenizer.encode_latents(clip), atol=1e-5, rtol=1e-4)
    result = cli("sample", folder, out / "a.latents.safetensors", "--chunk", 3, "--out", out)
    assert result.out.split() == [str(out / "a.decoded.mp4")]
    output, decoded = (
        np.stack(list(frames_of(out / f"a.{name}.mp4"))) for name in ("reconstruction", "decoded")
    )
    # Chunks of another length round some pixels otherwise, and the codec spreads it: by 0.3 to 0.6
    # on average. Frames in another order, or of other latents, differ by more than 10.
    assert np.abs(decoded.astype(int) - output).mean() < 2
    assert np.abs(decoded[::-1].astype(int) - output).mean() > 10
    assert probe(out / "a.decoded.mp4").rate == pytest.approx(10)


def test_ids_decode_at_the_rate_of_their_clip_unless_told_otherwise(
    run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    write_mp4(tmp_path / "a.mp4", waves(5, 16, 16), 30)
    out = tmp_path / "out"
    assert cli("sample", run, tmp_path / "a.mp4", "--out", out).status == 0
    ids = out / "a.ids.safetensors"
    for words, rate in (([], 30), (["--fps", 12], 12)):
        assert cli("sample", run, ids, *words, "--out", out).status == 0
        assert probe(out / "a.decoded.mp4").rate == pytest.approx(rate)
    save_file(load_file(ids) | {"fps": torch.tensor([0.0])}, ids)
    assert "'fps' is 0.0" in cli("sample", run, ids, "--out", out).sentence


def test_ids_of_another_model_are_refused_unless_told_otherwise(
    run: Path, model: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    write_png(tmp_path / "a.png", waves(1, 16, 16)[0])
    out, ids = tmp_path / "out", tmp_path / "out/a.ids.safetensors"
    assert cli("sample", run, tmp_path / "a.png", "--out", out).status == 0
    assert cli("sample", model, ids, "--out", out).status == 0, "the export has the same weights"
    other = quintet.load(run)
    torch.nn.init.zeros_(next(other.parameters()))
    other.save_pretrained(tmp_path / "other")
    refused = cli("sample", tmp_path / "other", ids, "--out", out)
    assert "ids of another model" in refused.sentence
    assert "--any-model" in refused.sentence
    assert cli("sample", tmp_path / "other", ids, "--any-model", "--out", out).status == 0


def test_a_folder_keeps_its_structure_and_skips_what_cannot_be_read(
    footage: Path, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    for path in sorted(footage.iterdir())[2:-1]:
        path.unlink()
    (footage / "more").mkdir()
    (footage / "00.mp4").rename(footage / "more/01.mp4")
    (footage / "letter.mp4").write_text("hello, I am a letter")
    out = footage / "out"
    for _ in range(2):  # the results of the first call are no inputs of the second
        result = cli("sample", run, footage, "--out", out)
        assert result.status == 0, result.err
        assert "letter.mp4" in result.err
        assert "1 of 4 files were skipped" in result.err
        results = sorted(p.relative_to(out).as_posix() for p in out.rglob("*.reconstruction.*"))
        assert results == [
            "01.reconstruction.mp4",
            "11.reconstruction.png",
            "more/01.reconstruction.mp4",
        ]


def test_several_clips_of_ids_are_numbered(
    run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    save_file({"ids": torch.randint(0, 1600, (2, 3, 4, 6))}, tmp_path / "b.safetensors")
    result = cli("sample", run, tmp_path / "b.safetensors", "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert names(tmp_path / "out") == ["b.decoded-000.mp4", "b.decoded-001.mp4"]
    actual = probe(tmp_path / "out/b.decoded-001.mp4")
    assert (actual.frames, actual.height, actual.width) == (5, 16, 24)


def test_validation_clips_are_reconstructed_without_inputs(
    run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    result = cli("sample", run, "--count", 1, "--out", tmp_path / "out")
    assert result.status == 0, result.err
    assert names(tmp_path / "out") == [
        "validation-000.comparison.mp4",
        "validation-000.ids.safetensors",
        "validation-000.mp4",
        "validation-000.reconstruction.mp4",
    ]
    assert cli("sample", run, "--count", 99, "--out", tmp_path / "all").status == 0
    assert len(names(tmp_path / "all")) == 2 * 4


def test_an_export_is_as_good_as_its_run(
    run: Path, model: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    write_mp4(tmp_path / "a.mp4", waves(6, 32, 32), 10)
    for source, out in ((run, "run"), (model, "export")):
        result = cli("sample", source, tmp_path / "a.mp4", "--out", tmp_path / out)
        assert result.status == 0, result.err
    assert names(tmp_path / "run") == names(tmp_path / "export")
    one, two = (ids_of(tmp_path / path / "a.ids.safetensors") for path in ("run", "export"))
    assert one.equal(two)


MEMORY = """
import resource, sys
from pathlib import Path
from quintet import rooms
from quintet.video.tokenizer.sample import Flags, sample

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

model, out, *given = map(Path, sys.argv[1:])
for path in given:
    sample(rooms.trained(model)[1], [path], out, Flags(chunk=8, device="cpu"))
    print(peak())
"""


def peaks(model: Path, out: Path, short: Path, long: Path) -> list[int]:
    """Most megabytes ever in use after a short clip, and after a long one."""
    arguments = [sys.executable, "-c", MEMORY, *map(str, (model, out, short, long))]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_video(model: Path, tmp_path: Path) -> None:
    """360 more frames of 96 x 96 are 10 MB of bytes and 40 MB of floats, once."""
    for name, length in (("short", 40), ("long", 400)):
        frames = (waves(1, 96, 96) + number // 8 for number in range(length))
        write_mp4(tmp_path / f"{name}.mp4", (f.astype(np.uint8) for f in frames), 24)
    short, long = peaks(model, tmp_path, tmp_path / "short.mp4", tmp_path / "long.mp4")
    assert long - short < 8


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_ids(model: Path, tmp_path: Path) -> None:
    """540 more frames, from ids that take 1 MB themselves."""
    for name, latents in (("short", 31), ("long", 301)):
        ids = torch.full((1, latents, 24, 24), 7)
        save_file({"ids": ids}, tmp_path / f"{name}.safetensors")
    source = tmp_path / "short.safetensors", tmp_path / "long.safetensors"
    short, long = peaks(model, tmp_path, *source)
    assert long - short < 10


# -- sample: what is refused ------------------------------------------------------------------


def truncated_after(path: Path, packets: int) -> bytes:
    """A file whose header is whole and which ends between two frames."""
    with av.open(str(path)) as container:
        ends = sorted(p.pos + p.size for p in container.demux(video=0) if p.size and p.pos)
    return path.read_bytes()[: ends[packets - 1]]


BAD = {
    "text.mp4": "is none of MP4",
    "empty.webm": "0 bytes",
    "headless.mp4": "headless.mp4",
    "half.mp4": "ends at",
    "bare.mp4": "bare.mp4",
    "noise.gif": "noise.gif",
    "noise.png": "noise.png",
    "song.mp4": "holds no video",
}
"""Files that cannot be used, and a word of the reason."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of four seconds. Never to be written to."""
    path = tmp_path_factory.mktemp("whole") / "whole.mp4"
    write_mp4(path, waves(96, 32, 32), 24)
    return path


@pytest.fixture(scope="module")
def bad(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of BAD. Never to be written to."""
    folder, content = tmp_path_factory.mktemp("bad"), whole.read_bytes()
    (folder / "text.mp4").write_text("hello, I am a letter")
    (folder / "empty.webm").write_bytes(b"")
    (folder / "headless.mp4").write_bytes(content[len(content) // 2 :])
    (folder / "half.mp4").write_bytes(content[: len(content) // 2])
    (folder / "bare.mp4").write_bytes(content[: content.index(b"mdat") + 4])
    (folder / "noise.gif").write_bytes(b"GIF89a" + np.random.default_rng(0).bytes(2000))
    (folder / "noise.png").write_bytes(b"\x89PNG\r\n\x1a\n" + np.random.default_rng(0).bytes(2000))
    with av.open(str(folder / "song.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16_000)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 16_000), np.float32), format="fltp", layout="mono"
        )
        frame.rate = 16_000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    return folder


@pytest.mark.parametrize("name", BAD)
def test_sample_names_a_file_that_cannot_be_used(
    name: str, bad: Path, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    result = cli("sample", run, bad / name, "--out", tmp_path / "out")
    assert name in result.sentence
    assert BAD[name] in result.sentence
    assert names(tmp_path / "out") == []  # and half a reconstruction is none


def test_a_video_that_ends_before_its_header_says_is_rejected(
    whole: Path, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    (tmp_path / "cut.mp4").write_bytes(truncated_after(whole, 48))
    result = cli("sample", run, tmp_path / "cut.mp4", "--out", tmp_path / "out")
    assert "cut.mp4" in result.sentence
    assert "header" in result.sentence


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"ids": torch.full((1, 3, 4, 4), 1600)}, "outside"),
        ({"ids": torch.full((1, 3, 4, 4), -1)}, "outside"),
        ({"ids": torch.zeros(1, 3, 4, 4)}, "integer ids"),
        ({"ids": torch.zeros(3, 4, 4, dtype=torch.long)}, r"(b, t, h, w)"),
        ({"ids": torch.zeros(1, 0, 4, 4, dtype=torch.long)}, r"(batch, t, h, w)"),
        ({"numbers": torch.zeros(1, 3, 4, 4, dtype=torch.long)}, "'ids'"),
        ({"ids": torch.zeros(1, 3, 4, 4, dtype=torch.long), "frames": torch.tensor([0])}, "frames"),
        (
            {"ids": torch.zeros(1, 3, 4, 4, dtype=torch.long), "frames": torch.tensor([-2])},
            "frames",
        ),
        (
            {
                "ids": torch.zeros(1, 3, 4, 4, dtype=torch.long),
                "frames": torch.zeros(0, dtype=torch.long),
            },
            "frames",
        ),
    ],
)
def test_invalid_ids_are_rejected(
    found: dict[str, torch.Tensor],
    reason: str,
    run: Path,
    tmp_path: Path,
    cli: Callable[..., Said],
) -> None:
    save_file(found, tmp_path / "a.safetensors")
    result = cli("sample", run, tmp_path / "a.safetensors", "--out", tmp_path / "out")
    assert "a.safetensors" in result.sentence
    assert reason in result.sentence


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere.mp4"], "nowhere.mp4 is not a file"),
        (["EMPTY"], "holds no videos"),
        (["--count", 0], "--count is 0"),
        (["--chunk", -4], "--chunk is -4"),
        (["--fps", 0], "--fps is 0"),
        (["--fps", 5000], "--fps is 5000"),
        (["--fps", "nan"], "--fps is nan"),
        (["--fps", 1e-5], "--fps is 1e-05"),
        (["--size", 30, 32], "divisible by the factor 4"),
        (["--size", 0, 0], "divisible by the factor 4"),
    ],
)
def test_invalid_flags_are_rejected_before_anything_is_written(
    words: list[Any], reason: str, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    (tmp_path / "empty").mkdir()
    words = [tmp_path / "empty" if word == "EMPTY" else word for word in words]
    assert reason in cli("sample", run, *words, "--out", tmp_path / "out").sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "inputs", [("a.mp4", "a.gif"), ("a.safetensors", "a.ids.safetensors")], ids=["clips", "ids"]
)
def test_two_inputs_that_would_overwrite_each_other_are_rejected(
    inputs: tuple[str, str], run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    for name in inputs:
        save_file({"ids": torch.zeros(1, 1, 4, 4, dtype=torch.long)}, tmp_path / name)
    arguments = [tmp_path / name for name in inputs]
    assert "two inputs" in cli("sample", run, *arguments, "--out", tmp_path / "out").sentence
    assert not (tmp_path / "out").exists()


def test_a_frame_below_the_factor_asks_for_a_size(
    run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    Image.new("RGB", (40, 3)).save(tmp_path / "thin.png")
    result = cli("sample", run, tmp_path / "thin.png", "--out", tmp_path / "out")
    assert "smaller than the factor 4" in result.sentence
    arguments = ["--size", 8, 8, "--out", tmp_path / "out"]
    assert cli("sample", run, tmp_path / "thin.png", *arguments).status == 0


def test_an_exported_model_has_no_clips_of_its_own(
    model: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    result = cli("sample", model, "--out", tmp_path / "out")
    assert "without data; give videos" in result.sentence


def test_a_folder_of_which_nothing_is_held_out_asks_for_videos(
    tmp_path: Path, cli: Callable[..., Said]
) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    write_mp4(folder / "only.mp4", waves(9, 32, 32), 10)
    arguments = ["--batch-size", 1, "--run", tmp_path / "run", "--steps", 1]
    assert cli(*TRAIN, folder, *arguments).status == 0
    result = cli("sample", tmp_path / "run", "--out", tmp_path / "out")
    assert "validation clips" in result.sentence


# -- without PyAV -----------------------------------------------------------------------------


@pytest.fixture
def without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "av" or name.startswith("av.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "av", None)


def test_videos_without_pyav_name_the_extra(
    footage: Path, run: Path, tmp_path: Path, cli: Callable[..., Said], without_pyav: None
) -> None:
    for inputs in ("00.mp4", "05.gif"):  # a GIF can be read, but its reconstruction is an mp4
        result = cli("sample", run, footage / inputs, "--out", tmp_path / "out")
        assert "quintet[video]" in result.sentence
    result = cli(*TRAIN, footage, "--run", tmp_path / "run", "--steps", 2)
    assert "quintet[video]" in result.sentence
    assert "quintet[video]" in cli("doctor", "video", footage).sentence


@pytest.mark.slow
def test_the_extra_is_named_in_one_sentence_when_a_worker_misses_it(
    footage: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['av'] = None")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    arguments = [*TRAIN, footage, "--run", tmp_path / "run", "--steps", 1, "--workers", 1]
    done = subprocess.run(
        [sys.executable, "-m", "quintet", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert "Traceback" not in done.stderr
    assert "quintet[video]" in Said(done.returncode, done.stdout, done.stderr).sentence


def test_built_in_clips_gifs_and_images_need_no_pyav(
    footage: Path, run: Path, tmp_path: Path, cli: Callable[..., Said], without_pyav: None
) -> None:
    for video in footage.glob("*.mp4"):
        video.unlink()
    for arguments, folder in (([], "built-in"), ([footage], "folder")):
        result = cli(*TRAIN, *arguments, "--run", tmp_path / folder, "--steps", 1)
        assert result.status == 0, result.err
        shown = {path.suffix for path in (tmp_path / folder / "exhibits").rglob("*.*")}
        assert shown == {".png", ".gif"}
    assert cli("sample", run, footage / "08.png", "--out", tmp_path / "out").status == 0
