import pytest
import torch
from torch.nn import functional as F

from quintet.nn.similarity import psnr, ssim


def test_psnr_of_a_constant_error() -> None:
    a = torch.full((2, 3, 8, 8), 0.5)
    b = a + torch.tensor([0.1, 0.01]).view(2, 1, 1, 1)
    assert psnr(a, b).tolist() == pytest.approx([20.0, 40.0], abs=1e-2)


def test_equal_images_have_psnr_100_and_ssim_1() -> None:
    a = torch.rand(2, 3, 16, 16)
    assert psnr(a, a).tolist() == [100, 100]
    assert ssim(a, a).tolist() == pytest.approx([1.0, 1.0])


def test_ssim_of_flat_images_is_the_luminance_term() -> None:
    a, b = torch.full((1, 3, 16, 16), 0.2), torch.full((1, 3, 16, 16), 0.8)
    assert ssim(a, b).item() == pytest.approx((2 * 0.16 + 1e-4) / (0.68 + 1e-4), rel=1e-3)


def test_ssim_agrees_with_a_plain_two_dimensional_window() -> None:
    a = torch.rand(1, 1, 20, 24, dtype=torch.float64)
    b = (a + 0.2 * torch.randn_like(a)).clamp(0, 1)
    at = torch.arange(11, dtype=torch.float64) - 5
    line = torch.exp(-at.square() / 4.5)
    window = line[:, None] * line
    window = (window / window.sum())[None, None]

    def mean(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, window)

    covariance = mean(a * b) - mean(a) * mean(b)
    variances = mean(a * a) - mean(a) ** 2 + mean(b * b) - mean(b) ** 2
    light = (2 * mean(a) * mean(b) + 1e-4) / (mean(a) ** 2 + mean(b) ** 2 + 1e-4)
    expected = (light * (2 * covariance + 9e-4) / (variances + 9e-4)).mean()
    assert ssim(a, b).item() == pytest.approx(expected.item(), rel=1e-9)


def test_ssim_rejects_images_below_its_window() -> None:
    with pytest.raises(ValueError, match="11"):
        ssim(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8))
