from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from judges.conftest import quick_first
from quintet.engine.errors import RunError
from quintet.judges import choosing, inception
from quintet.judges.base import PairJudge, SetJudge
from quintet.judges.media import image as images
from quintet.judges.networks import filled, tf1_bilinear

JUDGES = [*choosing.judges_of("image").values()]
SETS = [judge for judge in JUDGES if issubclass(judge, SetJudge)]
LEARNED = {
    "lpips_vgg": "lpips_vgg",
    "lpips_alex": "lpips_alex",
    "fid": "inception",
    "kid": "inception",
    "frechet_vgg": "vgg16",
    "frechet_onnx": "features.onnx",
}


def by_name(judge: type) -> str:
    return judge.name


# -- reading --------------------------------------------------------------------------------


def test_a_picture_of_the_right_size_keeps_every_level(tmp_path: Path) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(np.stack([levels, levels.T, 255 - levels], 2)).save(tmp_path / "a.png")
    picture = images.read(tmp_path / "a.png", 16)
    assert picture.shape == (3, 16, 16)
    assert torch.equal(picture[0] * 255, torch.from_numpy(levels).float())
    assert torch.equal(picture, images.read(tmp_path / "a.png", None))


def test_it_is_turned_by_exif_and_cropped_in_the_centre(tmp_path: Path) -> None:
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, :8, 0], pixels[:, 8:16, 1], pixels[:, 16:, 2] = 255, 255, 255
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert images.read(tmp_path / "a.png", None).shape == (3, 24, 8)
    assert images.read(tmp_path / "a.png", 8).mean((1, 2)).tolist() == [0, 1, 0]
    assert set(torch.unique(images.read(tmp_path / "a.png", 5) * 255 % 1).tolist()) == {0}


def test_preparation_is_in_words_and_differs_with_the_size() -> None:
    read, words = images.reader(SimpleNamespace(size=64))
    assert words == images.preparation(64) != images.preparation(None)
    assert words["size"] == "64 x 64"
    assert "Lanczos" in words["filter"]
    assert read.keywords == {"size": 64}  # type: ignore[attr-defined]


# -- known answers --------------------------------------------------------------------------


def test_psnr_of_a_known_error() -> None:
    a = torch.full((3, 16, 16), 100 / 255)
    off = torch.full((3, 16, 16), 105 / 255)
    assert images.Psnr().rows([a], [off])[0] == pytest.approx(20 * np.log10(255 / 5), rel=1e-12)
    within_rounding = a + 0.4 / 255
    assert images.Psnr().rows([a], [within_rounding])[0] == 100


@pytest.mark.parametrize("judge", quick_first(SETS), ids=by_name)
def test_sets_are_judged_without_order_and_shifts_count(
    judge: type[SetJudge],
    weights: Path,
    pictures: Tensor,
    noisy: Callable[[Tensor, float], Tensor],
) -> None:
    one = judge()
    real = one.features(pictures)
    assert one.distance(real, real) < 1e-6
    assert one.distance(real, real[[3, 1, 5, 0, 2, 4]]) < 1e-6
    near, far = (one.distance(real, one.features(noisy(pictures, s))) for s in (0.1, 0.4))
    assert (one.distance(real, real) if one.unbiased else 1e-6) < near < far


@pytest.mark.by_default("lpips_alex", "ssim", "frechet_onnx")
@pytest.mark.parametrize("judge", quick_first(JUDGES), ids=by_name)
def test_a_sample_does_not_depend_on_its_batch(
    judge: type[PairJudge] | type[SetJudge],
    weights: Path,
    pictures: Tensor,
    blurred: Callable[[Tensor, int], Tensor],
) -> None:
    one = judge()
    large = torch.rand(3, 80, 72, generator=torch.Generator().manual_seed(4))
    samples = [*pictures[:2], large, *pictures[2:4]]  # of two shapes
    others = [blurred(sample[None], 1)[0] for sample in samples]
    if isinstance(one, PairJudge):
        together = one.rows(samples, others)
        alone = [one.rows([a], [b])[0] for a, b in zip(samples, others)]
    else:
        assert isinstance(one, SetJudge)
        together = one.features(samples)
        alone = [one.features([sample])[0] for sample in samples]
    assert len(together) == 5
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("judge", [images.LpipsVgg, images.Fid], ids=by_name)
def test_a_gpu_gives_the_numbers_of_a_cpu(
    judge: type, weights: Path, pictures: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32, the default of convolutions, would be off by a thousandth."""
    values = []
    for name in ("cuda", "cpu"):
        monkeypatch.setattr(images, "device", lambda name=name: torch.device(name))
        one = judge()
        pair = isinstance(one, PairJudge)
        values.append(one.rows(pictures, pictures.flip(0)) if pair else one.features(pictures))
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-4 * np.abs(values[1]).max())


def test_pairs_of_different_sizes_are_refused() -> None:
    with pytest.raises(RunError, match="24 x 32 and 16 x 32 pixels; give one size"):
        images.Psnr().rows([torch.zeros(3, 32, 24)], [torch.zeros(3, 32, 16)])


# -- weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", JUDGES, ids=by_name)
def test_without_weights_a_sentence_names_the_file(judge: type, no_weights: Path) -> None:
    problem = judge().problem()
    if judge.name not in LEARNED:
        assert problem is None
        assert judge.needs == ""
        return
    file = no_weights / LEARNED[judge.name]
    assert problem is not None
    assert problem.removesuffix(".safetensors (or .pt, .pth)").endswith(f" as {file}")
    assert LEARNED[judge.name] in judge.needs
    with pytest.raises(RunError, match=LEARNED[judge.name]):
        judge().facts()


@pytest.mark.by_default("fid", "lpips_alex", "frechet_onnx", "psnr")
@pytest.mark.parametrize("judge", JUDGES, ids=by_name)
def test_with_weights_there_is_no_problem_and_facts_hold_their_digest(
    judge: type, weights: Path
) -> None:
    assert judge().problem() is None
    facts = judge().facts()
    assert all(isinstance(value, str) for value in facts.values())
    assert ("weights" in facts) == (judge.name in LEARNED)


def test_heads_alone_need_the_trunk_too(weights: Path, no_weights: Path) -> None:
    no_weights.mkdir()
    path = no_weights / "lpips_vgg.safetensors"
    path.write_bytes((weights / path.name).read_bytes())
    problem = images.LpipsVgg().problem()
    assert problem is not None
    assert "torchvision's VGG16 (https:" in problem
    assert f" as {no_weights / 'vgg16'}" in problem
    with pytest.raises(RunError, match="the judge lpips_vgg needs torchvision's VGG16"):
        images.LpipsVgg().facts()


def test_one_file_and_two_files_are_the_same_judge(
    weights: Path, no_weights: Path, pictures: Tensor
) -> None:
    no_weights.mkdir()
    both = load_file(weights / "lpips_alex.safetensors")
    heads = {name: value for name, value in both.items() if name.startswith("lin")}
    torch.save(heads, no_weights / "lpips_alex.pth")  # as they are published
    trunk = {name: value for name, value in both.items() if name not in heads}
    save_file(trunk, no_weights / "alexnet.safetensors")
    a, b = pictures[:2], pictures[2:4]
    apart = images.LpipsAlex().rows(a, b)
    save_file(both, no_weights / "lpips_alex.safetensors")
    together = images.LpipsAlex()
    np.testing.assert_array_equal(together.rows(a, b), apart)
    assert " on " not in together.facts()["weights"]


def test_a_trunk_without_heads_is_no_lpips(weights: Path, no_weights: Path) -> None:
    no_weights.mkdir()
    content = (weights / "vgg16.safetensors").read_bytes()
    (no_weights / "lpips_vgg.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=r"lpips_vgg\.safetensors has no LPIPS heads"):
        images.LpipsVgg().facts()


def test_weights_of_another_network_are_refused(weights: Path) -> None:
    name = "Mixed_7c.branch1x1.bn.bias"
    tensors = load_file(weights / "inception.safetensors")
    del tensors[name]
    with pytest.raises(RunError, match=f"x lacks 1 tensors, first {name}"):
        filled(inception.Inception, tensors, "x")
    tensors[name] = torch.zeros(3)
    with pytest.raises(RunError, match=rf"x has {name} of shape \(3,\), not \(320,\)"):
        filled(inception.Inception, tensors, "x")


# -- Inception ------------------------------------------------------------------------------


def test_the_resize_is_that_of_tensorflow_1() -> None:
    line = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    up = tf1_bilinear(line.expand(4, 4), 8)
    assert up[0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]  # no half-pixel shift
    down = tf1_bilinear(torch.arange(9.0).expand(9, 9), 3)
    assert down[0].tolist() == [0, 3, 6]  # points, not means


def test_pools_of_inception_leave_padding_out_and_the_last_takes_a_maximum() -> None:
    assert torch.equal(inception.average(torch.ones(1, 1, 4, 4)), torch.ones(1, 1, 4, 4))
    x = torch.zeros(1, 2048, 5, 5)
    x[0, 0, 2, 2] = 9.0
    pooled = {}
    for last in (False, True):
        block = inception.BlockE(2048, last).eval()
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.zero_()
            block.branch_pool.conv.weight[0, 0] = 1.0
            block.branch_pool.bn.weight.fill_(1.0)
            pooled[last] = block(x)[0, -192]
    middle = torch.zeros(5, 5)
    middle[1:4, 1:4] = 1
    torch.testing.assert_close(pooled[False], middle / (1 + 1e-3) ** 0.5)
    torch.testing.assert_close(pooled[True], 9 * middle / (1 + 1e-3) ** 0.5)


def test_inception_at_its_own_size_has_the_maps_of_the_paper(all_weights: Path) -> None:
    network = filled(inception.Inception, load_file(all_weights / "inception.safetensors"), "x")
    shapes = {}
    for name in ("Conv2d_2b_3x3", "Mixed_5d", "Mixed_6e", "Mixed_7c"):
        module = network.get_submodule(name)
        module.register_forward_hook(lambda m, i, out, name=name: shapes.update({name: out.shape}))
    with torch.no_grad():
        assert network(torch.full((1, 3, 32, 48), 128.0)).shape == (1, 2048)
    sides = {name: (shape[1], shape[2], shape[3]) for name, shape in shapes.items()}
    assert sides == {
        "Conv2d_2b_3x3": (64, 147, 147),
        "Mixed_5d": (288, 35, 35),
        "Mixed_6e": (768, 17, 17),
        "Mixed_7c": (2048, 8, 8),
    }
