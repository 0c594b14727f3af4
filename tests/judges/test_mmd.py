"""Kernel distances: unbiased for any count, and their intervals."""

import numpy as np
import pytest
import torch

from quintet.engine.errors import RunError
from quintet.judges.frechet import ragged
from quintet.judges.media import image as images
from quintet.judges.media import music
from quintet.judges.mmd import gaussian, median_distance, polynomial, unbiased
from quintet.judges.receipt import Receipt, of_sets


def draw(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width))


class Pixels(torch.nn.Module):
    num_features = 16

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.flatten(1)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
def test_kid_agrees_with_torchmetrics() -> None:
    from torchmetrics.image.kid import KernelInceptionDistance

    a, b = draw(40, 16, 3), 0.5 + draw(40, 16, 4)
    other = KernelInceptionDistance(Pixels(), subsets=1, subset_size=40).set_dtype(torch.float64)
    for features, real in ((a, True), (b, False)):
        other.update(torch.from_numpy(features).view(-1, 1, 4, 4), real)
    assert images.Kid().distance(a, b) == pytest.approx(other.compute()[0].item(), rel=1e-6)


def test_a_gaussian_kernel_distance_is_that_of_the_formula() -> None:
    a, b = (torch.from_numpy(draw(n, 3, n)) for n in (7, 5))
    width = median_distance(a)
    assert width == torch.pdist(a).median().item()
    k = lambda x, y: torch.exp(-(torch.cdist(x, y) ** 2) / (2 * width**2))
    expected = (k(a, a).sum() - 7) / 42 + (k(b, b).sum() - 5) / 20 - 2 * k(a, b).mean()
    value, _ = unbiased(a, b, [1] * 5, gaussian(width))
    assert value.item() == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1, 1), (3, 1, 2)])
def test_distances_without_a_sample_are_those_of_the_others(lengths: tuple[int, ...]) -> None:
    a, b = torch.from_numpy(draw(8, 4, 0)), torch.from_numpy(draw(6, 4, 1))
    _, left_out = unbiased(a, b, lengths, polynomial)
    parts = b.split(list(lengths))
    for number, value in enumerate(left_out):
        rest = torch.cat([part for i, part in enumerate(parts) if i != number])
        others = [n for i, n in enumerate(lengths) if i != number]
        assert value.item() == pytest.approx(unbiased(a, rest, others, polynomial)[0].item())


def test_sets_of_one_distribution_are_at_zero_whatever_their_count() -> None:
    """A Fréchet distance of so few samples is far above it."""
    kid = images.Kid()
    for count in (4, 64):
        values = [
            kid.distance(draw(count, 6, 2 * n), draw(count, 6, 2 * n + 1)) for n in range(200)
        ]
        assert abs(np.mean(values)) < 3 * np.std(values) / 200**0.5
        assert min(values) < 0


@pytest.mark.by_default("0.4-1.2")
@pytest.mark.parametrize(("shift", "wide"), [(0.0, 1.5), (0.4, 1.2)])
def test_intervals_hold_the_expected_value_as_often_as_they_say(shift: float, wide: float) -> None:
    """Of two equal distributions they are wider by up to a root of 2: its shares are all alike."""
    kid, references, receipt = images.Kid(), draw(200, 8, 0), Receipt("kid", {}, "", {}, 50)
    values = [kid.distance(references, draw(50, 8, 1000 + n) + shift) for n in range(150)]
    scores = [of_sets(kid, references, draw(50, 8, n) + shift, receipt) for n in range(1, 61)]
    assert np.mean([s.low <= np.mean(values) <= s.high for s in scores]) >= 0.85
    reach = np.mean([s.high - s.value for s in scores])
    assert 0.8 < reach / (1.96 * np.std(values)) < wide
    assert scores[0].interval == "the expected value of any number of outputs, by a jackknife"


def test_windows_of_sounds_are_left_out_by_the_sound() -> None:
    sounds = [draw(rows, 5, rows)[None] for rows in (3, 1, 4, 2)]
    judge, features = music.MelKernelDistance(), ragged(sounds)
    value, left_out = judge.jackknife(features, features + 0.1)
    assert len(left_out) == 4
    assert value == judge.distance(features, features + 0.1)
    rest = ragged([sounds[0], *sounds[2:]])
    assert left_out[1] == pytest.approx(judge.distance(features, rest + 0.1))


def test_few_samples_have_no_interval_and_one_has_no_distance() -> None:
    receipt = Receipt("kid", {}, "", {}, 2)
    score = of_sets(images.Kid(), draw(5, 4, 0), draw(2, 4, 1), receipt)
    assert (score.low, score.high) == (None, None)
    with pytest.raises(RunError, match="at least 2 rows in each set"):
        images.Kid().distance(draw(5, 4, 0), draw(1, 4, 1))
