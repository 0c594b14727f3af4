from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quintet.nn.quantisers.bsq import BSQ
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.lfq import LFQ
from quintet.nn.quantisers.residual import ResidualFSQ, ResidualQuantiser
from quintet.nn.quantisers.vq import VectorQuantiser


def stacks(dim: int = 16) -> list[nn.Module]:
    return [
        ResidualFSQ((5, 4, 3), 2),
        ResidualQuantiser([FSQ(dim, (5, 4, 3)), FSQ(dim, (5, 4, 3))]),
        ResidualQuantiser([LFQ(dim, 6), LFQ(dim, 6)]),
        ResidualQuantiser([BSQ(dim, 6), BSQ(dim, 6)]),
        ResidualQuantiser([VectorQuantiser(dim, 32) for _ in range(2)]),
    ]


each = pytest.mark.parametrize("build", range(5), ids=["residual_fsq", "fsq", "lfq", "bsq", "vq"])


def latents_for(quantiser: nn.Module) -> Tensor:
    if isinstance(quantiser, ResidualFSQ):
        return torch.rand(2, 3, 4, 6) * 2 - 1
    return torch.randn(2, 16, 4, 6)


@each
def test_ids_decode_to_exactly_the_values_of_forward(build: int) -> None:
    quantiser = stacks()[build].eval()
    latents = latents_for(quantiser)
    out = quantiser(latents)
    assert out.values.shape == latents.shape
    assert out.ids.shape == (2, 4, 6, 2)
    assert out.ids.min() >= 0
    assert out.ids.max() < quantiser.codebook_size
    assert out.loss.shape == ()
    assert torch.equal(quantiser.ids_to_values(out.ids), out.values)
    assert torch.equal(quantiser.to_ids(latents), out.ids)


@each
def test_gradient_reaches_the_latents_and_every_parameter(build: int) -> None:
    quantiser = stacks()[build].train()
    latents = latents_for(quantiser).requires_grad_()
    out = quantiser(latents)
    ((out.values * torch.randn_like(out.values)).sum() + out.loss).backward()
    assert latents.grad is not None
    assert latents.grad.abs().sum() > 0
    for name, parameter in quantiser.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@each
def test_autocast_changes_no_id_and_no_value(build: int) -> None:
    quantiser = stacks()[build].eval()
    latents = latents_for(quantiser)
    plain = quantiser(latents)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = quantiser(latents)
    assert torch.equal(plain.ids, cast.ids)
    assert torch.equal(plain.values, cast.values)


@settings(deadline=None, max_examples=60)
@given(
    levels=st.lists(st.integers(2, 30), min_size=1, max_size=4),
    depth=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_quantisation_error_is_at_most_half_a_finest_step(
    levels: list[int], depth: int, seed: int
) -> None:
    quantiser = ResidualFSQ(levels, depth)
    generator = torch.Generator().manual_seed(seed)
    shape = (1, len(levels), 50)
    latents = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    values = quantiser(latents).values
    steps = torch.tensor(quantiser.steps)[None, :, None]
    assert ((values - latents).abs() * steps <= 1 + 1e-9).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_pair_of_digits_is_its_own_nearest(depth: int) -> None:
    quantiser = ResidualFSQ((3, 2), depth)
    ids = torch.cartesian_prod(*[torch.arange(6)] * depth).view(1, -1, depth)
    assert torch.equal(quantiser.to_ids(quantiser.ids_to_values(ids)), ids)
    assert quantiser.ids_to_values(ids).movedim(1, -1)[0].unique(dim=0).shape[0] == 6**depth


def test_digits_stay_in_range_at_and_beyond_the_ends() -> None:
    quantiser = ResidualFSQ((24, 24, 24), 2)
    ids = quantiser.to_ids(torch.tensor([-9.0, -1.0, 1.0, 9.0]).expand(1, 3, 4))
    assert ids[0].tolist() == [[0, 0], [0, 0], [13823, 13823], [13823, 13823]]


def test_the_second_level_refines_the_first() -> None:
    quantiser = ResidualFSQ((24,), 2)
    ids = torch.tensor([[[7, 0], [7, 23], [8, 0]]])
    values = quantiser.ids_to_values(ids)[0, 0]
    fine = torch.tensor(2 / 576)
    assert torch.allclose(values[1] - values[0], 23 * fine, atol=1e-6)
    assert torch.allclose(values[2] - values[1], fine, atol=1e-6)


def test_it_rounds_in_double_where_the_model_runs_in_it() -> None:
    quantiser = ResidualFSQ((24, 24, 24), 2)
    out = quantiser(torch.rand(2, 3, 5, dtype=torch.float64))
    assert out.values.dtype == torch.float64
    assert torch.equal(quantiser.ids_to_values(out.ids, torch.float64), out.values)


def test_a_commit_moves_the_codebook_of_every_level(commit_at) -> None:
    quantiser = ResidualQuantiser([VectorQuantiser(16, 32) for _ in range(2)])
    latents = torch.randn(4, 16, 64)
    before = [level.codebook.clone() for level in quantiser.quantisers]
    quantiser(latents)
    quantiser.commit(commit_at())
    for level, old in zip(quantiser.quantisers, before):
        assert not torch.equal(level.codebook, old)


@pytest.mark.parametrize("wrong", [((), 2), ((24, 1), 2), ((24,), 0)])
def test_invalid_levels_are_rejected(wrong: tuple[tuple[int, ...], int]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        ResidualFSQ(*wrong)


def test_an_empty_list_of_quantisers_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ResidualQuantiser([])


def test_levels_revive_dead_codes_with_noise_of_their_own(commit_at: Callable[..., Any]) -> None:
    """Two equal levels with one code in use: equal noise would give them equal codebooks."""
    first, second = (VectorQuantiser(16, 8) for _ in range(2))
    second.load_state_dict(first.state_dict())
    quantiser = ResidualQuantiser([first, second])
    for level in (first, second):
        ids = torch.zeros(64, dtype=torch.long)
        level.counts.zero_()
        level.collect(torch.ones(64, 16), ids, level.codebook[ids])
    quantiser.commit(commit_at())
    assert torch.equal(first.codebook[0], second.codebook[0])
    dead = first.codebook[1:] - second.codebook[1:]
    assert (dead.abs() > 1e-3).any(1).all()
