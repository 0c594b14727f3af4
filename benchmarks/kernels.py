"""Plain and fused versions of the operations in nn/kernels: milliseconds and largest errors.

    PYTHONPATH=src python benchmarks/kernels.py --device cuda

One JSON line per shape, in less than a minute. All but the aligners are timed forward and backward
in bf16; errors are relative to the largest value of the plain version, for norms in fp32. On a CPU
the plain versions are timed alone.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from timing import measured
from torch import Tensor
from torch.nn import functional as F

from quintet.mesh.autoencoder.graph import plain_windows, windows
from quintet.nn import alignment
from quintet.nn.attention import causal_attention, short_attention
from quintet.nn.heads import geglu, norm_heads, qkv_heads, split_heads, swiglu
from quintet.nn.norms import FORMATS, activate, group_norm, group_norm_act
from quintet.nn.rope import rope_1d

ALIGNERS = ((24, 471, 48), (64, 1000, 150), (8, 2000, 300))
HEADS = ((64, 1000, 16, 64), (512, 200, 12, 64), (64, 256, 8, 64))
GATES = ((64 * 1000, 1408), (512 * 200, 2048), (256 * 700, 512))
SHORT = ((22_500, 6, 8, 32), (16_000, 9, 8, 32))
WINDOWS = ((1, 256 * 700, 128),)
NORMS = ((64, 128, 64, 64), (64, 256, 32, 32), (8 * 17, 64, 128, 128))


def milliseconds(call: Callable[[], Any], device: torch.device, times: int) -> float:
    """Of the calls as they are launched, so including the host where it is the slower side."""
    for _ in range(2):
        call()
    return 1e3 * measured(call, times, device)


def graph_milliseconds(call: Callable[[], Any], device: torch.device, times: int) -> float:
    """Of the calls in a CUDA graph: the device alone."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return milliseconds(graph.replay, device, times)


def error(actual: Tensor, expected: Tensor) -> float:
    expected = expected.double()
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()


def timed(
    plain: Callable[[], Any], fused: Callable[[], Any], device: torch.device, times: int
) -> dict[str, Any]:
    row = {"plain_ms": milliseconds(plain, device, times)}
    if device.type == "cuda":
        row["fused_ms"] = milliseconds(fused, device, times)
        row["fused_graph_ms"] = graph_milliseconds(fused, device, times)
        row["ratio"] = row["plain_ms"] / row["fused_ms"]
    return {name: round(value, 4) for name, value in row.items()}


def benchmark_aligner(shape: tuple[int, int, int], device: torch.device, times: int) -> None:
    b, t, n = shape
    log_probs = (2 * torch.randn(shape, device=device)).log_softmax(-1)
    lengths = (
        torch.randint(t // 2, t + 1, (b,), device=device),
        torch.randint(n // 2, n + 1, (b,), device=device),
    )
    plain_sum = lambda: alignment.plain_forward_sum(log_probs, *lengths, 0.0)
    fused_sum = lambda: torch.ops.quintet.forward_sum(log_probs, *lengths, 0.0)
    plain_search = lambda: alignment.plain_search(log_probs, *lengths)
    fused_search = lambda: alignment.monotonic_search(log_probs, *lengths)
    losses, posteriors = zip(fused_sum(), plain_sum())
    row = timed(plain_sum, fused_sum, device, times)
    row |= {"loss_error": error(*losses), "posterior_error": error(*posteriors)}
    print(json.dumps({"benchmark": "forward_sum", "shape": shape, **row}), flush=True)
    different = (fused_search() != plain_search()).sum().item()
    row = timed(plain_search, fused_search, device, times)
    row |= {"different_durations": different}
    print(json.dumps({"benchmark": "monotonic_search", "shape": shape, **row}), flush=True)


def benchmark_norm(shape: tuple[int, ...], device: torch.device, times: int) -> None:
    norm = group_norm(shape[1]).to(device)
    x = torch.randn(shape, device=device).bfloat16().contiguous(memory_format=FORMATS[len(shape)])
    x.requires_grad_()
    leaves = (x, norm.weight, norm.bias)
    gradient = torch.randn_like(x)

    def step(function: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16):
            y = function().to(torch.bfloat16)
        return y, *torch.autograd.grad(y, leaves, gradient)

    plain = lambda: step(lambda: activate(norm(x), "silu"))
    fused = lambda: step(lambda: group_norm_act(x, norm, "silu"))
    exact = activate(norm(x.float()), "silu")
    expected = (exact, *torch.autograd.grad(exact, leaves, gradient.float()))
    errors = [error(a, e) for a, e in zip(fused(), expected)]
    del exact, expected
    row = timed(plain, fused, device, times)
    if device.type == "cuda":
        row["plain_graph_ms"] = round(graph_milliseconds(plain, device, times), 4)
    names = ("output", "input", "weight", "bias")
    row |= {f"{name}_error": value for name, value in zip(names, errors)}
    print(json.dumps({"benchmark": "group_norm_silu", "shape": shape, **row}), flush=True)


def benchmark_bf16(
    name: str,
    shape: tuple[int, ...],
    leaves: list[Tensor],
    ways: tuple[Callable[[], tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]],
    options: tuple[torch.device, int],
) -> None:
    """Plain and fused, forward and backward, and their largest difference."""
    slopes = [torch.randn_like(y) for y in ways[0]()]

    def step(way: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        outputs = way()
        return *outputs, *torch.autograd.grad(outputs, leaves, slopes)

    plain, fused = (lambda: step(ways[0])), (lambda: step(ways[1]))
    worst = max(error(a, e) for a, e in zip(fused(), plain()))
    row = timed(plain, fused, *options)
    if options[0].type == "cuda":
        row["plain_graph_ms"] = round(graph_milliseconds(plain, *options), 4)
        compiled = torch.compile(ways[0])
        row["compiled_graph_ms"] = round(graph_milliseconds(lambda: step(compiled), *options), 4)
    print(json.dumps({"benchmark": name, "shape": shape, **row, "error": worst}), flush=True)


def benchmark_heads(shape: tuple[int, int, int, int], options: tuple[torch.device, int]) -> None:
    b, n, h, e = shape
    qkv = torch.randn(b, n, 3 * h * e, device=options[0], dtype=torch.bfloat16, requires_grad=True)
    gains = [torch.ones(e, device=options[0], requires_grad=True) for _ in range(2)]
    rope = rope_1d(torch.arange(n, device=options[0]), e)

    def plain() -> tuple[Tensor, ...]:
        q, k, v = (split_heads(part, e) for part in qkv.chunk(3, dim=-1))
        return norm_heads(q, gains[0], rope), norm_heads(k, gains[1], rope), v

    fused = lambda: qkv_heads(qkv, e, rope, *gains)
    benchmark_bf16("qkv_heads", shape, [qkv, *gains], (plain, fused), options)


def benchmark_gates(shape: tuple[int, int], options: tuple[torch.device, int]) -> None:
    rows, width = shape
    x = torch.randn(rows, 2 * width, device=options[0], dtype=torch.bfloat16, requires_grad=True)

    def plain_swiglu() -> tuple[Tensor, ...]:
        value, gate = x.chunk(2, dim=-1)
        return (value * F.silu(gate),)

    def plain_geglu() -> tuple[Tensor, ...]:
        gate, value = x.chunk(2, dim=-1)
        return (F.gelu(gate) * value,)

    benchmark_bf16("swiglu", shape, [x], (plain_swiglu, lambda: (swiglu(x),)), options)
    benchmark_bf16("geglu", shape, [x], (plain_geglu, lambda: (geglu(x),)), options)


def benchmark_short(shape: tuple[int, int, int, int], options: tuple[torch.device, int]) -> None:
    heads = [
        torch.randn(shape, device=options[0], dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    mask = torch.ones(shape[1], shape[1], dtype=torch.bool, device=options[0]).tril()
    q, k, v = (each.transpose(1, 2) for each in heads)
    plain = lambda: (short_attention(q, k, v, mask).transpose(1, 2),)
    fused = lambda: (causal_attention(q, k, v).transpose(1, 2),)
    benchmark_bf16("short_attention", shape, heads, (plain, fused), options)


def benchmark_windows(shape: tuple[int, int, int], options: tuple[torch.device, int]) -> None:
    """Faces of meshes of 700, with two before and after."""
    x = torch.randn(shape, device=options[0], dtype=torch.bfloat16, requires_grad=True)
    owner = (torch.arange(shape[1], device=options[0]) // 700).expand(shape[:2])
    plain, fused = (lambda: (plain_windows(x, owner, 2),)), (lambda: (windows(x, owner, 2),))
    benchmark_bf16("windows", shape, [x], (plain, fused), options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    for aligner in ((2, 40, 6),) if options.tiny else ALIGNERS:
        benchmark_aligner(aligner, device, options.times)
    for shape in ((2, 32, 8, 8),) if options.tiny else NORMS:
        benchmark_norm(shape, device, options.times)
    for heads in ((2, 5, 2, 8),) if options.tiny else HEADS:
        benchmark_heads(heads, (device, options.times))
    for gates in ((6, 32),) if options.tiny else GATES:
        benchmark_gates(gates, (device, options.times))
    for short in ((5, 3, 2, 8),) if options.tiny else SHORT:
        benchmark_short(short, (device, options.times))
    for faces in ((1, 20, 8),) if options.tiny else WINDOWS:
        benchmark_windows(faces, (device, options.times))


if __name__ == "__main__":
    main()
