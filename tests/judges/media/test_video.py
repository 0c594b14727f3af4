from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from judges.conftest import quick_first
from quintet.engine.errors import RunError
from quintet.judges import i3d
from quintet.judges.base import PairJudge
from quintet.judges.media import image as images
from quintet.judges.media import video as videos
from quintet.judges.networks import filled
from quintet.media.clips.writer import write_gif
from quintet.media.errors import BadFile

FRAMEWISE = [judge for judge in videos.JUDGES if issubclass(judge, videos.FramePairs)]
MOTION = [judge for judge in videos.JUDGES if issubclass(judge, videos.MotionPairs)]
FILES = {
    "lpips_vgg": "lpips_vgg.safetensors (or .pt, .pth)",
    "lpips_alex": "lpips_alex.safetensors (or .pt, .pth)",
    "fid": "inception.safetensors (or .pt, .pth)",
    "kid": "inception.safetensors (or .pt, .pth)",
    "fvd": "i3d.safetensors (or .pt, .pth)",
    "frechet_onnx": "clip_features.onnx",
}


def by_name(judge: type) -> str:
    return judge.name


@pytest.fixture
def clips(pictures: Tensor) -> list[Tensor]:
    """Three clips of nine frames: pictures that move to the right."""
    frames = [torch.stack([picture.roll(2 * t, -1) for t in range(9)]) for picture in pictures[:3]]
    return [clip[..., :48] for clip in frames]


# -- reading --------------------------------------------------------------------------------


def gif(path: Path, count: int) -> np.ndarray:
    """Frames of one grey each, which a GIF keeps."""
    frames = (
        np.zeros((count, 12, 20, 3), np.uint8)
        + np.arange(count, dtype=np.uint8)[:, None, None, None] * 20
    )
    write_gif(path, frames, 10)
    return frames


def test_the_first_frames_are_read_or_all(tmp_path: Path) -> None:
    frames = gif(tmp_path / "a.gif", 5)
    whole = videos.read(tmp_path / "a.gif", None, None)
    assert torch.equal(whole * 255, torch.from_numpy(frames).permute(0, 3, 1, 2).float())
    part = videos.read(tmp_path / "a.gif", 3, 8)
    assert part.shape == (3, 3, 8, 8)
    assert torch.equal(part[:, 0, 0, 0], whole[:3, 0, 0, 0])


def test_short_clips_are_not_padded(tmp_path: Path) -> None:
    gif(tmp_path / "a.gif", 5)
    with pytest.raises(BadFile, match="has 5 frames, not 6; give fewer frames"):
        videos.read(tmp_path / "a.gif", 6, None)


def test_an_encoded_clip_is_read_from_its_first_frame(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from quintet.media.clips.writer import write_mp4

    levels = np.linspace(40, 200, 12).astype(np.uint8)
    write_mp4(tmp_path / "a.mp4", np.broadcast_to(levels[:, None, None, None], (12, 32, 48, 3)), 8)
    clip = videos.read(tmp_path / "a.mp4", 4, 32)
    assert clip.shape == (4, 3, 32, 32)
    assert clip.mean((1, 2, 3)).mul(255).tolist() == pytest.approx(levels[:4].tolist(), abs=3)


def test_preparation_says_frames_and_size() -> None:
    read, words = videos.reader(SimpleNamespace(frames=16, size=64))
    assert words == videos.preparation(16, 64) != videos.preparation(None, 64)
    assert (words["frames"], words["size"]) == ("the first 16, consecutive", "64 x 64")
    assert read.keywords == {"frames": 16, "size": 64}  # type: ignore[attr-defined]


# -- known answers --------------------------------------------------------------------------


@pytest.mark.parametrize("judge", quick_first(FRAMEWISE), ids=by_name)
def test_a_clip_is_the_mean_of_its_frames(
    judge: type[videos.FramePairs],
    weights: Path,
    clips: list[Tensor],
    blurred: Callable[[Tensor, int], Tensor],
) -> None:
    one, frames = judge(), judge.of()
    short = [clip[:3] for clip in clips[:2]]
    harmed, worse = ([blurred(clip, n) for clip in short] for n in (1, 4))
    rows = one.rows(short, harmed)
    np.testing.assert_allclose(rows[1], frames.rows(short[1], harmed[1]).mean(), rtol=1e-6)
    sign = -1 if one.better == "higher" else 1
    values = [sign * one.mean(r) for r in (one.rows(short, short), rows, one.rows(short, worse))]
    assert values[0] < values[1] < values[2]
    assert one.facts().items() > frames.facts().items()


@pytest.mark.parametrize("judge", MOTION, ids=by_name)
def test_the_error_of_motion(judge: type[PairJudge], clips: list[Tensor]) -> None:
    one = judge()
    jitter = torch.randn(9, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    harmed = [[(clip + s * jitter).clamp(0, 1) for clip in clips] for s in (0, 0.01, 0.05)]
    values = [one.mean(one.rows(clips, outputs)) for outputs in harmed]
    assert values[0] == 0
    assert values == sorted(set(values))
    brighter = [clip * 0.5 + 50 / 255 for clip in clips]
    alone = np.stack([one.rows([a], [b])[0] for a, b in zip(clips, brighter)])
    np.testing.assert_array_equal(one.rows(clips, brighter), alone)


def test_a_brightness_that_moves_evenly_is_a_known_error() -> None:
    steps = torch.arange(4.0)[:, None, None, None].expand(4, 3, 8, 8)
    reference, output = 10 * steps / 255, 4 * steps / 255
    assert videos.Temporal().rows([reference], [output])[0] == pytest.approx(6 / 255)
    relative = videos.TemporalRelative()
    assert relative.mean(relative.rows([reference], [output])) == pytest.approx(0.6)


def test_standing_still_is_1_and_sums_come_before_the_ratio(clips: list[Tensor]) -> None:
    one = videos.TemporalRelative()
    still = [clip[:1].expand_as(clip) for clip in clips]
    assert one.mean(one.rows(clips, still)) == pytest.approx(1)
    assert one.mean(one.rows(still, still)) == 0  # also where nothing moves
    rows = np.array([[1.0, 2.0], [3.0, 10.0]])
    assert one.mean(rows) == pytest.approx(4 / 12)


def test_fvd_of_a_set_from_itself_is_0_and_from_noise_is_not(
    weights: Path, clips: list[Tensor], noisy: Callable[[Tensor, float], Tensor]
) -> None:
    fvd = videos.Fvd()
    real = fvd.features(clips)
    assert real.shape == (3, i3d.CLASSES)
    np.testing.assert_allclose(fvd.features(clips[1:2])[0], real[1], rtol=1e-5, atol=1e-6)
    assert fvd.distance(real, real[[2, 0, 1]]) < 1e-6
    near, far = (
        fvd.distance(real, fvd.features([noisy(clip, s) for clip in clips])) for s in (0.1, 0.4)
    )
    assert 1e-6 < near < far


def test_fvd_sees_the_order_of_frames(weights: Path, clips: list[Tensor]) -> None:
    fvd = videos.Fvd()
    shuffled = [clip[[4, 0, 7, 2, 8, 1, 5, 3, 6]] for clip in clips]
    assert fvd.distance(fvd.features(clips), fvd.features(shuffled)) > 1e-6


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", [videos.Psnr, videos.Temporal], ids=by_name)
def test_clips_of_different_lengths_are_refused(
    judge: type[PairJudge], clips: list[Tensor]
) -> None:
    with pytest.raises(RunError, match="9 frames of 48 x 64 and 8 frames of 48 x 64 pixels"):
        judge().rows(clips[:1], [clips[0][:8]])


def test_too_few_frames_are_refused(weights: Path, clips: list[Tensor]) -> None:
    with pytest.raises(RunError, match="fvd needs clips of at least 9 frames, not 8"):
        videos.Fvd().features([clips[0], clips[1][:8]])
    with pytest.raises(RunError, match="temporal needs clips of at least 2 frames"):
        videos.Temporal().rows([clips[0][:1]], [clips[0][:1]])


@pytest.mark.parametrize("judge", videos.JUDGES, ids=by_name)
def test_without_weights_a_sentence_names_the_file(judge: type, no_weights: Path) -> None:
    problem = judge().problem()
    if judge.name not in FILES:
        assert problem is None
        return
    assert problem is not None
    assert problem.endswith(f" as {no_weights / FILES[judge.name]}")


@pytest.mark.by_default("fvd", "lpips_alex", "frechet_onnx", "psnr", "temporal")
@pytest.mark.parametrize("judge", videos.JUDGES, ids=by_name)
def test_with_weights_there_is_no_problem_and_facts_are_words(judge: type, weights: Path) -> None:
    assert judge().problem() is None
    assert all(isinstance(value, str) for value in judge().facts().values())
    assert ("weights" in judge().facts()) == (judge.name in FILES)


def test_names_are_told_apart_within_a_medium() -> None:
    for module in (images, videos):
        names = [judge.name for judge in module.JUDGES]
        assert len(set(names)) == len(names)
        assert {judge.medium for judge in module.JUDGES} == {module.__name__.split(".")[-1]}


# -- I3D ------------------------------------------------------------------------------------


def test_padding_is_that_of_tensorflow() -> None:
    x = torch.zeros(1, 1, 9, 8, 7)
    assert i3d.padded(x, (3, 3, 3), (2, 2, 2)).shape[2:] == (11, 9, 9)
    ramp = torch.arange(1.0, 9).view(1, 1, 1, 1, 8)
    assert i3d.padded(ramp, (1, 1, 3), (1, 1, 2)).flatten().tolist() == [*range(1, 9), 0]


@pytest.mark.slow
def test_i3d_at_its_own_size_has_the_maps_of_the_paper(all_weights: Path) -> None:
    network = filled(i3d.I3D, load_file(all_weights / "i3d.safetensors"), "x")
    shapes = {}
    for name in ("Conv3d_1a_7x7", "Mixed_3c", "Mixed_4f", "Mixed_5c"):
        module = network.get_submodule(name)
        module.register_forward_hook(lambda m, i, out, name=name: shapes.update({name: out.shape}))
    with torch.no_grad():
        assert network(torch.full((1, 16, 3, 32, 48), 128.0)).shape == (1, 400)
    assert {name: tuple(shape[1:]) for name, shape in shapes.items()} == {
        "Conv3d_1a_7x7": (64, 8, 112, 112),
        "Mixed_3c": (480, 8, 28, 28),
        "Mixed_4f": (832, 4, 14, 14),
        "Mixed_5c": (1024, 2, 7, 7),
    }
