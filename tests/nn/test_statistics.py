from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from quintet.engine.keys import keyed_normal
from quintet.nn.adversarial.balancer import Balancer
from quintet.nn.adversarial.losses import LeCam
from quintet.nn.quantisers.vq import VectorQuantiser
from quintet.nn.statistics import Commits


def use_vq(module: nn.Module) -> None:
    module(torch.randn(2, 16, 4, 4))


def use_lecam(module: nn.Module) -> None:
    module(torch.randn(2, 1), torch.randn(2, 1))


def use_balancer(module: nn.Module) -> None:
    assert isinstance(module, Balancer)
    first, second = module.split(torch.randn(2, 3, 4, 4, requires_grad=True), 0.5)
    (first.sum() + (module.effective_weight(0.5) * second).sum()).backward()


MODULES = pytest.mark.parametrize(
    ("build", "use"),
    [(lambda: VectorQuantiser(16, 32), use_vq), (LeCam, use_lecam), (Balancer, use_balancer)],
    ids=["vq", "lecam", "balancer"],
)


@MODULES
def test_nothing_is_read_on_the_host(commit_at, build: Callable[[], nn.Module], use) -> None:
    """Fake tensors hold no data: whatever would wait for a value raises."""
    with FakeTensorMode():
        module = build()
        use(module)
        assert isinstance(module, Commits)
        module.commit(commit_at())
        with pytest.raises(DataDependentOutputException):
            torch.ones(()).item()


@MODULES
def test_state_stays_in_the_same_tensors(commit_at, build: Callable[[], nn.Module], use) -> None:
    module = build()
    before = {name: value.data_ptr() for name, value in module.named_buffers()}
    use(module)
    assert isinstance(module, Commits)
    module.commit(commit_at())
    assert before == {name: value.data_ptr() for name, value in module.named_buffers()}


def test_keyed_noise_depends_on_the_key_alone() -> None:
    like = torch.zeros(5, 3)
    first = keyed_normal(like, 2**62 + 1)
    torch.rand(7)
    assert torch.equal(first, keyed_normal(like, 2**62 + 1))
    assert not torch.equal(first, keyed_normal(like, 2**62 + 2))
