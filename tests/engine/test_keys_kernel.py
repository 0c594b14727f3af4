"""The kernel of keyed noise against the plain version: on a GPU, or in Triton's interpreter (see
tests/nn/test_kernels.py)."""

import os

import pytest
import torch

from quintet.engine.keys import fold, normal, uniform

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
pytest.importorskip("triton", reason="needs Triton")
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device", allow_module_level=True)

from quintet.engine.keys_kernel import noise  # noqa: E402

KEYS = torch.tensor([0, 1, 2**63 - 1, -5, fold("a")])


@pytest.mark.parametrize("shape", [(), (1,), (3, 700), (5000,), (0,)])
def test_the_kernel_draws_the_bits_of_the_plain_version(shape: tuple[int, ...]) -> None:
    drawn = noise(KEYS.to(DEVICE), (fold("x"),), shape).cpu()
    assert torch.equal(drawn, uniform(KEYS, "x", shape))
    drawn = noise(KEYS.to(DEVICE), (fold("x/radius"), fold("x/angle")), shape).cpu()
    torch.testing.assert_close(drawn, normal(KEYS, "x", shape), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_noise_is_normal_and_finite() -> None:
    keys = torch.arange(64, device="cuda")
    assert torch.equal(uniform(keys, "x", (7, 9)).cpu(), uniform(keys.cpu(), "x", (7, 9)))
    values = normal(keys, "noise", (1 << 20,))
    assert values.isfinite().all()
    assert values.mean().abs() < 1e-3
    assert (values.std() - 1).abs() < 1e-3
    assert 5 < values.abs().max() < 6
