import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.perceptual import StructuralDistance, half_windows, luminance, spectrum_filters


def texture(grain: int) -> Tensor:
    """Grey images with noise of this grain size and a fixed standard deviation."""
    noise = F.avg_pool2d(torch.randn(4, 1, 64 + grain - 1, 64 + grain - 1), grain, 1)
    return (0.5 + 0.1 * noise / noise.std()).expand(-1, 3, -1, -1).clamp(0, 1)


@pytest.mark.parametrize("grain", [1, 2, 3])
def test_a_synthesised_texture_is_closer_than_a_blur_unlike_in_pixel_distance(grain: int) -> None:
    original, synthesised = texture(grain), texture(grain)
    blurred = F.avg_pool2d(original, 7, 1, 3, count_include_pad=False)
    assert F.mse_loss(original, blurred) < F.mse_loss(original, synthesised)
    distance = StructuralDistance()
    assert (distance(original, synthesised) < distance(original, blurred)).all()


def test_it_is_per_sample_symmetric_and_zero_for_equal_images() -> None:
    distance = StructuralDistance()
    a, b = torch.rand(2, 3, 3, 32, 48)
    assert distance(a, b).shape == (3,)
    assert torch.equal(distance(a, a), torch.zeros(3))
    assert torch.allclose(distance(a, b), distance(b, a))
    assert torch.allclose(distance(a, b)[1:], distance(a[1:], b[1:]), atol=1e-6)


def test_the_response_to_a_wave_is_its_amplitude() -> None:
    x = torch.arange(8) + 0.5
    wave = 0.3 * torch.sin(2 * torch.pi / 8 * 2 * x).expand(8, 8).flatten()
    cosine, sine = (wave @ spectrum_filters(8)).chunk(2)
    assert (cosine.square() + sine.square()).sqrt().max() == pytest.approx(0.3, rel=1e-4)


@given(high=st.integers(8, 40), wide=st.integers(8, 40), half=st.integers(1, 4))
def test_windows_are_those_of_two_unfolds(high: int, wide: int, half: int) -> None:
    planes = torch.rand(2, high, wide)
    expected = planes.unfold(1, 2 * half, half).unfold(2, 2 * half, half)
    assert torch.equal(half_windows(planes, 2 * half), expected)


@pytest.mark.slow  # the compiler takes half a minute
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_it_is_the_same_where_one_window_fills_the_plane() -> None:
    eager, compiled = StructuralDistance(), StructuralDistance()
    compiled.compile(dynamic=False)
    a, b = torch.rand(2, 4, 3, 32, 32)
    a.requires_grad_()
    gradients = [torch.autograd.grad(d(a, b).sum(), a)[0] for d in (eager, compiled)]
    assert torch.allclose(*gradients, atol=1e-6)


def test_a_flat_picture_has_a_finite_gradient() -> None:
    flat = torch.full((1, 3, 16, 16), 0.5, requires_grad=True)
    StructuralDistance()(flat, torch.rand(1, 3, 16, 16)).sum().backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()


def test_it_is_fp32_under_autocast() -> None:
    a, b = torch.rand(2, 1, 3, 32, 32)
    plain = StructuralDistance()(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(StructuralDistance()(a, b), plain)


def test_images_smaller_than_the_window_are_rejected() -> None:
    with pytest.raises(ValueError, match="window"):
        StructuralDistance()(torch.rand(1, 3, 4, 4), torch.rand(1, 3, 4, 4))


def test_grey_images_have_the_luminance_of_their_only_channel() -> None:
    image = torch.rand(2, 1, 4, 4)
    assert torch.equal(luminance(image), image[:, 0])
