"""Continuous bottlenecks: codes are without noise, training sees it."""

import math

import pytest
import torch
from torch import Tensor

from quintet.nn.quantisers.build import build_quantiser
from quintet.nn.quantisers.config import COLLAPSED, QuantiserConfig
from quintet.nn.quantisers.continuous import (
    INITIAL_LOG_VARIANCE,
    BoundedBottleneck,
    ContinuousBottleneck,
    GaussianBottleneck,
)

EACH = pytest.mark.parametrize("build", [GaussianBottleneck, BoundedBottleneck])


def awake(bottleneck: ContinuousBottleneck) -> ContinuousBottleneck:
    """With variances that depend on the input, as after training."""
    torch.nn.init.normal_(bottleneck.project_in.weight, std=0.2)
    return bottleneck


@EACH
@pytest.mark.parametrize("shape", [(2, 16, 4, 6), (3, 16, 7), (1, 16, 2, 3, 4)])
def test_codes_decode_to_exactly_the_values_of_forward(build: type, shape: tuple[int, ...]) -> None:
    bottleneck = awake(build(16, 4))
    latents = torch.randn(shape)
    out = bottleneck(latents)
    assert out.ids is None
    assert out.values.shape == latents.shape
    assert out.latents.shape == (shape[0], 4, *shape[2:])
    assert torch.equal(bottleneck.to_codes(latents), out.latents)
    assert torch.equal(bottleneck.codes_to_values(out.latents), out.values)


@EACH
def test_noise_moves_the_values_and_not_the_codes(build: type) -> None:
    bottleneck, latents = awake(build(16, 4)), torch.randn(2, 16, 4, 4)
    quiet, noisy = bottleneck(latents), bottleneck(latents, torch.randn(2, 4, 4, 4))
    assert torch.equal(quiet.latents, noisy.latents)
    assert not torch.allclose(quiet.values, noisy.values)
    assert torch.equal(quiet.loss, noisy.loss)
    assert torch.equal(bottleneck(latents, torch.zeros(2, 4, 4, 4)).values, quiet.values)


@EACH
def test_gradient_reaches_latents_and_projections(build: type) -> None:
    bottleneck = build(16, 4)
    latents = torch.randn(2, 16, 4, 4, requires_grad=True)
    out = bottleneck(latents, torch.randn(2, 4, 4, 4))
    ((out.values * torch.randn_like(out.values)).sum() + out.loss).backward()
    assert latents.grad is not None
    assert latents.grad.abs().sum() > 0
    for name, parameter in bottleneck.named_parameters():
        assert parameter.grad is not None, name
        assert (
            parameter.grad.flatten(1).any(1).all() if parameter.ndim > 1 else parameter.grad.all()
        )


@EACH
def test_autocast_changes_nothing_and_half_precision_is_lifted(build: type) -> None:
    bottleneck, latents = awake(build(16, 4)), torch.randn(2, 16, 4, 4)
    plain = bottleneck(latents)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = bottleneck(latents)
    assert torch.equal(plain.latents, cast.latents)
    assert torch.equal(plain.values, cast.values)
    out = bottleneck(latents.bfloat16())
    assert out.values.dtype == out.latents.dtype == out.loss.dtype == torch.float32
    assert bottleneck.codes_to_values(out.latents.bfloat16()).dtype == torch.float32


def test_the_divergence_is_that_of_torch_and_its_loss_is_per_element() -> None:
    from torch.distributions import Normal, kl_divergence

    bottleneck, latents = GaussianBottleneck(16, 4, kl_weight=0.5), torch.randn(3, 16, 5, 5)
    awake(bottleneck)
    mean, log_variance = bottleneck.project_in(latents).chunk(2, -1)
    posterior = Normal(mean, (0.5 * log_variance).exp())
    expected = kl_divergence(posterior, Normal(0, 1)).flatten(1).mean(1)
    out = bottleneck(latents)
    torch.testing.assert_close(out.kl, expected)
    torch.testing.assert_close(out.loss, 0.5 * expected.mean())


def test_a_draw_has_the_mean_and_deviation_of_the_posterior() -> None:
    bottleneck = GaussianBottleneck(16, 2)
    bottleneck.project_out = torch.nn.Identity()  # type: ignore[assignment]
    latents = torch.randn(1, 16, 1).expand(100_000, 16, 1)
    out = bottleneck(latents, torch.randn(100_000, 2, 1))
    draws = out.values[:, 0]
    torch.testing.assert_close(draws.mean(0), out.latents[0, :, 0], atol=2e-3, rtol=0)
    deviation = torch.full((2,), math.exp(0.5 * INITIAL_LOG_VARIANCE))
    torch.testing.assert_close(draws.std(0), deviation, atol=2e-3, rtol=0)


def test_extreme_log_variances_stay_finite_with_finite_gradients() -> None:
    bottleneck = GaussianBottleneck(16, 2)
    for extreme in (-1e4, 1e4):
        bottleneck.project_in.bias.data[2:] = extreme
        out = bottleneck(torch.randn(2, 16, 3), torch.randn(2, 2, 3))
        (out.values.square().mean() + out.loss).backward()
        assert out.values.isfinite().all()
        assert out.kl.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in bottleneck.parameters())


def test_bounded_latents_have_unit_size_whatever_the_encoder_does() -> None:
    bottleneck = BoundedBottleneck(16, 8)
    bottleneck.project_in.weight.data.mul_(1000)
    latents = bottleneck.to_codes(torch.randn(2, 16, 5, 5))
    torch.testing.assert_close(latents.square().mean(1), torch.ones(2, 5, 5))


def test_bounded_noise_has_the_deviation_that_was_asked_for() -> None:
    bottleneck = BoundedBottleneck(16, 4, noise=0.25)
    bottleneck.project_out = torch.nn.Identity()  # type: ignore[assignment]
    latents, noise = torch.randn(2, 16, 3), torch.randn(2, 4, 3)
    moved = bottleneck(latents, noise).values - bottleneck(latents).values
    torch.testing.assert_close(moved, 0.25 * noise.movedim(1, -1))


def summarised(bottleneck: ContinuousBottleneck, parts: list[Tensor]) -> dict[str, float]:
    outs = [bottleneck(part) for part in parts]
    rows = [bottleneck.rows(out) for out in outs]
    joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    metrics = bottleneck.summarise(joined)
    assert joined == {}
    return metrics


def test_the_deviation_is_that_of_all_latents_whatever_the_batches() -> None:
    bottleneck, latents = GaussianBottleneck(16, 3), torch.randn(5, 16, 4, 4)
    bottleneck.project_in.bias.data[:3] = torch.tensor([0.0, 3.0, -1.0])
    bottleneck.project_in.weight.data[1] *= 0.1
    metrics = summarised(bottleneck, list(latents.split(2)))
    codes = bottleneck.to_codes(latents).double()
    assert metrics["latent_std"] == pytest.approx(codes.std(correction=0).item(), rel=1e-5)
    channels = codes.transpose(0, 1).flatten(1).std(1, correction=0)
    assert metrics["latent_std_min"] == pytest.approx(channels.min().item(), rel=1e-4)
    kl = bottleneck(latents).kl.mean().item()
    assert metrics["kl_bits"] == pytest.approx(kl / math.log(2), rel=1e-5)
    assert set(summarised(BoundedBottleneck(16, 3), [latents])) == {"latent_std", "latent_std_min"}


def test_latents_of_another_shape_or_type_are_refused() -> None:
    bottleneck = GaussianBottleneck(16, 4)
    bottleneck.check(torch.randn(1, 4, 2, 2), "h, w")
    for wrong in (torch.randn(1, 3, 2, 2), torch.randn(4, 2, 2), torch.zeros(1, 4, 2, 2).long()):
        with pytest.raises(ValueError, match=r"expected float latents \(b, 4, h, w\), not torch"):
            bottleneck.check(wrong, "h, w")


def test_only_quantisers_can_collapse() -> None:
    for name in ("fsq", "lfq", "bsq", "vq", "kl", "bounded"):
        bottleneck = build_quantiser(QuantiserConfig(quantiser=name), 16)  # type: ignore[arg-type]
        assert bottleneck.discrete == (name in COLLAPSED)


def test_one_bounded_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        BoundedBottleneck(16, 1)
