"""The clip generator on a small tokenizer: from text, from a first frame, and in chunks."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quintet import VideoMaskGit, VideoMaskGitTrainer, VideoTokenizer
from quintet.cli import main
from quintet.engine.machine.world import World
from quintet.media.clips.reader import frames_of, probe
from quintet.media.clips.writer import write_mp4
from quintet.shared.generation.data import in_floats
from quintet.video import recipes
from quintet.video.data import open_data
from quintet.video.maskgit.task import VideoMaskGitTask

MODEL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "text_length": 64}
FEW: dict[str, Any] = {
    "steps": 2,
    "batch_size": 2,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
    "compile": "off",
    "trackers": (),
}


@pytest.fixture(scope="module")
def tokenizer() -> VideoTokenizer:
    torch.manual_seed(0)
    return VideoTokenizer(
        init_dim=16,
        max_dim=16,
        patch_size=4,
        layers=("residual", "compress_time"),
        levels=(8, 5),
    ).eval()


@pytest.fixture
def model(tokenizer: VideoTokenizer) -> VideoMaskGit:
    torch.manual_seed(1)
    return VideoMaskGit(tokenizer, image_size=8, frames=9, **MODEL).eval()


def test_the_grid_is_that_of_the_ids(model: VideoMaskGit, tokenizer: VideoTokenizer) -> None:
    assert model.config.grid == tuple(tokenizer.tokenize(torch.rand(1, 3, 9, 8, 8)).shape[1:])
    assert model.clip_shape == (9, 8, 8)
    with pytest.raises(ValueError, match="8 frames do not fit the time factor 2"):
        VideoMaskGit(tokenizer, image_size=8, frames=8, **MODEL)


def test_given_frames_stay_and_the_rest_is_new(model: VideoMaskGit) -> None:
    frame, clip = torch.rand(3, 8, 8), torch.rand(3, 4, 8, 8)
    made = model.generate(["a"], count=2, clip=frame, steps=3)
    assert made.shape == (2, 3, 9, 8, 8)
    assert torch.equal(made[:, :, 0], frame.expand(2, -1, -1, -1))
    assert not torch.equal(made[0], made[1])
    longer = model.generate(["a"], clip=clip, steps=3)
    assert torch.equal(longer[0, :, :4], clip)


def test_the_first_latent_frames_are_those_of_the_given_ones(
    model: VideoMaskGit, tokenizer: VideoTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, seen = torch.rand(3, 5, 8, 8), []
    complete = model.complete
    monkeypatch.setattr(
        model, "complete", lambda ids, *rest: seen.append(ids) or complete(ids, *rest)
    )
    model.generate(["a"], clip=clip, steps=2)
    (ids,) = seen
    given = tokenizer.tokenize(clip[None]).flatten(1)
    assert torch.equal(ids[:, : given.shape[1]], given)
    assert (ids[:, given.shape[1] :] == -1).all()


@pytest.mark.by_default("2")
@pytest.mark.parametrize("overlap", [None, 0, 2])
def test_a_clip_in_chunks_is_the_whole(model: VideoMaskGit, overlap: int | None) -> None:
    """Continued in two calls it is that of one, of any length."""
    settings: dict[str, Any] = {"steps": 2, "seed": 4, "overlap": overlap}
    whole = model.generate(["a"], frames=25, **settings)
    assert whole.shape[2] == 25
    start = model.generate(["a"], frames=9, **settings)
    assert torch.equal(whole[:, :, :9], start)
    assert torch.equal(model.generate(["a"], clip=start[0], frames=25, **settings), whole)
    assert torch.equal(model.generate(["a"], frames=20, **settings), whole[:, :, :20])


def test_a_clip_does_not_depend_on_its_batch(model: VideoMaskGit) -> None:
    texts = [f"number {index}" for index in range(60)]  # two blocks
    together = model.generate(texts, steps=2, frames=11)
    alone = model.generate(texts[55:], steps=2, frames=11, first=55)
    assert torch.equal(together[55:], alone)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"clip": torch.rand(3, 16, 8)}, "continues clips of 8 x 8 pixels"),
        ({"clip": torch.rand(1, 4, 8, 8)}, "continues clips of 8 x 8 pixels"),
        (
            {"clip": torch.rand(3, 12, 8, 8), "frames": 9},
            "the clip has 12 frames already; frames is 9",
        ),
        ({"frames": 0}, "frames is 0; it must be 1 or more"),
        ({"overlap": 8}, "overlap is 8; it must be 0 to 6 frames"),
    ],
)
def test_clips_that_cannot_be_continued_are_refused(
    model: VideoMaskGit, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        model.generate(["a"], steps=1, **settings)


def test_cached_ids_are_those_of_the_tokenizer(tokenizer: VideoTokenizer, tmp_path: Path) -> None:
    base = recipes.maskgit_tiny()
    settings = dataclasses.replace(
        base,
        tokenizer=str(tokenizer.save_pretrained(tmp_path / "tokenizer")),
        videos=dataclasses.replace(
            base.videos, frames=5, size=(16, 16), builtin_count=6, valid_limit=2
        ),
        **FEW,
    )
    task = VideoMaskGitTask(settings)
    task.prepare(World(settings))
    source = open_data(None, settings.videos, "train", settings.seed)
    ids = task.data("train")
    for index in (0, 5):
        sample = source.keyed(index, None)
        fresh = tokenizer.tokenize(in_floats(sample["video"][None], tokenizer))
        assert torch.equal(ids.keyed(index, None)["codes"].long(), fresh.flatten())
        assert ids.text(index) == sample["text"]


def test_the_trainer_learns_a_data_set_of_clips(tokenizer: VideoTokenizer, tmp_path: Path) -> None:
    items = [{"video": torch.rand(3, 9, 8, 8), "text": f"number {n}"} for n in range(8)]
    model = VideoMaskGit(tokenizer, image_size=8, frames=9, **MODEL)
    keywords = {**FEW, "run": tmp_path / "run", "valid_fraction": 0.25, "count": 1}
    trainer = VideoMaskGitTrainer(model, items, **keywords)
    assert trainer.train() == 2
    assert trainer.generate(["number 3"], steps=2, frames=13).shape == (1, 3, 13, 8, 8)


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def sample(
    model: VideoMaskGit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    folder = model.save_pretrained(tmp_path / "model")

    def call(*words: Any) -> tuple[int, str, str]:
        status = 0
        capsys.readouterr()
        try:
            main(["sample", str(folder), *map(str, words), "--out", str(tmp_path / "out")])
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        return status, said.out, " ".join(said.err.split())

    return call


def clip_file(path: Path, frames: int, rate: float) -> Path:
    values = np.random.default_rng(0).integers(0, 255, (frames, 16, 16, 3), np.uint8)
    write_mp4(path, values, rate)
    return path


def test_a_first_frame_and_a_clip_are_continued(
    sample: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """At the rate of the clip; to the length that is asked for."""
    frame = tmp_path / "a.png"
    Image.fromarray(np.full((16, 16, 3), 200, np.uint8)).save(frame)
    clip = clip_file(tmp_path / "a.mp4", 3, 5.0)
    for start, frames, rate in ((frame, 13, 16), (clip, 11, 5)):
        status, out, err = sample("--text", "a", "--clip", start, "--frames", frames, "--count", 1)
        assert status == 0, err
        made = probe(Path(out.split()[0]))
        assert (made.frames, made.rate) == (frames, rate)
    first = next(frames_of(Path(out.split()[0])))
    given = next(frames_of(clip))
    assert first.shape == (8, 8, 3)
    assert abs(first.mean() - given.mean()) < 40  # neither is stored without loss


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", " "], "a caption is empty"),
        (["--text", "a", "--frames", "0"], "frames is 0; it must be 1 or more"),
        (["--text", "a", "--clip", "CLIP", "--frames", "2"], "has 3 frames already; frames is 2"),
        (["--text", "a", "--clip", "none.mp4"], "none.mp4: cannot be read"),
        (["CLIP"], "is a generator: give --text or --clip, and drop "),
    ],
)
def test_bad_input_is_answered_by_one_sentence(
    sample: Callable[..., tuple[int, str, str]], tmp_path: Path, words: list[str], sentence: str
) -> None:
    clip = clip_file(tmp_path / "a.mp4", 3, 5.0)
    status, _, err = sample(*[clip if word == "CLIP" else word for word in words])
    assert status == 2
    assert sentence in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
