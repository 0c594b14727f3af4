from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quintet.nn.blocks import AttentionBlock, Downsample, Upsample
from quintet.nn.causal import (
    CausalConv,
    CausalResidualBlock,
    CausalSequential,
    GateLoop,
    PerFrame,
    State,
    TemporalAttention,
    TemporalDownsample,
    TemporalUpsample,
    channels_to_frames,
    frames_to_channels,
    mean_position,
    pad_time,
    windowed_attention,
)

WINDOW = 3
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "frame": lambda: PerFrame(AttentionBlock(8)),
    "conv": lambda: CausalConv(8, 12),
    "long_conv": lambda: CausalConv(8, 8, 5),
    "residual": lambda: CausalResidualBlock(8),
    "plain_residual": lambda: CausalResidualBlock(8, squeeze_excite=False),
    "attention": lambda: TemporalAttention(8, WINDOW),
    "present_only": lambda: TemporalAttention(8, 1),
    "gateloop": lambda: GateLoop(8),
    "down": lambda: TemporalDownsample(8, 16),
    "narrow_down": lambda: TemporalDownsample(8, 4),
    "up": lambda: TemporalUpsample(8, 4),
    "wide_up": lambda: TemporalUpsample(8, 8),
}
each = pytest.mark.parametrize("name", LAYERS)
KEEP = dict.fromkeys(LAYERS, 1.0) | {"down": 2, "narrow_down": 2, "up": 0.5, "wide_up": 0.5}
"""Input frames per output frame."""


def with_random_zeros(layer: nn.Module) -> nn.Module:
    """Randomise zero-initialised branches, which would hide errors."""
    for parameter in layer.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return layer.double()


def clip_of(frames: int) -> Tensor:
    return torch.randn(2, frames, 8, 3, 4, dtype=torch.float64)


def in_chunks(layer: nn.Module, clip: Tensor, sizes: list[int]) -> tuple[Tensor, State]:
    state: State = ()
    outputs: list[Tensor] = []
    for chunk in clip.split(sizes, dim=1):
        out, state = layer(chunk, state)
        outputs.append(out)
    return torch.cat(outputs, dim=1), state


@each
@given(at=st.integers(0, 8))
@settings(max_examples=9, deadline=None)
def test_layers_are_causal(name: str, at: int) -> None:
    torch.manual_seed(0)
    layer = with_random_zeros(LAYERS[name]())
    clip = clip_of(9)
    changed = clip.clone()
    changed[:, at] += 1
    before, _ = layer(clip)
    after, _ = layer(changed)
    differs = (before != after).flatten(2).any(2).any(0)
    first = int(differs.int().argmax())
    expected = {1: at, 2: (at + 1) // 2, 0.5: max(2 * at - 1, 0)}[KEEP[name]]
    assert differs.any()
    assert first == expected


@pytest.mark.by_default("sizes1-*", "sizes3-*")
@each
@pytest.mark.parametrize("sizes", [[1, 8], [3, 2, 2, 2], [5, 4], [1, 2, 2, 4]])
def test_chunks_give_what_the_whole_clip_gives(name: str, sizes: list[int]) -> None:
    layer = with_random_zeros(LAYERS[name]())
    clip = clip_of(9)
    whole, state = layer(clip)
    chunked, _ = in_chunks(layer, clip, sizes)
    assert state is None
    assert chunked.shape == whole.shape
    assert torch.allclose(chunked, whole, atol=1e-12)


@each
def test_the_first_frame_alone_is_the_first_frame_of_its_clip(name: str) -> None:
    layer = with_random_zeros(LAYERS[name]())
    clip = clip_of(5)
    assert torch.allclose(layer(clip[:, :1])[0], layer(clip)[0][:, :1], atol=1e-12)


@each
def test_a_static_clip_stays_static(name: str) -> None:
    layer = with_random_zeros(LAYERS[name]())
    out, _ = layer(clip_of(1).expand(-1, 7, -1, -1, -1))
    if KEEP[name] == 0.5:  # the two frames that one latent becomes have weights of their own
        assert torch.allclose(out[:, 1::2], out[:, 1:2].expand_as(out[:, 1::2]))
        out = out[:, ::2]
    assert torch.allclose(out, out[:, :1].expand_as(out), atol=1e-12)


@each
def test_the_state_does_not_grow_with_the_clip(name: str) -> None:
    layer = with_random_zeros(LAYERS[name]())
    sizes = []
    for chunks in (2, 4, 8):
        _, state = in_chunks(layer, clip_of(1 + 2 * chunks), [1] + [2] * chunks)
        assert state is not None
        for part in state:  # and is no view of a whole chunk
            assert part.untyped_storage().nbytes() == part.numel() * part.element_size()
        sizes.append(sum(part.numel() for part in state))
    assert len(set(sizes)) == 1


@each
def test_samples_and_memory_layouts_do_not_matter(name: str) -> None:
    layer = with_random_zeros(LAYERS[name]())
    clip = clip_of(3)
    whole, _ = layer(clip)
    assert torch.allclose(torch.cat([layer(part)[0] for part in clip.split(1)]), whole)
    last = clip.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert torch.allclose(layer(last)[0], whole)


@each
def test_every_parameter_receives_a_gradient(name: str) -> None:
    layer = with_random_zeros(LAYERS[name]())
    clip = clip_of(5).requires_grad_()
    out, _ = layer(clip)
    (out * torch.randn_like(out)).sum().backward()
    for label, parameter in layer.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.any() or (name == "present_only" and "to_out" not in label), label
    assert clip.grad is not None
    assert clip.grad.flatten(2).any(2).all()


@pytest.mark.by_default("attention", "conv", "down", "frame", "gateloop")
@each
def test_it_is_one_graph_and_runs_in_bf16(name: str) -> None:
    torch.compiler.reset()
    layer = with_random_zeros(LAYERS[name]()).float()
    clip = clip_of(3).float()
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=False)
    exact, _ = layer(clip)
    assert torch.allclose(compiled(clip)[0], exact, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(layer(clip)[0].float(), exact, atol=0.1 * exact.abs().max().item())


def test_residual_blocks_begin_as_the_identity() -> None:
    clip = clip_of(3).float()
    for layer in (CausalResidualBlock(8), TemporalAttention(8, WINDOW), GateLoop(8)):
        assert torch.equal(layer(clip)[0], clip)


def test_causal_conv_is_the_3d_convolution_it_replaces() -> None:
    layer = with_random_zeros(CausalConv(8, 12))
    clip = clip_of(5)
    padded = torch.cat((clip[:, :1], clip[:, :1], clip), dim=1).transpose(1, 2)
    weight = layer.conv.weight[..., None]
    expected = torch.nn.functional.conv3d(padded, weight, layer.conv.bias).transpose(1, 2)
    assert torch.allclose(layer(clip)[0], expected, atol=1e-12)


def test_causal_conv_needs_a_kernel_beyond_its_stride() -> None:
    with pytest.raises(ValueError, match="kernel 2 must be larger than stride 2"):
        CausalConv(8, 8, 2, 2)


@given(channels=st.sampled_from([2, 4, 8, 16]))
def test_shortcuts_through_time_keep_the_mean(channels: int) -> None:
    clip = clip_of(4)
    paired = frames_to_channels(clip, channels)
    assert paired.shape == (2, 2, channels, 3, 4)
    means = clip.unflatten(1, (2, 2)).mean((2, 3))
    assert torch.allclose(paired.mean(2), means)


def test_frames_come_back_from_channels() -> None:
    clip = clip_of(4)
    assert torch.equal(channels_to_frames(frames_to_channels(clip, 16)), clip)


def test_attention_looks_back_as_far_as_its_window() -> None:
    layer = with_random_zeros(TemporalAttention(8, WINDOW))
    clip = clip_of(9)
    changed = clip.clone()
    changed[:, 2] += 1
    differs = (layer(clip)[0] != layer(changed)[0]).flatten(2).any(2).any(0)
    assert differs.nonzero().flatten().tolist() == [2, 3, 4]


def test_windowed_attention_is_softmax_over_the_frames_in_the_window() -> None:
    q, k, v = (torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3))  # heads, t, e
    bias = torch.randn(2, WINDOW, dtype=torch.float64)
    result = windowed_attention(q, k, v, bias, WINDOW)
    for head in range(2):
        for at in range(5):
            seen = range(max(0, at - WINDOW + 1), at + 1)
            scores = [q[head, at] @ k[head, j] / 2 + bias[head, at - j] for j in seen]
            weights = torch.stack(scores).softmax(0)
            expected = sum(w * v[head, j] for w, j in zip(weights, seen))
            assert torch.allclose(result[head, at], expected)


def test_gateloop_has_unbounded_memory() -> None:
    layer = with_random_zeros(GateLoop(8))
    clip = clip_of(9)
    changed = clip.clone()
    changed[:, 0] += torch.randn_like(changed[:, 0])
    assert (layer(clip)[0] != layer(changed)[0])[:, -1].any()


def test_chunks_through_a_sequence_equal_the_whole_clip() -> None:
    layers = [
        PerFrame(Downsample(8, 16)),
        TemporalDownsample(16, 16),
        TemporalAttention(16, 2),
        TemporalUpsample(16, 16),
    ]
    stack = with_random_zeros(
        CausalSequential([*layers, CausalResidualBlock(16), PerFrame(Upsample(16, 8))])
    )
    clip = torch.randn(1, 9, 8, 4, 4, dtype=torch.float64)
    states, outputs = None, []
    for chunk in clip.split([3, 2, 4], dim=1):
        out, states = stack.forward_chunk(chunk, states)
        outputs.append(out)
    assert torch.allclose(torch.cat(outputs, 1), stack(clip), atol=1e-10)


@pytest.mark.parametrize("count", [1, 2])
def test_padding_repeats_the_first_frame_and_so_do_its_gradients(count: int) -> None:
    clip = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    expected = torch.cat((*[clip[:, :1]] * count, clip), dim=1)
    padded = pad_time(clip, count)
    assert torch.equal(padded, expected)
    gradient = torch.randn_like(expected)
    slopes = [torch.autograd.grad(each, clip, gradient)[0] for each in (padded, expected)]
    torch.testing.assert_close(*slopes)


def test_the_mean_of_positions_has_the_gradient_of_a_mean() -> None:
    x = torch.randn(2, 6, 3, 5).contiguous(memory_format=torch.channels_last)
    ours, plain = (x.detach().requires_grad_() for _ in range(2))
    slope = torch.randn(2, 6, 1, 1)
    torch.autograd.backward([mean_position(ours), ours.sin()], [slope, x])
    torch.autograd.backward([plain.mean((2, 3), keepdim=True), plain.sin()], [slope, x])
    torch.testing.assert_close(ours.grad, plain.grad)
    assert ours.grad is not None
    assert ours.grad.is_contiguous(memory_format=torch.channels_last)
