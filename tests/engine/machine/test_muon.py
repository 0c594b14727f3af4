"""The kernels of Muon against the plain passes: on a GPU, or in Triton's interpreter (see
tests/nn/test_kernels.py)."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.engine import optim
from quintet.engine.config import OptimizerConfig

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
pytest.importorskip("triton", reason="needs Triton")
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device", allow_module_level=True)


def trained(monkeypatch: pytest.MonkeyPatch, fused: bool, skipped: int | None) -> dict[str, Tensor]:
    """Weights and momenta after four steps, one of them skipped."""
    monkeypatch.setattr(optim, "is_fused", lambda params: fused)
    torch.manual_seed(0)
    net: Any = nn.Sequential(
        nn.Linear(7, 8), nn.Linear(8, 40), nn.Linear(40, 8), nn.Conv2d(6, 8, 3), nn.Linear(8, 2)
    ).to(DEVICE)
    net[3].weight.data = net[3].weight.data.contiguous(memory_format=torch.channels_last)
    config = OptimizerConfig(optimizer="muon", learning_rate=0.01, weight_decay=0.1)
    hidden = optim.hidden_matrices(net)
    optimizer: Any = optim.build_optimizer(config, optim.trainable(net), hidden)
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(DEVICE)
        if step == skipped:
            net[1].weight.grad[0, 0] = float("nan")
        optimizer.found_inf = torch.tensor(float(step == skipped), device=DEVICE)
        optimizer.grad_scale = torch.tensor(float("nan") if step == skipped else 3.0, device=DEVICE)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(0.01 / (step + 1), device=DEVICE)
        optimizer.step()
    momenta = {
        f"{n} momentum": optimizer.state[net.get_parameter(n)]["momentum_buffer"] for n in hidden
    }
    return {**net.state_dict(), **momenta}


@pytest.mark.parametrize("skipped", [None, 0, 2])
def test_the_kernels_move_as_the_plain_passes(
    monkeypatch: pytest.MonkeyPatch, skipped: int | None
) -> None:
    fused, plain = (trained(monkeypatch, way, skipped) for way in (True, False))
    assert len(fused) == 13
    for name, value in plain.items():
        torch.testing.assert_close(fused[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_weights_on_a_gpu_are_fused() -> None:
    weight = torch.zeros(8, 6, 3, 3, device=DEVICE)
    assert optim.is_fused([weight, weight.contiguous(memory_format=torch.channels_last)])
    assert not optim.is_fused([weight.double()])
