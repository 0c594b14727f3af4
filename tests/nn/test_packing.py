import pytest
import torch

from quintet.nn.packing import Packing, mean_by_owner, owners, sum_by_owner

LENGTHS = torch.tensor([3, 1, 0, 4])
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


def test_rows_have_owners_and_positions_and_those_behind_have_none():
    packing = Packing.of(LENGTHS, 10, 5)
    assert owners(LENGTHS, 10).tolist() == [0, 0, 0, 1, 3, 3, 3, 3, -1, -1]
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 0, 0]
    assert packing.row.tolist() == [
        [0, 1, 2, -1, -1],
        [3, -1, -1, -1, -1],
        [-1] * 5,
        [4, 5, 6, 7, -1],
    ]


def test_sums_and_means_leave_out_rows_without_an_owner():
    owner, values = owners(LENGTHS, 10), torch.arange(1.0, 11)
    assert sum_by_owner(values, owner, 4).tolist() == [6, 4, 0, 26]
    assert mean_by_owner(values, owner, 4).tolist() == [2, 4, 0, 6.5]


@pytest.mark.parametrize("device", DEVICES)
def test_padding_and_back_are_inverse_and_so_are_their_gradients(device: str):
    packing = Packing.of(LENGTHS.to(device), 10, 5)
    x = torch.randn(10, 2, 3, dtype=torch.float64, device=device, requires_grad=True)
    padded = packing.pad(x)
    assert padded.shape == (4, 5, 2, 3)
    assert torch.equal(padded[3, :4], x[4:8])
    assert not padded[2].any()
    assert torch.equal(packing.unpad(padded)[:8], x[:8])
    assert not packing.unpad(padded)[8:].any()
    assert torch.autograd.gradcheck(packing.pad, x)
    y = torch.randn(4, 5, 2, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(packing.unpad, y)


def test_flags_and_numbers_are_padded_as_they_are():
    packing = Packing.of(LENGTHS, 8, 4)
    assert packing.pad(torch.ones(8, dtype=torch.bool)).dtype == torch.bool
    assert packing.pad(torch.arange(8))[3].tolist() == [4, 5, 6, 7]
