import pytest
import torch
from torch import Tensor

from quintet.nn.adversarial.balancer import Balancer


def losses(rec: Tensor, adv: Tensor) -> tuple[Tensor, Tensor]:
    return 3 * rec.square().sum(), adv.sin().sum()


def measured_ratio(image: Tensor) -> Tensor:
    gradients = (torch.autograd.grad(loss, image)[0] for loss in losses(image, image))
    first, second = gradients
    return first.norm() / second.norm()


def run(balancer: Balancer, image: Tensor, ramp: float = 1.0) -> None:
    rec, adv = losses(*balancer.split(image, ramp))
    (rec + balancer.effective_weight(ramp) * adv).backward()


@pytest.mark.parametrize("ramp", [1.0, 0.3, 0.0])
def test_the_weight_is_the_ratio_of_gradient_norms(commit_at, ramp: float) -> None:
    balancer = Balancer(cap=100.0)
    balancer.smoothing = 0.0
    image = torch.randn(2, 3, 4, 4, requires_grad=True)
    for _ in range(2):
        run(balancer, image, ramp)
        balancer.commit(commit_at(processes=3))
        assert torch.allclose(balancer.weight, measured_ratio(image), rtol=1e-4)


def test_branches_do_not_change_the_gradient() -> None:
    balancer = Balancer()
    image = torch.randn(2, 3, 4, 4, requires_grad=True)
    run(balancer, image)
    rec, adv = losses(image, image)
    (expected,) = torch.autograd.grad(rec + balancer.effective_weight() * adv, image)
    assert image.grad is not None
    assert torch.allclose(image.grad, expected)


def test_norms_add_over_micro_batches(commit_at) -> None:
    whole, parts = Balancer(cap=100.0), Balancer(cap=100.0)
    image = torch.randn(4, 3, 4, 4, requires_grad=True)
    run(whole, image)
    run(parts, image[:1])
    run(parts, image[1:])
    for balancer in (whole, parts):
        balancer.commit(commit_at())
    assert torch.allclose(whole.weight, parts.weight)


def test_the_weight_is_capped_smoothed_and_kept_without_gradients(commit_at) -> None:
    balancer = Balancer(cap=0.5)
    balancer.smoothing = 0.5
    image = torch.full((1, 3, 4, 4), 50.0, requires_grad=True)
    run(balancer, image)
    balancer.commit(commit_at())
    assert balancer.weight == pytest.approx(0.25005)
    balancer.commit(commit_at())
    assert balancer.weight == pytest.approx(0.25005)
    run(balancer, image)
    balancer.commit(commit_at(skipped=True))
    assert balancer.weight == pytest.approx(0.25005)


def test_a_gradient_that_is_not_finite_moves_nothing(commit_at) -> None:
    balancer = Balancer()
    image = torch.full((1, 3, 2, 2), float("inf"), requires_grad=True)
    run(balancer, image)
    balancer.commit(commit_at())
    assert balancer.weight == pytest.approx(balancer.floor)


def test_only_the_weight_is_saved() -> None:
    assert set(Balancer().state_dict()) == {"weight"}
