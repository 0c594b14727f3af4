from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quintet.nn.adversarial.discriminator import PatchDiscriminator
from quintet.nn.adversarial.losses import (
    LeCam,
    hinge_discriminator,
    hinge_generator,
    r1_exact,
    r1_tangent,
    relativistic_discriminator,
    relativistic_generator,
)
from quintet.video.tokenizer.model import FrameDiscriminator, MotionDiscriminator

PAIRED: list[Callable[[Tensor, Tensor], Tensor]] = [
    hinge_discriminator,
    lambda real, fake: hinge_generator(fake),
    relativistic_discriminator,
    relativistic_generator,
]


@pytest.mark.parametrize("loss", PAIRED)
def test_losses_are_per_sample_and_add_over_micro_batches(loss) -> None:
    real, fake = torch.randn(2, 6, 1, 4, 3)
    whole = loss(real, fake)
    assert whole.shape == (6,)
    parts = torch.cat((loss(real[:2], fake[:2]), loss(real[2:], fake[2:])))
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("loss", PAIRED)
def test_losses_are_fp32_for_bf16_logits(loss) -> None:
    real, fake = torch.randn(2, 6, 1, 4, 3, dtype=torch.bfloat16)
    assert loss(real, fake).dtype == torch.float32


def test_hinge_is_flat_for_confident_logits() -> None:
    sure = torch.full((2, 1, 3, 3), 2.0)
    assert hinge_discriminator(sure, -sure).tolist() == [0, 0]
    assert hinge_discriminator(-sure, sure).tolist() == [6, 6]


def test_relativistic_losses_compare_a_patch_with_its_own_original() -> None:
    real, fake = torch.randn(2, 4, 1, 2, 2)
    assert torch.equal(relativistic_generator(real, fake), relativistic_discriminator(fake, real))
    shifted = relativistic_discriminator(real + 7, fake + 7)
    assert torch.allclose(relativistic_discriminator(real, fake), shifted, atol=1e-5)


def test_r1_along_random_directions_is_the_exact_one_in_expectation() -> None:
    torch.manual_seed(0)
    discriminator = PatchDiscriminator(dim=8, layers=2).double()
    image = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    gradients = torch.func.jacrev(discriminator)(image).flatten(5).flatten(0, 3)  # patch by pixel
    exact = gradients.flatten(1).square().sum(1).mean()
    many = image.expand(4000, -1, -1, -1)
    estimate = r1_tangent(discriminator, many, torch.randn_like(many)).mean()
    assert torch.allclose(estimate, exact, rtol=0.1)


@pytest.mark.parametrize("name", ["patch", "frame", "motion"])
def test_the_derivative_along_a_direction_is_the_limit_of_differences(name: str) -> None:
    torch.manual_seed(0)
    kinds = {
        "patch": PatchDiscriminator,
        "frame": FrameDiscriminator,
        "motion": MotionDiscriminator,
    }
    discriminator = kinds[name](dim=8, layers=3).double()
    shape = (2, 3, 16, 16) if name == "patch" else (2, 3, 5, 16, 16)
    images, noise = torch.rand(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    one, other = discriminator(images + 1e-6 * noise), discriminator(images - 1e-6 * noise)
    along = discriminator(images, along=noise)
    torch.testing.assert_close(along, (one - other) / 2e-6, rtol=1e-5, atol=1e-6)


def test_r1_is_per_sample_and_trains_the_discriminator() -> None:
    discriminator = PatchDiscriminator(dim=8, layers=2).double()
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    for penalty in (
        r1_exact(discriminator, images),
        r1_tangent(discriminator, images, torch.randn_like(images)),
    ):
        assert penalty.shape == (3,)
        discriminator.zero_grad()
        penalty.sum().backward()
        for name, parameter in discriminator.named_parameters():
            if name.endswith("weight"):
                assert parameter.grad is not None, name
                assert parameter.grad.abs().sum() > 0, name


def test_lecam_pulls_logits_towards_the_average_of_the_opposite_class(commit_at) -> None:
    lecam = LeCam()
    lecam.decay = 0.5
    real, fake = torch.full((2, 1, 2, 2), 1.0), torch.full((2, 1, 2, 2), -1.0)
    assert lecam(real, fake).tolist() == [0, 0]
    lecam.commit(commit_at())
    assert lecam.ema_logits.tolist() == [1, -1]
    assert lecam(real, fake).tolist() == [8, 8]
    assert lecam(fake, real).tolist() == [0, 0]
    lecam.commit(commit_at())
    assert lecam.ema_logits.tolist() == [0.5, -0.5]


def test_lecam_drops_a_skipped_step_and_ignores_eval(commit_at) -> None:
    lecam = LeCam()
    lecam(torch.full((2, 1), float("nan")), torch.ones(2, 1))
    lecam.commit(commit_at(skipped=True))
    lecam.eval()(torch.ones(2, 1), torch.ones(2, 1))
    lecam.commit(commit_at())
    assert lecam.started == 0
    assert lecam.ema_logits.tolist() == [0, 0]


def test_lecam_counts_samples_not_micro_batches(commit_at) -> None:
    whole, parts = LeCam(), LeCam()
    real, fake = torch.randn(2, 5, 1, 2, 2)
    whole(real, fake)
    parts(real[:1], fake[:1])
    parts(real[1:], fake[1:])
    whole.commit(commit_at())
    parts.commit(commit_at(processes=2))
    assert torch.allclose(whole.ema_logits, parts.ema_logits, atol=1e-6)
