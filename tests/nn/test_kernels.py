"""The Triton kernels against the plain versions.

On a GPU the kernels run as they are. Without one they run in Triton's interpreter, which has to be
chosen before Triton is imported: `test_kernels_hold_in_the_interpreter` runs this file again, in
another process.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.mesh.autoencoder.graph import Layer, _windows, window_aggregate, windows
from quintet.nn import alignment, norms
from quintet.nn import fused as fused_layers
from quintet.nn.adaptive_norm import Gated, _adaptive_norm, adaptive_norm
from quintet.nn.adversarial.discriminator import PatchDiscriminator
from quintet.nn.adversarial.losses import r1_exact
from quintet.nn.attention import (
    Block,
    Context,
    CrossAttention,
    CrossKV,
    SelfAttention,
    _short_attention,
    cache_position,
    causal_attention,
)
from quintet.nn.blocks import ResidualBlock
from quintet.nn.fused import FusedSequential
from quintet.nn.heads import _gated, _q_heads, _qkv_heads, geglu, norm_heads, split_heads, swiglu
from quintet.nn.rope import Rope, rope_1d
from quintet.triton import HAS_TRITON

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
INTERPRETED = not CUDA and os.environ.get("TRITON_INTERPRET") == "1"

runs_kernels = pytest.mark.skipif(
    not HAS_TRITON or not (CUDA or INTERPRETED), reason="needs Triton, and a CUDA device"
)


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    skipped = pytest.mark.skipif(not CUDA or not HAS_TRITON, reason="needs a CUDA device")
    return pytest.mark.gpu(skipped(test))


@pytest.mark.skipif(CUDA, reason="the kernels run on the GPU")
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
def test_kernels_hold_in_the_interpreter() -> None:
    if tuple(int(part) for part in version("triton").split(".")[:2]) < (3, 7):
        pytest.skip("the interpreter of Triton before 3.7 fails with NumPy 2.4")
    # The interpreter computes what masks discard, and says so where that overflows.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    command += ["-W", "ignore::RuntimeWarning", "-W", "ignore::UserWarning:triton"]
    result = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


# Alignment.

BLANKS = (0.0, -1.0, 0.5, -6.0, -1e5)


def aligner_batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A few samples of any length, also none and too short ones, with junk for padding."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)
    b, t, n = (int(draw(1, most)) for most in (5, 40, 20))
    values = torch.randn(b, t, n, generator=generator) * (0.1, 3.0, 50.0)[seed % 3]
    # Whole numbers have ties.
    values = values.round() if seed % 2 else values.log_softmax(-1)
    frames, tokens = draw(0, t + 1, b), draw(0, n + 1, b)
    tokens = tokens if seed % 4 == 0 else torch.minimum(tokens, frames)
    for row, length, count in zip(values, frames.tolist(), tokens.tolist()):
        row[length:] = float("nan")
        row[:, count:] = float("inf")
    return values.to(DEVICE), frames.to(DEVICE), tokens.to(DEVICE)


@runs_kernels
@pytest.mark.parametrize("seed", range(8))
def test_the_search_kernel_gives_the_plain_durations(seed: int) -> None:
    from quintet.nn.kernels.alignment import monotonic_search

    batch = aligner_batch(seed)
    durations = monotonic_search(*batch)
    assert torch.equal(durations, alignment.plain_search(*batch))
    assert torch.equal(durations.sum(1), batch[1])


@runs_kernels
@pytest.mark.parametrize("seed", range(8))
def test_the_forward_sum_kernel_gives_the_plain_loss_and_posterior(seed: int) -> None:
    from quintet.nn.kernels.alignment import forward_sum

    batch, blank = aligner_batch(seed), BLANKS[seed % len(BLANKS)]
    loss, posterior = forward_sum(*batch, blank)
    expected_loss, expected_posterior = alignment.plain_forward_sum(*batch, blank)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(posterior, expected_posterior, rtol=1e-4, atol=1e-5)


@runs_kernels
def test_kernels_take_any_memory_and_any_integers() -> None:
    from quintet.nn.kernels.alignment import forward_sum, monotonic_search

    values = torch.randn(2, 6, 20, device=DEVICE).transpose(1, 2)
    lengths = torch.tensor([[20, 6], [15, 4]], dtype=torch.int32, device=DEVICE)
    batch = (values, lengths[:, 0], lengths[:, 1])
    assert torch.equal(monotonic_search(*batch), alignment.plain_search(*batch))
    losses = forward_sum(*batch, 0.0)[0], alignment.plain_forward_sum(*batch, 0.0)[0]
    torch.testing.assert_close(*losses)


@runs_kernels
def test_a_score_that_is_not_a_number_is_not_hidden() -> None:
    from quintet.nn.kernels.alignment import forward_sum, monotonic_search

    values = torch.randn(2, 8, 3, device=DEVICE)
    values[0, 4, 1] = float("nan")
    lengths = torch.tensor([8, 8], device=DEVICE), torch.tensor([3, 3], device=DEVICE)
    assert forward_sum(values, *lengths, 0.0)[0].isnan().tolist() == [True, False]
    assert monotonic_search(values, *lengths).sum(1).tolist() == [8, 8]


@runs_kernels
def test_long_sums_keep_their_precision_in_the_kernels() -> None:
    """Scores near -100: in fp32 the differences of sums would be lost."""
    from quintet.nn.kernels.alignment import forward_sum, monotonic_search

    frames = 2000 if CUDA else 200
    values = (torch.randn(1, frames, 30) - 100).to(DEVICE)
    lengths = torch.tensor([frames], device=DEVICE), torch.tensor([30], device=DEVICE)
    expected = alignment.plain_search(values, *lengths)
    assert torch.equal(monotonic_search(values, *lengths), expected)
    posterior = forward_sum(values, *lengths, -100.0)[1]
    expected = alignment.plain_forward_sum(values, *lengths, -100.0)[1]
    torch.testing.assert_close(posterior, expected, rtol=1e-4, atol=1e-4)


@on_gpu
@pytest.mark.parametrize("shape", [(24, 471, 48), (8, 1000, 150), (2, 3000, 400)])
def test_the_aligner_on_a_gpu_computes_what_the_plain_one_does(
    shape: tuple[int, int, int],
) -> None:
    b, t, n = shape
    values = (2 * torch.randn(shape, device=DEVICE)).log_softmax(-1).requires_grad_()
    frames = torch.randint(t // 2, t + 1, (b,), device=DEVICE)
    tokens = torch.randint(n // 4, n // 2 + 1, (b,), device=DEVICE)
    durations = alignment.monotonic_search(values, frames, tokens)
    assert torch.equal(durations, alignment.plain_search(values.detach(), frames, tokens))
    loss = alignment.forward_sum(values, frames, tokens)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    expected, posterior = alignment.plain_forward_sum(values.detach(), frames, tokens, 0.0)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, -posterior, rtol=1e-4, atol=1e-4)
    lowered = alignment.forward_sum(values, frames, tokens, torch.tensor(-8.0, device=DEVICE))
    expected, _ = alignment.plain_forward_sum(values.detach(), frames, tokens, -8.0)
    torch.testing.assert_close(lowered, expected, rtol=1e-4, atol=0)


@on_gpu
def test_the_aligner_in_fp64_stays_plain_on_a_gpu() -> None:
    values, frames, tokens = aligner_batch(1)
    values = values.double()
    actual = torch.ops.quintet.forward_sum(values, frames, tokens, 0.0)
    expected = alignment.plain_forward_sum(values, frames, tokens, 0.0)
    assert all(torch.equal(a, e) for a, e in zip(actual, expected))


# Group norm and activation.

NORM_SHAPES = [
    ((2, 32, 6, 5), 2),
    ((3, 48, 3, 4, 2), 3),
    ((1, 8, 40, 40), 8),
    ((2, 64, 1, 1), 1),
    ((2, 256, 12, 9), 16),
]
ACTIVATIONS = ("none", "silu", "leaky_relu")


def norm_inputs(
    shape: tuple[int, ...], dtype: torch.dtype, offset: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    x = (1.5 * torch.randn(shape, device=DEVICE) + offset).to(dtype)
    x = x.contiguous(memory_format=norms.FORMATS[len(shape)])
    weight = 1 + 0.1 * torch.randn(shape[1], device=DEVICE)
    bias = 0.1 * torch.randn(shape[1], device=DEVICE)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def fused(
    inputs: tuple[Tensor, ...],
    groups: int,
    activation: str,
    dtype: torch.dtype,
    padding: norms.Padding = norms.UNPADDED,
) -> Tensor:
    x, weight, bias, *added = inputs
    first = added[0] if added else None
    numbers = groups, 1e-5, activation, dtype, *padding
    return norms._group_norm_act(x, first, weight, bias, *numbers)[0]


def plain(inputs: tuple[Tensor, ...], groups: int, activation: str) -> Tensor:
    x, weight, bias, *added = inputs
    x = x + along_channels(added[0], x) if added else x
    return norms.activate(F.group_norm(x, groups, weight, bias), activation)


def along_channels(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view(-1, *(1,) * (x.ndim - 2))


@runs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("shape", "groups"), NORM_SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adds", [False, True])
def test_the_norm_kernels_give_the_plain_output_and_gradients(
    adds: bool, dtype: torch.dtype, shape: tuple[int, ...], groups: int, activation: str
) -> None:
    inputs: tuple[Tensor, ...] = norm_inputs(shape, dtype)
    if adds:
        inputs = (*inputs, (2 + torch.randn(shape[1], device=DEVICE)).requires_grad_())
    exact: Any = tuple(a.detach().double().requires_grad_() for a in inputs)
    actual, expected = fused(inputs, groups, activation, dtype), plain(exact, groups, activation)
    assert actual.dtype == dtype
    assert actual.is_contiguous(memory_format=norms.FORMATS[len(shape)])
    gradient = torch.randn_like(actual)
    slopes = torch.autograd.grad(actual, inputs, gradient)
    expected_slopes = torch.autograd.grad(expected, exact, gradient.double())
    # Sums over many positions are in fp32 for any dtype.
    rounding = 1e-5 if dtype == torch.float32 else 1e-2
    outputs = zip((actual, *slopes), (expected, *expected_slopes))
    allowed = (rounding, rounding, 1e-4, 1e-4, 1e-4)
    for (a, e), share in zip(outputs, allowed):
        # The gradients of a bias before a norm cancel: compare them with those of the norm's own.
        largest = max(e.abs().max(), expected_slopes[2].abs().max() * (e.ndim == 1))
        assert (a.double() - e).abs().max() <= share * largest


@runs_kernels
@pytest.mark.parametrize("padding", [norms.Padding(3, 2), norms.Padding(6, 1), norms.Padding(1, 2)])
def test_the_norm_kernels_repeat_the_first_frame_of_each_clip(padding: norms.Padding) -> None:
    inputs = norm_inputs((6, 32, 5, 4), torch.float32)
    actual = fused(inputs, 2, "silu", torch.float32, padding)
    expected = norms.pad_frames(plain(inputs, 2, "silu"), padding)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    gradient = torch.randn_like(expected)
    slopes = [torch.autograd.grad(each, inputs, gradient) for each in (actual, expected)]
    for a, e in zip(*slopes):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


@runs_kernels
def test_a_mean_far_from_zero_costs_no_precision() -> None:
    inputs = norm_inputs((2, 32, 8, 8), torch.float32, offset=1000.0)
    exact: Any = tuple(a.detach().double() for a in inputs)
    actual, expected = fused(inputs, 2, "none", torch.float32), plain(exact, 2, "none")
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-3)


@runs_kernels
def test_the_norm_is_one_operation_to_the_compiler() -> None:
    inputs = norm_inputs((2, 32, 4, 4), torch.float32)
    x, *parameters = inputs
    for added in (None, torch.randn(32, device=DEVICE, requires_grad=True)):
        args = (x, added, *parameters, 2, 1e-5, "silu", torch.bfloat16, 2, 1)
        torch.library.opcheck(torch.ops.quintet.group_norm_act.default, args)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    for function in (fused, compiled):
        out = function(inputs, 2, "silu", torch.float32)
        slopes = torch.autograd.grad(out.square().sum(), inputs)
        expected = torch.autograd.grad(plain(inputs, 2, "silu").square().sum(), inputs)
        for a, e in zip(slopes, expected):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


# Bias, activation and skip connection.


@runs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(2, 64, 4, 4), (3, 5, 7, 9), (2, 80, 3, 5, 5), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("skips", [False, True])
def test_the_bias_kernels_give_the_plain_output_and_gradients(
    skips: bool, dtype: torch.dtype, shape: tuple[int, ...], activation: str
) -> None:
    form = norms.FORMATS[len(shape)]
    y, skip = (
        torch.randn(shape, device=DEVICE).to(dtype).contiguous(memory_format=form).requires_grad_()
        for _ in range(2)
    )
    bias = torch.randn(shape[1], device=DEVICE, requires_grad=True)
    inputs = (y, bias, skip) if skips else (y, bias)
    actual = fused_layers._bias_act(y, bias, skip if skips else None, activation)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = norms.activate(exact[0] + along_channels(exact[1], y), activation)
    expected = expected + exact[2] if skips else expected
    assert actual.dtype == dtype
    gradient = torch.randn_like(actual)
    slopes = torch.autograd.grad(actual, inputs, gradient)
    expected_slopes = torch.autograd.grad(expected, exact, gradient.double())
    rounding = 1e-5 if dtype == torch.float32 else 1e-2
    for a, e in zip((actual, *slopes), (expected, *expected_slopes)):
        assert (a.double() - e).abs().max() <= rounding * e.abs().max()


@runs_kernels
def test_the_bias_is_one_operation_to_the_compiler() -> None:
    y, skip = (torch.randn(2, 32, 4, 4, device=DEVICE) for _ in range(2))
    y, skip = (
        each.contiguous(memory_format=torch.channels_last).requires_grad_() for each in (y, skip)
    )
    bias = torch.randn(32, device=DEVICE, requires_grad=True)
    for args in ((y, bias, skip, "none"), (y, bias, None, "leaky_relu")):
        torch.library.opcheck(torch.ops.quintet.bias_act.default, args)


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(0.1), nn.ReLU()])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_fused_sequence_is_the_plain_one_on_a_cpu(activation: nn.Module, autocast: bool) -> None:
    layers = [nn.Conv2d(3, 32, 3), norms.group_norm(32), activation, norms.group_norm(32)]
    one, other = FusedSequential(*layers), nn.Sequential(*layers)
    assert list(one.state_dict()) == list(other.state_dict())
    x = torch.randn(2, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal(one(x), other(x))


def test_a_fused_residual_is_the_plain_one_on_a_cpu() -> None:
    layers = [norms.group_norm(32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1)]
    x = torch.randn(2, 32, 6, 6)
    assert torch.equal(FusedSequential(*layers).residual(x), x + nn.Sequential(*layers)(x))


def test_an_unknown_activation_is_an_error() -> None:
    with pytest.raises(ValueError, match="silu or leaky_relu, not relu"):
        norms.group_norm_act(torch.randn(1, 16, 2, 2), norms.group_norm(16), "relu")


# Heads and gated activations.


def rotation(kind: str, b: int, n: int, head_dim: int) -> Rope | None:
    """None, positions shared by all samples, or those of each sample."""
    if kind == "none":
        return None
    rope = rope_1d(torch.arange(7, 7 + b * n, device=DEVICE), head_dim)
    if kind == "shared":
        return Rope(rope.cos[:n], rope.sin[:n])
    return Rope(*(part.view(b, 1, n, -1) for part in rope))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.detach().float(), expected.detach().float()
    return float((actual - expected).norm() / expected.norm())


@runs_kernels
@pytest.mark.parametrize("kind", ["none", "shared", "own"])
@pytest.mark.parametrize("sizes", [(2, 5, 3, 8), (1, 70, 1, 12), (2, 65, 2, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_kernels_give_the_plain_output_and_gradients(
    kind: str, sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    b, n, heads, head_dim = sizes
    torch.manual_seed(0)
    qkv = torch.randn(b, n, 3 * heads * head_dim, device=DEVICE, dtype=dtype, requires_grad=True)
    gains = [(1 + 0.5 * torch.randn(head_dim, device=DEVICE)).requires_grad_() for _ in range(2)]
    rope = rotation(kind, b, n, head_dim)
    q, k, v = (split_heads(part, head_dim) for part in qkv.chunk(3, dim=-1))
    plain = norm_heads(q, gains[0], rope), norm_heads(k, gains[1], rope), v
    fused = _qkv_heads(qkv, *gains, *(rope or (None, None)))
    slopes = [torch.randn(b, n, heads, head_dim, device=DEVICE, dtype=dtype) for _ in range(3)]
    leaves = [qkv, *gains]
    expected = [*(part.transpose(1, 2) for part in plain)]
    expected += torch.autograd.grad(expected, leaves, slopes)
    actual = [*fused, *torch.autograd.grad(fused, leaves, slopes)]
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert relative_error(a, e) < (1e-6 if dtype == torch.float32 else 1e-2)


@runs_kernels
@pytest.mark.parametrize("sizes", [(2, 5, 3, 8), (1, 70, 1, 12), (2, 65, 2, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_alone_are_normed_by_the_same_kernels(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    b, n, heads, head_dim = sizes
    torch.manual_seed(0)
    x = torch.randn(b, n, heads * head_dim, device=DEVICE, dtype=dtype, requires_grad=True)
    gain = (1 + 0.5 * torch.randn(head_dim, device=DEVICE)).requires_grad_()
    plain = norm_heads(split_heads(x, head_dim), gain, None)
    fused = _q_heads(x, gain).transpose(1, 2)
    slope = torch.randn_like(plain)  # in another memory than the kernel's output
    expected = [plain, *torch.autograd.grad(plain, [x, gain], slope)]
    actual = [fused, *torch.autograd.grad(fused, [x, gain], slope)]
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert relative_error(a, e) < (1e-6 if dtype == torch.float32 else 1e-2)


@runs_kernels
def test_the_head_kernels_take_gradients_in_any_memory() -> None:
    b, n, heads, head_dim = shape = 2, 37, 3, 8
    torch.manual_seed(0)
    qkv = torch.randn(b, n, 3 * heads * head_dim, device=DEVICE, requires_grad=True)
    gains = [(1 + 0.5 * torch.randn(head_dim, device=DEVICE)).requires_grad_() for _ in range(2)]
    rope = rope_1d(torch.arange(n, device=DEVICE), head_dim)
    outputs = _qkv_heads(qkv, *gains, *rope)
    leaves = [qkv, *gains]
    slopes = [torch.randn(shape, device=DEVICE) for _ in range(3)]
    expected = torch.autograd.grad(outputs, leaves, slopes, retain_graph=True)
    by_head = [slope.transpose(1, 2).contiguous().transpose(1, 2) for slope in slopes]
    sliced = [torch.cat((slope, slope), -1)[..., :head_dim] for slope in slopes]
    reversed_ = [slope.transpose(1, 3).contiguous().transpose(1, 3) for slope in slopes]
    for memory in (by_head, sliced, reversed_, [slopes[0], by_head[1], sliced[2]]):
        actual = torch.autograd.grad(outputs, leaves, memory, retain_graph=True)
        assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
    ones = torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], True)
    summed = torch.autograd.grad([output.sum() for output in outputs], leaves)
    assert all(torch.equal(a, e) for a, e in zip(summed, ones, strict=True))


@runs_kernels
@pytest.mark.parametrize("kind", [swiglu, geglu])
@pytest.mark.parametrize("shape", [(2, 5, 16), (11, 600), (1, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_kernels_give_the_plain_output_and_gradient(
    kind: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """The plain versions in fp64."""
    x = (2 * torch.randn(shape, device=DEVICE)).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    actual, expected = _gated(x, kind.__name__), kind(exact)
    slope = torch.randn_like(actual)
    (gradient,) = torch.autograd.grad(actual, x, slope)
    (expected_gradient,) = torch.autograd.grad(expected, exact, slope.double())
    for a, e in ((actual, expected), (gradient, expected_gradient)):
        assert a.dtype == dtype
        assert relative_error(a, e) < (1e-6 if dtype == torch.float32 else 1e-2)


@runs_kernels
@pytest.mark.parametrize("shape", [(2, 5, 16), (3, 37, 24), (1, 1, 512), (2, 300, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("uses_sum", [True, False])
def test_the_adaptive_norm_kernel_gives_the_plain_output_and_gradients(
    shape: tuple[int, ...], dtype: torch.dtype, adds: bool, uses_sum: bool
) -> None:
    """The plain version in fp64; conditions are rows of a larger tensor, as in a block."""
    b, _, d = shape
    x, branch = (torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for _ in range(2))
    conditions = torch.randn(b, 6, d, device=DEVICE).to(dtype).requires_grad_()

    def outputs(leaves: list[Tensor], fused: bool) -> list[Tensor]:
        gate, shift, scale = leaves[2].unsqueeze(2).unbind(1)[2:5]
        given = (leaves[1], gate) if adds else (None, None)
        if fused:
            total, normed = _adaptive_norm(leaves[0], *given, shift, scale)
        else:
            total, normed = adaptive_norm(Gated(leaves[0], *given), shift, scale)
        return [total, normed] if adds and uses_sum else [normed]

    leaves = [x, branch, conditions]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    actual, expected = outputs(leaves, fused=True), outputs(exact, fused=False)
    slopes = [torch.randn_like(output) for output in actual]
    gradients = torch.autograd.grad(actual, leaves, slopes, allow_unused=True)
    exact_gradients = torch.autograd.grad(
        expected, exact, [slope.double() for slope in slopes], allow_unused=True
    )
    if not adds:
        assert gradients[1] is exact_gradients[1] is None
        gradients, exact_gradients = gradients[::2], exact_gradients[::2]
    for a, e in zip((*actual, *gradients), (*expected, *exact_gradients), strict=True):
        assert a.dtype == dtype
        assert relative_error(a, e) < (1e-5 if dtype == torch.float32 else 2e-2)


@runs_kernels
def test_heads_gates_and_norms_are_one_operation_each_to_the_compiler() -> None:
    qkv = torch.randn(2, 3, 24, device=DEVICE, requires_grad=True)
    gains = [torch.ones(4, device=DEVICE, requires_grad=True) for _ in range(2)]
    rope = rope_1d(torch.arange(3, device=DEVICE), 4)
    torch.library.opcheck(_qkv_heads, (qkv, *gains, *rope))
    torch.library.opcheck(_q_heads, (qkv, gains[0]))
    for kind in ("swiglu", "geglu"):
        torch.library.opcheck(_gated, (qkv, kind))
    leaf = lambda n: torch.randn(2, n, 24, device=DEVICE, requires_grad=True)
    torch.library.opcheck(_adaptive_norm, (leaf(3), leaf(3), leaf(1), leaf(1), leaf(1)))
    torch.library.opcheck(_adaptive_norm, (leaf(3), None, None, leaf(1), leaf(1)))


@on_gpu
def test_a_block_on_a_gpu_uses_the_head_kernels_and_is_that_of_fp32() -> None:
    block = Block(64, 2, 32).cuda()
    for layer in (block.attention.to_out, block.feed_forward.to_out):
        nn.init.normal_(layer.weight, std=0.1)
    x = torch.randn(3, 40, 64, device="cuda")
    rope = rope_1d(torch.arange(40, device="cuda"), 32)
    with bf16():
        actual = block(x, rope)
        with torch.profiler.profile(acc_events=True) as profile:
            block(x, rope)
    assert {"quintet::qkv_heads", "quintet::gated"} <= {e.key for e in profile.key_averages()}
    assert relative_error(actual, block(x, rope)) < 0.01


# Attention over a few positions.


def random_heads(
    shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Queries, keys and values (b, n, h, e); weights far from uniform."""
    torch.manual_seed(0)
    return [(2 * torch.randn(shape, device=DEVICE)).to(dtype).requires_grad_() for _ in range(3)]


def attended(inputs: list[Tensor], slope: Tensor) -> list[Tensor]:
    """The plain output, and gradients, (b, n, h, e)."""
    out = causal_attention(*(each.transpose(1, 2) for each in inputs)).transpose(1, 2)
    return [out, *torch.autograd.grad(out, inputs, slope)]


@runs_kernels
@pytest.mark.parametrize("shape", [(5, 6, 3, 32), (3, 1, 1, 8), (2, 9, 2, 20), (41, 2, 1, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_short_attention_kernels_give_the_plain_output_and_gradients(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    inputs = random_heads(shape, dtype)
    slope = torch.randn(shape, device=DEVICE).to(dtype)
    out = _short_attention(*inputs)
    actual = [out, *torch.autograd.grad(out, inputs, slope)]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    for a, e in zip(actual, attended(exact, slope.double()), strict=True):
        assert a.dtype == dtype
        assert a.is_contiguous()
        rounding = 1e-6 if dtype == torch.float32 else 1e-2
        # A single position has a weight of 1, whose gradient is 0.
        assert (a - e).norm() <= rounding * max(e.norm(), rounding)


@runs_kernels
def test_the_short_attention_kernels_take_any_memory() -> None:
    shape = (3, 5, 2, 8)
    inputs = random_heads(shape)
    slope = torch.randn(shape, device=DEVICE)
    expected = attended(inputs, slope)
    by_head = [each.detach().transpose(1, 2).contiguous().transpose(1, 2) for each in inputs]
    sliced = list(torch.cat([each.detach() for each in inputs], -1).chunk(3, -1))
    slopes = [slope, slope.transpose(1, 2).contiguous().transpose(1, 2)]
    for memory in (by_head, sliced, [by_head[0], sliced[1], sliced[2]]):
        leaves = [each.requires_grad_() for each in memory]
        for given in slopes:
            out = _short_attention(*leaves)
            actual = [out, *torch.autograd.grad(out, leaves, given)]
            for a, e in zip(actual, expected, strict=True):
                assert relative_error(a, e) < 1e-6


@runs_kernels
def test_short_attention_is_one_operation_to_the_compiler() -> None:
    q, k, v = random_heads((2, 4, 2, 8))
    torch.library.opcheck(_short_attention, (q, k, v))
    by_head = (each.detach().transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    torch.library.opcheck(_short_attention, tuple(by_head))


@runs_kernels
def test_short_attention_hides_no_number_that_is_not_one() -> None:
    q, k, v = (each.detach() for each in random_heads((2, 3, 1, 8)))
    k[0, 1, 0, 2] = float("nan")
    rows = _short_attention(q, k, v).isnan().any(-1).flatten(1)
    assert rows.tolist() == [[False, True, True], [False, False, False]]


@on_gpu
@pytest.mark.parametrize("compiles", [False, True])
def test_a_causal_block_on_a_gpu_uses_the_kernel_and_is_that_of_fp32(compiles: bool) -> None:
    block = Block(64, 4, 32).cuda()
    for layer in (block.attention.to_out, block.feed_forward.to_out):
        nn.init.normal_(layer.weight, std=0.1)
    x = torch.randn(700, 6, 64, device="cuda", requires_grad=True)
    leaves = [x, *block.parameters()]
    expected = block(x, causal=True)
    called: Any = torch.compile(block, fullgraph=True) if compiles else block
    with bf16(), torch.profiler.profile(acc_events=True) as profile:
        actual = called(x, causal=True)
    assert "quintet::short_attention" in {event.key for event in profile.key_averages()}
    assert relative_error(actual, expected) < 0.01
    slope = torch.randn_like(expected)
    slopes = [torch.autograd.grad(y, leaves, slope.to(y.dtype)) for y in (actual, expected)]
    for a, e in zip(*slopes, strict=True):
        assert relative_error(a, e) < 0.03


@on_gpu
@torch.no_grad()
def test_a_decoding_step_on_a_gpu_stays_plain() -> None:
    attention = SelfAttention(64, 2, 32).cuda().bfloat16()
    x = torch.randn(3, 1, 64, device="cuda", dtype=torch.bfloat16)
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    with torch.profiler.profile(acc_events=True) as profile:
        attention.step(x, cache_position(position, 6, 32, x.device), attention.kv_cache(3, 6))
    assert "quintet::short_attention" not in {event.key for event in profile.key_averages()}


@on_gpu
def test_captured_short_attention_is_the_eager_one_bit_for_bit() -> None:
    inputs = random_heads((500, 6, 4, 32), torch.bfloat16)
    slope = torch.randn_like(inputs[0])

    def step() -> tuple[Tensor, ...]:
        out = _short_attention(*inputs)
        return out, *torch.autograd.grad(out, inputs, slope)

    check_capture(step)


# Windows of rows.


def random_owners(b: int, n: int) -> Tensor:
    """Meshes of a few faces one after the other, with padding behind them and between."""
    owner = torch.randint(0, 3, (b, n)).cumsum(1) // 3
    owner[:, n - n // 4 :] = -1
    owner[torch.rand(b, n) < 0.1] = -1
    return owner.to(DEVICE)


@runs_kernels
@pytest.mark.parametrize("shape", [(2, 37, 16, 2), (1, 300, 20, 1), (3, 1, 8, 3), (2, 5, 300, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_window_kernels_give_the_plain_output_and_gradient(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    b, n, width, radius = shape
    torch.manual_seed(0)
    for owner in (random_owners(b, n), torch.zeros(b, n, dtype=torch.int32, device=DEVICE)):
        messages = torch.randn(b, n, width, device=DEVICE).to(dtype).requires_grad_()
        exact = messages.detach().double().requires_grad_()
        actual, expected = _windows(messages, owner, radius), windows(exact, owner, radius)
        assert torch.equal(actual.double(), expected)
        slope = torch.randn_like(actual)
        (gradient,) = torch.autograd.grad(actual, messages, slope)
        (expected,) = torch.autograd.grad(expected, exact, slope.double())
        rounding = 1e-6 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(gradient.double(), expected, rtol=rounding, atol=rounding)


@runs_kernels
def test_windows_are_one_operation_to_the_compiler() -> None:
    messages = torch.randn(2, 9, 8, device=DEVICE, requires_grad=True)
    torch.library.opcheck(_windows, (messages, random_owners(2, 9), 2))


@on_gpu
@pytest.mark.parametrize("compiles", [False, True])
def test_a_layer_of_faces_on_a_gpu_uses_the_kernels_and_is_that_of_fp32(compiles: bool) -> None:
    layer = Layer(64, 32, 5).cuda()
    for linear in (layer.from_messages, layer.mlp_out):
        nn.init.normal_(linear.weight, std=0.1)
    x = torch.randn(3, 200, 64, device="cuda", requires_grad=True)
    owner = random_owners(3, 200)
    leaves = [x, *layer.parameters()]
    call: Any = lambda x, owner: layer(x, window_aggregate(owner, 2))
    expected = call(x, owner)
    called = torch.compile(call, fullgraph=True) if compiles else call
    with bf16(), torch.profiler.profile(acc_events=True) as profile:
        actual = called(x, owner)
    assert {"quintet::windows", "quintet::gated"} <= {e.key for e in profile.key_averages()}
    assert relative_error(actual, expected) < 0.01
    slope = torch.randn_like(expected)
    slopes = [torch.autograd.grad(y, leaves, slope.to(y.dtype)) for y in (actual, expected)]
    for a, e in zip(*slopes, strict=True):
        assert relative_error(a, e) < 0.03


@on_gpu
def test_captured_windows_are_the_eager_ones_bit_for_bit() -> None:
    messages = torch.randn(3, 200, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    owner = random_owners(3, 200)
    slope = torch.randn(3, 200, 640, device="cuda", dtype=torch.bfloat16)

    def step() -> tuple[Tensor, ...]:
        out = windows(messages, owner, 2)
        return out, *torch.autograd.grad(out, messages, slope)

    check_capture(step)


# Decoding.


@runs_kernels
@pytest.mark.parametrize("epilogue", ["none", "residual", "silu", "swiglu"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16 if CUDA else torch.float16])
def test_the_linear_kernel_is_norm_product_and_activation(
    dtype: torch.dtype, norm: bool, epilogue: str
) -> None:
    """The interpreter does not multiply matrices in bf16."""
    from quintet.nn.kernels.decode import linear

    for m, n, k in ((1, 24, 48), (35, 40, 200), (70, 130, 64)):
        x = torch.randn(m, k, device=DEVICE).to(dtype)
        weight = torch.randn(2 * n if epilogue == "swiglu" else n, k, device=DEVICE).to(dtype)
        out = torch.randn(m, n, device=DEVICE).to(dtype)
        exact = x.double()
        exact = F.rms_norm(exact, (k,)) if norm else exact
        expected = exact @ weight.double().T
        if epilogue == "residual":
            expected = expected + out.double()
        elif epilogue == "silu":
            expected = F.silu(expected)
        elif epilogue == "swiglu":
            value, gate = expected.chunk(2, dim=-1)
            expected = value * F.silu(gate)
        actual = linear(x, weight, out, norm=norm, epilogue=epilogue)
        assert actual is out
        rounding = 1e-5 if dtype == torch.float32 else 1e-2
        assert (actual.double() - expected).abs().max() <= rounding * expected.abs().max()


def with_gains(attention: SelfAttention | CrossAttention) -> Any:
    for norm in (attention.q_norm, attention.k_norm):
        nn.init.normal_(norm.gain, 1.0, 0.3)
    return attention.to(DEVICE)


@runs_kernels
@pytest.mark.parametrize("head_dim", [16, 20])
@pytest.mark.parametrize("capacity", [6, 200 if CUDA else 70])
@torch.no_grad()
def test_the_cached_attention_kernel_is_a_step_of_self_attention(
    capacity: int, head_dim: int
) -> None:
    from quintet.nn.kernels.decode import self_attention

    attention = with_gains(SelfAttention(24, 2, head_dim))
    nn.init.eye_(attention.to_out.weight)
    expected, actual = (attention.kv_cache(3, capacity) for _ in range(2))
    gains = torch.stack((attention.q_norm.gain, attention.k_norm.gain))
    rope = rope_1d(torch.arange(capacity, device=DEVICE), head_dim)
    ended = torch.tensor([0, 1, 0], dtype=torch.int8, device=DEVICE)
    for kind in (expected, actual):
        for each, number in zip(kind, (1, 2)):
            torch.manual_seed(number)
            each.copy_(torch.randn(each.shape))
    for position in (0, 3, capacity - 1):
        x, at = torch.randn(3, 1, 24, device=DEVICE), torch.tensor([position], device=DEVICE)
        device = torch.device(DEVICE)
        step = attention.step(x, cache_position(at, capacity, head_dim, device), expected)
        out = torch.zeros(3, 2 * head_dim, device=DEVICE)
        self_attention(attention.to_qkv(x[:, 0]), gains, actual, at, rope, ended, out)
        out = attention.to_out(out)
        torch.testing.assert_close(out[::2], step[::2, 0], rtol=1e-4, atol=1e-5)
        assert out.isfinite().all()
        for a, e in zip(actual, expected):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


@runs_kernels
@torch.no_grad()
def test_the_context_kernel_is_cross_attention() -> None:
    from quintet.nn.kernels.decode import cross_attention

    attention = with_gains(CrossAttention(24, 2, 16))
    nn.init.eye_(attention.to_out.weight)
    mask = torch.zeros(3, 70, dtype=torch.bool, device=DEVICE)
    for row, visible in zip(mask, ([0], [0, 1, 5], [0, 2, 66])):
        row[visible] = True
    kv = attention.project_context(Context(torch.randn(3, 70, 24, device=DEVICE), mask))
    x, out = torch.randn(3, 1, 24, device=DEVICE), torch.zeros(3, 32, device=DEVICE)
    keys, values = (each.contiguous() for each in kv[:2])
    lengths = torch.tensor([1, 6, 67], dtype=torch.int32, device=DEVICE)
    kernel_kv = CrossKV(keys, values, mask.to(torch.int8))
    cross_attention(attention.to_q(x[:, 0]), attention.q_norm.gain, kernel_kv, lengths, out)
    expected = attention(x, kv)[:, 0]
    torch.testing.assert_close(attention.to_out(out), expected, rtol=1e-4, atol=1e-5)


def bf16() -> torch.autocast:
    return torch.autocast("cuda", torch.bfloat16)


@on_gpu
def test_only_autocast_fuses() -> None:
    norm, odd = norms.group_norm(32).cuda(), norms.group_norm(24).cuda()
    x = torch.randn(2, 32, 4, 4, device="cuda")
    assert torch.equal(norms.group_norm_act(x, norm, "silu"), F.silu(norm(x)))
    with bf16():
        assert norms.group_norm_act(x, norm, "silu").dtype == torch.bfloat16
        for plain_x, plain_norm in ((x.double(), norm.double()), (x[:, :24], odd)):
            actual = norms.group_norm_act(plain_x, plain_norm, "silu")
            assert torch.equal(actual, F.silu(plain_norm(plain_x)))


@on_gpu
def test_a_residual_block_on_a_gpu_is_that_of_fp32() -> None:
    block = ResidualBlock(64).cuda()
    nn.init.normal_(block.body[5].weight, std=0.05)  # type: ignore[arg-type]
    x = torch.randn(4, 64, 16, 16, device="cuda", requires_grad=True)
    leaves = [x, *block.parameters()]
    expected = block(x)
    with bf16():
        actual = block(x)
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.05)
    gradient = torch.randn_like(expected)
    slopes = [torch.autograd.grad(y, leaves, gradient.to(y.dtype)) for y in (actual, expected)]
    for a, e in zip(*slopes):
        assert (a - e).norm() <= 0.03 * e.norm()


@on_gpu
@pytest.mark.parametrize("shape", [(8, 64, 32, 32), (2, 64, 5, 16, 16)])
def test_a_captured_norm_is_the_eager_one_bit_for_bit(shape: tuple[int, ...]) -> None:
    inputs = norm_inputs(shape, torch.bfloat16)
    gradient = torch.randn_like(inputs[0])

    def step() -> tuple[Tensor, ...]:
        y = fused(inputs, 4, "silu", torch.bfloat16)
        return y, *torch.autograd.grad(y, inputs, gradient)

    check_capture(step)


@on_gpu
def test_a_captured_aligner_is_the_eager_one_bit_for_bit() -> None:
    values = torch.randn(4, 60, 12, device="cuda").log_softmax(-1).requires_grad_()
    frames = torch.tensor([60, 50, 40, 10], device="cuda")
    tokens = torch.tensor([12, 7, 1, 12], device="cuda")

    def step() -> tuple[Tensor, ...]:
        loss = alignment.forward_sum(values, frames, tokens)
        durations = alignment.monotonic_search(values, frames, tokens)
        return loss, durations, *torch.autograd.grad(loss.sum(), values)

    check_capture(step)


def check_capture(step: Callable[[], tuple[Tensor, ...]]) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Without their graph: while it lives, leaves keep the nodes that belong to the side stream.
        eager = [tensor.detach() for tensor in step()]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for tensor in captured:
        tensor.detach().zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(eager, captured))


@on_gpu
def test_the_exact_penalty_differentiates_twice_under_autocast() -> None:
    discriminator = PatchDiscriminator(dim=16).cuda()
    images = torch.rand(2, 3, 32, 32, device="cuda")
    expected = r1_exact(discriminator, images)
    with bf16():
        actual = r1_exact(discriminator, images)
    torch.testing.assert_close(actual, expected)
    actual.sum().backward()
    assert discriminator.body[0].weight.grad.any()  # type: ignore[union-attr]
