import pytest
import torch
from torch import nn
from torch.nn import functional as F

from quintet.nn.blocks import (
    AttentionBlock,
    Downsample,
    Head,
    ResidualBlock,
    Stem,
    Upsample,
    channels_to_space,
    choose_head_dim,
    enlarge,
    match_channels,
    pixel_shuffle,
    pixel_unshuffle,
    space_to_channels,
)
from quintet.nn.norms import group_norm
from quintet.nn.rope import apply_rope, rope_grid


@pytest.mark.parametrize("block", [ResidualBlock(32), AttentionBlock(32, head_dim=16)])
def test_residual_branches_start_as_the_identity(block: nn.Module) -> None:
    x = torch.randn(2, 32, 6, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(("dim", "dim_out"), [(16, 32), (16, 16), (16, 64), (16, 128), (32, 16)])
def test_downsample_halves_and_upsample_doubles(dim: int, dim_out: int) -> None:
    x = torch.randn(2, dim, 8, 12)
    y = Downsample(dim, dim_out)(x)
    assert y.shape == (2, dim_out, 4, 6)
    assert Upsample(dim_out, dim)(y).shape == x.shape


def test_shortcuts_undo_each_other_where_no_channel_is_averaged() -> None:
    x = torch.randn(2, 8, 6, 4)
    assert torch.equal(channels_to_space(space_to_channels(x, 32), 8), x)


def test_a_shortcut_between_unrelated_widths_is_rejected() -> None:
    with pytest.raises(ValueError, match="divide"):
        Downsample(16, 24)


def test_stem_and_head_fold_and_unfold_patches() -> None:
    x = torch.randn(2, 3, 16, 8)
    y = Stem(3, 32, 4)(x)
    assert y.shape == (2, 32, 4, 2)
    assert Head(32, 3, 4)(y).shape == x.shape


def test_group_norm_finds_a_width_that_divides() -> None:
    assert group_norm(64).num_groups == 4
    assert group_norm(24).num_groups == 2


def test_heads_fit_any_width_divisible_by_four() -> None:
    assert [choose_head_dim(dim) for dim in (64, 96, 128, 320, 20)] == [64, 48, 64, 64, 20]
    with pytest.raises(ValueError, match="divisible by 4"):
        choose_head_dim(30)


def test_rotation_makes_attention_depend_on_distance_alone() -> None:
    rotation = rope_grid((5, 7), 16, torch.device("cpu"))
    q, k = torch.randn(1, 16).expand(35, 16), torch.randn(1, 16).expand(35, 16)
    scores = apply_rope(q, rotation) @ apply_rope(k, rotation).T
    grid = scores.view(5, 7, 5, 7)
    assert torch.allclose(grid[0, 1, 2, 3], grid[2, 4, 4, 6], atol=1e-4)
    assert not torch.allclose(grid[0, 1, 2, 3], grid[0, 1, 3, 3], atol=1e-2)


def test_attention_mixes_positions_but_not_samples() -> None:
    block = AttentionBlock(32, head_dim=16)
    nn.init.normal_(block.to_out.weight)
    x = torch.randn(2, 32, 4, 6)
    y = x.clone()
    y[0, :, 0, 0] += 1
    changed = (block(x) - block(y)).abs().sum(1)
    assert changed[0, 3, 5] > 0
    assert changed[1].max() == 0


@pytest.mark.parametrize("factor", [2, 4])
def test_reshapes_are_those_of_torch_in_channels_last_memory(factor: int) -> None:
    small = torch.randn(2, 3 * factor**2, 5, 6).contiguous(memory_format=torch.channels_last)
    large = torch.randn(2, 3, 5 * factor, 6 * factor).contiguous(memory_format=torch.channels_last)
    pairs = [
        (pixel_shuffle(small, factor), F.pixel_shuffle(small, factor)),
        (pixel_unshuffle(large, factor), F.pixel_unshuffle(large, factor)),
        (enlarge(small, factor), F.interpolate(small, scale_factor=float(factor))),
        (match_channels(large, 12), large.repeat_interleave(4, 1)),
        (match_channels(small, 3), small.unflatten(1, (3, -1)).mean(2)),
    ]
    for actual, expected in pairs:
        assert torch.equal(actual, expected)
        assert actual.is_contiguous(memory_format=torch.channels_last)
