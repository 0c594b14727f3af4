import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quintet.nn.flow import SWAY, flow_loss, guided, integrate, straight_path, swayed

ANGLES = torch.arange(4) * math.pi / 2
CENTRES = 2 * torch.stack((ANGLES.cos(), ANGLES.sin()), 1)


def spiral(x: Tensor, time: Tensor) -> Tensor:
    """Turns faster as time goes by: with the angle 1.5 t^2 the way is known exactly."""
    turned = torch.stack((-x[:, 1], x[:, 0]), 1)
    return 3 * time[:, None].to(x.dtype) * turned


def spiralled(x: Tensor) -> Tensor:
    c, s = math.cos(1.5), math.sin(1.5)
    return torch.stack((c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]), 1)


def error(steps: int, **options: object) -> float:
    x0 = torch.tensor([[1.0, 0.5], [-0.3, 2.0]], dtype=torch.float64)
    actual = integrate(spiral, x0, steps, **options)  # type: ignore[arg-type]
    return float((actual - spiralled(x0)).norm())


@pytest.mark.parametrize("strength", [0.0, -1.0, 0.7])
@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2)])
def test_error_falls_at_the_order_of_the_solver(method: str, order: int, strength: float) -> None:
    errors = [error(steps, method=method, sway=strength) for steps in (32, 64, 128)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1e-7])
def test_adaptive_steps_keep_the_tolerance(tolerance: float) -> None:
    assert error(1, method="adaptive", tolerance=tolerance) < 5 * tolerance


def test_adaptive_steps_are_few_where_the_way_is_straight() -> None:
    calls: list[float] = []

    def field(x: Tensor, time: Tensor) -> Tensor:
        calls.append(float(time[0]))
        return torch.ones_like(x)

    assert torch.allclose(integrate(field, torch.zeros(2, 3), 1, "adaptive"), torch.ones(2, 3))
    assert len(calls) == 7


def test_a_field_too_rough_is_given_up_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.nn.flow.MAX_STEPS", 50)
    with pytest.raises(RuntimeError, match="raise the tolerance"):
        integrate(lambda x, t: x * float("nan"), torch.ones(1, 1), 1, "adaptive")


def test_solvers_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="'euler', 'midpoint' or 'adaptive'"):
        integrate(spiral, torch.zeros(1, 2), 4, "heun")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be 1 or more"):
        integrate(spiral, torch.zeros(1, 2), 0)
    with pytest.raises(ValueError, match="sway must be from -1"):
        integrate(spiral, torch.zeros(1, 2), 4, sway=-1.5)


@given(st.floats(*SWAY))
def test_sway_keeps_the_ends_and_never_turns_back(strength: float) -> None:
    times = swayed(torch.linspace(0, 1, 65, dtype=torch.float64), strength)
    assert times[0].abs() < 1e-12
    assert (times[-1] - 1).abs() < 1e-12
    assert (times.diff() > -1e-12).all()


def test_negative_sway_spends_its_steps_near_the_noise() -> None:
    assert (swayed(torch.linspace(0, 1, 9), -1.0)[1:-1] < torch.linspace(0, 1, 9)[1:-1]).all()
    assert torch.equal(swayed(torch.linspace(0, 1, 9), 0.0), torch.linspace(0, 1, 9))


def test_the_path_leads_from_noise_to_data_at_its_target() -> None:
    x0, x1 = torch.randn(2, 4, 5, 3)
    start, target = straight_path(x0, x1, torch.zeros(4))
    end = straight_path(x0, x1, torch.ones(4)).x
    assert torch.equal(start, x0)
    assert torch.allclose(end, x1, atol=1e-6)
    assert torch.allclose(end - start, target, atol=1e-6)
    times = torch.rand(4)
    between = straight_path(x0, x1, times).x
    assert torch.allclose(between, x0 + times[:, None, None] * target, atol=1e-6)


def test_what_is_outside_the_mask_changes_neither_loss_nor_gradient() -> None:
    predicted, target = torch.randn(2, 3, 7, 4)
    mask = torch.rand(3, 7) < 0.5
    actual: list[tuple[Tensor, Tensor]] = []
    for junk in (0.0, 1e30, float("nan"), float("inf")):
        guess = predicted.masked_fill(~mask[..., None], junk).requires_grad_()
        loss = flow_loss(guess, target.masked_fill(~mask[..., None], junk), mask, mask.sum())
        (gradient,) = torch.autograd.grad(loss, guess)
        assert (gradient[~mask] == 0).all()
        actual.append((loss.detach(), gradient[mask]))
    for loss, gradient in actual[1:]:
        assert torch.equal(loss, actual[0][0])
        assert torch.equal(gradient, actual[0][1])
    assert torch.allclose(actual[0][0], (predicted - target)[mask].square().mean())


def test_losses_of_micro_batches_add_up_to_that_of_the_batch() -> None:
    predicted, target = torch.randn(2, 6, 7, 4).double()
    mask = torch.rand(6, 7) < 0.5
    whole = flow_loss(predicted, target, mask, mask.sum())
    rows = zip(predicted.split(2), target.split(2), mask.split(2))
    parts = [flow_loss(*part, mask.sum()) for part in rows]
    assert torch.allclose(sum(parts), whole)  # type: ignore[arg-type]


def test_the_loss_is_computed_in_fp32() -> None:
    predicted = torch.full((1, 1, 256), 1.0, dtype=torch.bfloat16)
    target = torch.full((1, 1, 256), 1.003)
    loss = flow_loss(predicted, target, torch.ones(1, 1, dtype=torch.bool), 1)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(9e-6, rel=1e-2)


def test_guidance_is_one_pass_and_leads_away_from_the_unconditioned() -> None:
    calls: list[int] = []

    def network(x: Tensor, time: Tensor, *, text: Tensor, width: int) -> Tensor:
        calls.append(len(x))
        return x * width + time[:, None] + text

    x, time, text = torch.randn(3, 2), torch.rand(3), torch.randn(3, 2)
    with_, without = x * 2 + time[:, None] + text, x * 2 + time[:, None]
    for scale in (0.0, 1.0, 2.5):
        field = guided(network, {"text": text, "width": 2}, {"text": torch.zeros(3, 2)}, scale)
        assert torch.allclose(field(x, time), without + scale * (with_ - without), atol=1e-6)
    assert calls == [6, 3, 6]


def test_guidance_refuses_to_leave_out_what_was_never_there() -> None:
    with pytest.raises(ValueError, match="voice"):
        guided(lambda x, t: x, {}, {"voice": torch.zeros(1)}, 2.0)


def test_fixed_steps_always_do_the_same_work() -> None:
    calls: list[Tensor] = []

    def field(x: Tensor, time: Tensor) -> Tensor:
        calls.append(time)
        return x

    integrate(field, torch.ones(4, 2), 5, "euler")
    assert len(calls) == 5
    integrate(field, torch.ones(4, 2), 5, "midpoint")
    assert len(calls) == 15
    assert all(time.shape == (4,) for time in calls)


class Velocity(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(7, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        t = time[:, None] * math.pi * torch.tensor([0.5, 1.0])
        return self.body(torch.cat((x, time[:, None], t.cos(), t.sin()), 1))


def blobs(count: int) -> Tensor:
    """Four small blobs on a circle of radius 2."""
    return CENTRES[torch.randint(4, (count,))] + 0.2 * torch.randn(count, 2)


def energy_distance(a: Tensor, b: Tensor) -> float:
    """0 where both are drawn alike; its square root is in units of the plane."""
    between, inside = torch.cdist(a, b).mean(), torch.cdist(a, a).mean() + torch.cdist(b, b).mean()
    return float((2 * between - inside).clamp_min(0).sqrt())


def test_a_small_network_learns_to_carry_noise_to_data() -> None:
    torch.manual_seed(0)
    network = Velocity()
    steps, count, rate = 800, 256, 8e-3
    optimizer = torch.optim.Adam(network.parameters(), rate)
    everywhere = torch.ones(count, 1, dtype=torch.bool)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        path = straight_path(torch.randn(count, 2), blobs(count), time := torch.rand(count))
        predicted = network(path.x, time)
        loss = flow_loss(predicted[:, None], path.target[:, None], everywhere, count)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    output = integrate(network, noise := torch.randn(2000, 2), 32)
    data = blobs(2000)
    assert energy_distance(noise, data) > 0.4
    assert energy_distance(output, data) < 0.1  # another draw of the data: 0.03
    assert torch.cdist(output, CENTRES).amin(1).mean() < 0.3  # of the data: 0.25
