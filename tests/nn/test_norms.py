import torch
from torch.nn import functional as F

from quintet.nn.norms import RMSNorm, rms_norm


def test_small_values_in_bf16_are_normalised() -> None:
    x = torch.full((2, 8), 0.01, dtype=torch.bfloat16)
    assert torch.allclose(rms_norm(x).float(), torch.ones(2, 8), atol=0.02)


def test_the_norm_is_that_of_torch_in_fp32_and_keeps_the_dtype() -> None:
    norm, x = RMSNorm(8), torch.randn(2, 8)
    torch.nn.init.normal_(norm.weight)
    assert torch.equal(norm(x), F.rms_norm(x, (8,), norm.weight))
    assert norm(x.bfloat16()).dtype == torch.bfloat16
