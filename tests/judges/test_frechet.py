import numpy as np
import pytest
import torch

from quintet.engine.errors import RunError
from quintet.judges.frechet import frechet_distance
from quintet.judges.media import image as images
from quintet.judges.receipt import Receipt, of_sets


def draw(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width))


def whitened(features: np.ndarray) -> np.ndarray:
    """With a mean of exactly 0 and a covariance of exactly 1."""
    centred = features - features.mean(0)
    covariance = np.cov(centred, rowvar=False)
    return centred @ np.linalg.inv(np.linalg.cholesky(covariance)).T


def by_the_book(a: np.ndarray, b: np.ndarray) -> float:
    """The formula, with the eigenvalues of the product of covariances, as torchmetrics has it."""
    one, other = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.sqrt(np.linalg.eigvals(one @ other).astype(complex)).real.sum()
    shift = a.mean(0) - b.mean(0)
    return float(shift @ shift + np.trace(one) + np.trace(other) - 2 * root)


def test_gaussians_with_known_parameters() -> None:
    a, b = whitened(draw(50, 3, 0)), whitened(draw(80, 3, 1))
    scales, shift = np.array([1.0, 2.0, 5.0]), np.array([3.0, -4.0, 0.0])
    expected = 25 + ((2 - scales) ** 2).sum()
    assert frechet_distance(2 * a, scales * b + shift) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "m", "width"), [(60, 40, 8), (10, 12, 32), (60, 12, 32), (9, 60, 8)])
def test_agrees_with_the_formula(n: int, m: int, width: int) -> None:
    mix = draw(width, width, 2)
    a, b = draw(n, width, 3) @ mix, 1 + 2 * draw(m, width, 4)
    assert frechet_distance(a, b) == pytest.approx(by_the_book(a, b), rel=1e-6)


class Pixels(torch.nn.Module):
    """Features of torchmetrics' FID: the 16 pixels themselves, in place of a network."""

    num_features = 16

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.flatten(1)


def test_agrees_with_torchmetrics() -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance

    a, b = draw(400, 16, 3) @ draw(16, 16, 2), 1 + 2 * draw(300, 16, 4)
    other = FrechetInceptionDistance(Pixels(), input_img_size=(1, 4, 4)).set_dtype(torch.float64)
    for features, real in ((a, True), (b, False)):
        for part in np.array_split(features, 3):
            other.update(torch.from_numpy(part).view(-1, 1, 4, 4), real)
    assert frechet_distance(a, b) == pytest.approx(other.compute().item(), rel=1e-9)


@pytest.mark.parametrize(("count", "width"), [(300, 64), (20, 256), (2, 5)])
def test_a_set_has_no_distance_from_itself(count: int, width: int) -> None:
    features = 10 * draw(count, width, 5) + 100
    assert frechet_distance(features, features) < 1e-6
    assert frechet_distance(features, features[::-1].copy()) < 1e-6


def test_order_does_not_count_and_neither_set_is_special() -> None:
    a, b = draw(50, 16, 6), 2 * draw(30, 16, 7) + 1
    shuffled = np.random.default_rng(8).permutation(b)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(a, shuffled), rel=1e-12)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-12)


def test_half_precision_features_are_compared_in_double() -> None:
    a, b = draw(50, 4, 9).astype(np.float32), draw(50, 4, 10).astype(np.float32)
    wide = frechet_distance(a.astype(np.float64), b.astype(np.float64))
    assert frechet_distance(a, b) == wide


@pytest.mark.by_default("60-6-*")
@pytest.mark.parametrize(("count", "width", "shift"), [(60, 6, 0.3), (60, 32, 0.0), (40, 48, 0.2)])
def test_intervals_hold_the_expected_value_as_often_as_they_say(
    count: int, width: int, shift: float
) -> None:
    """A bootstrap repeats samples: its intervals were up to three times as wide."""
    generator, scales = np.random.default_rng(0), np.exp(-3 * np.arange(width) / width)

    def outputs() -> np.ndarray:
        return scales * generator.normal(size=(count, width)) + shift

    judge = images.FrechetOnnx()
    references = scales * generator.normal(size=(200, width))
    values = [judge.distance(references, outputs()) for _ in range(150)]
    receipt = Receipt("frechet", {}, "", {}, count)
    scores = [of_sets(judge, references, outputs(), receipt) for _ in range(40)]
    assert np.mean([s.low <= np.mean(values) <= s.high for s in scores]) >= 0.85
    reach = np.mean([s.high - s.value for s in scores])
    assert 0.8 < reach / (2.09 * np.std(values)) < 1.4
    assert scores[0].interval == f"the expected value of {count} outputs, by a jackknife"


def test_one_sample_has_no_covariance() -> None:
    with pytest.raises(RunError, match="at least 2 samples in each set, not 1"):
        frechet_distance(draw(1, 4, 0), draw(5, 4, 0))
