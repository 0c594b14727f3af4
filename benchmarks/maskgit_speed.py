"""Speed of a masked generator: generation, and training as a share of the matrix rate.

    python benchmarks/maskgit_speed.py sample                     # 128 x 128 pictures a second
    python benchmarks/maskgit_speed.py train --batch-size 128     # share of the matrix rate
    python benchmarks/maskgit_speed.py train --compile
    python benchmarks/maskgit_speed.py sample --tiny --device cpu --count 4 --repeats 1

Weights are random: neither speed depends on them. `sample` decodes the ids to pixels and counts
this time; guidance is on. The matrix rate is that of a large product in bf16 on the same machine,
measured just before; the operations of a step are those of its matrix products, forward and
backward, without what is computed again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch
from goals import missed
from torch import nn

from quintet import MaskGit, VQGanVAE
from quintet.image import recipes
from quintet.shared.generation.generator import sample_keys
from quintet.shared.maskgit.model import random_mask

CAPTION = "a small purple triangle at the bottom right on yellow"


def build(tiny: bool, device: torch.device) -> MaskGit:
    vqgan = recipes.vqgan_tiny() if tiny else recipes.vqgan()
    recipe = recipes.maskgit_tiny() if tiny else recipes.maskgit()
    size = recipe.images.size
    model = MaskGit(VQGanVAE(vqgan.model), image_size=size, **vars_of(recipe.model))
    for parameter in model.parameters():  # residual branches begin at zero
        parameter.data = torch.randn_like(parameter) * parameter.shape[-1] ** -0.5
    return model.to(device)


def vars_of(config: object) -> dict[str, object]:
    return {n: v for n, v in vars(config).items() if n not in ("grid", "digits")}


def seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median time of a call, after two that do not count."""
    times: list[float] = []
    for turn in range(repeats + 2):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        times += [time.perf_counter() - start] if turn > 1 else []
    return sorted(times)[len(times) // 2]


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large product."""
    side = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / seconds(lambda: a @ b, 10, device)


def products(model: nn.Module, tokens: int, text: int, count: int) -> float:
    """Operations of the matrix products of one step, forward and backward."""
    config = model.config
    of_text = sum(
        p.numel()
        for name, p in model.named_parameters()
        if p.ndim == 2 and ("text_encoder.blocks" in name or "to_kv" in name)
    )
    of_ids = sum(
        p.numel()
        for name, p in model.named_parameters()
        if p.ndim == 2 and "embed" not in name and "text" not in name and "to_kv" not in name
    )
    crossed = -(-config.layers // 2)
    attended = config.layers * tokens**2 + crossed * tokens * text + config.text_layers * text**2
    attention = 2 * attended * config.heads * config.head_dim
    return 6 * count * (of_ids * tokens + of_text * text + attention)


def sample(asked: argparse.Namespace, device: torch.device) -> dict[str, object]:
    model = build(asked.tiny, device).eval().requires_grad_(False)
    texts = [CAPTION] * asked.count

    def work() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return model.generate(texts, steps=asked.steps, order=asked.order, cond_scale=3.0)

    taken = seconds(work, asked.repeats, device)
    kernels = {} if device.type != "cuda" else {"longest": longest(work)}
    return {
        "pictures_per_second": round(asked.count / taken, 1),
        "milliseconds_per_batch": round(1000 * taken, 1),
        "batch": asked.count,
        "steps": asked.steps,
        "order": asked.order,
        "size": model.image_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        **kernels,
    }


def longest(work: Callable[[], object], count: int = 16) -> list[tuple[float, int, str]]:
    """Kernels of a call: milliseconds, launches and name, after the sum of all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    rows = [(e.device_time_total / 1e3, e.count, e.key[:100]) for e in profiled.key_averages()]
    rows.sort(reverse=True)
    return [(sum(row[0] for row in rows), sum(row[1] for row in rows), "all"), *rows[:count]]


def train(asked: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Steps of AdamW, captured as in a run on one GPU."""
    model = build(asked.tiny, device).train()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config, count = model.config, asked.batch_size
    if asked.compile:
        model.compile()
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True, capturable=on_gpu)
    ids = torch.randint(config.codebook_size, (count, config.tokens), device=device)
    text = model.tokenize_captions([CAPTION] * count)[0]
    keys = sample_keys(0, range(count), model.key_name).to(device)
    drop = torch.zeros(count, dtype=torch.bool, device=device)

    def step() -> None:
        masked = random_mask(keys, config.grid)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            losses = model(ids, masked, text, None, drop)
            loss = losses.loss_sum.sum() / losses.masked.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    work: Callable[[], object] = step
    if on_gpu:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        work = graph.replay
    taken = seconds(work, asked.repeats, device)
    rate = matrix_rate(device, dtype)
    operations = products(model, config.tokens, text.shape[1], count)
    return {
        "milliseconds_per_step": round(1000 * taken, 2),
        "samples_per_second": round(count / taken, 1),
        "tera_operations_per_second": round(operations / taken / 1e12, 1),
        "matrix_rate": round(rate / 1e12, 1),
        "share_of_matrix_rate": round(operations / taken / rate, 3),
        "batch": count,
        "compiled": asked.compile,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sample", "train"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=64, help="pictures of a batch")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--order", default="confidence")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    work = {"sample": sample, "train": train}[asked.what]
    row = work(asked, torch.device(asked.device))
    lacking = [] if asked.tiny else missed(f"maskgit {asked.what}", row)
    print(json.dumps({**row, "missed": lacking}))
    sys.exit(1 if lacking else 0)


if __name__ == "__main__":
    main()
