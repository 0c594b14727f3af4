"""Plain and fused versions of the operations in nn/kernels: milliseconds and largest errors.

    PYTHONPATH=src python benchmarks/kernels.py --device cuda

One JSON line per shape, in less than a minute. Norms are timed forward and backward under bf16
autocast; errors are relative to the largest value of the plain version, for norms in fp32. On a CPU
the plain versions are timed alone.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from timing import measured
from torch import Tensor

from quintet.nn import alignment
from quintet.nn.norms import FORMATS, activate, group_norm, group_norm_act

ALIGNERS = ((24, 471, 48), (64, 1000, 150), (8, 2000, 300))
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


if __name__ == "__main__":
    main()
