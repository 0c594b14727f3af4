"""Snake: the formula of the paper, its gradient, and bf16."""

import torch

from quintet.nn.snake import Snake, SnakeUnit


def test_it_is_the_formula_of_the_paper_for_each_channel() -> None:
    activation, x = Snake(3), torch.randn(2, 3, 7)
    activation.log_rate.data = torch.tensor([[-1.0], [0.0], [2.0]])
    rate = activation.log_rate.exp()
    torch.testing.assert_close(activation(x), x + (rate * x).sin() ** 2 / rate)
    with torch.no_grad():
        torch.testing.assert_close(activation(x), x + (rate * x).sin() ** 2 / rate)


def test_its_gradient_is_that_of_finite_differences() -> None:
    activation = Snake(3).double()
    activation.log_rate.data.normal_()
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    kind = type(activation(x).grad_fn)
    assert "_Snake" in kind.__name__
    inputs = (x, activation.log_rate)
    apply = lambda x, rate: torch.func.functional_call(activation, {"log_rate": rate}, (x,))
    assert torch.autograd.gradcheck(apply, inputs)


def test_bf16_rounds_the_result_and_not_the_angle() -> None:
    activation = Snake(1)
    activation.log_rate.data.fill_(3.0)  # angles of hundreds
    x = (20 * torch.randn(1, 1, 1000)).bfloat16().requires_grad_()
    exact = x.detach().float().requires_grad_()
    outputs = [activation(x), activation(exact)]
    assert outputs[0].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[0].float(), outputs[1], rtol=2**-8, atol=1e-3)
    for each in outputs:
        each.sum().backward()
    torch.testing.assert_close(x.grad.float(), exact.grad, rtol=2**-7, atol=1e-2)  # type: ignore[union-attr]


def test_a_unit_sees_its_reach_and_no_further() -> None:
    unit, x = SnakeUnit(4, 3), torch.randn(1, 4, 41, requires_grad=True)
    unit(x)[..., 20].sum().backward()
    assert x.grad is not None
    (seen,) = x.grad.abs().sum((0, 1)).nonzero(as_tuple=True)
    assert (seen.min().item(), seen.max().item()) == (20 - unit.reach, 20 + unit.reach)
