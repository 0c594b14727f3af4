"""Speed of generators of images: generation, and training as a share of the matrix rate.

    python benchmarks/generator_speed.py flow sample              # 128 x 128 pictures a second
    python benchmarks/generator_speed.py flow sample --few 4      # of a model of few steps
    python benchmarks/generator_speed.py flow train               # share of the matrix rate
    python benchmarks/generator_speed.py flow train --compile
    python benchmarks/generator_speed.py maskgit sample
    python benchmarks/generator_speed.py maskgit train --batch-size 128
    python benchmarks/generator_speed.py flow sample --tiny --device cpu --count 4 --repeats 1

Weights are random: no speed depends on them. `sample` decodes to pixels and counts this time;
guidance is on, except for few steps. The matrix rate is that of a large product in bf16 on the same
machine, measured just before; the operations of a step are those of its matrix products, forward
and backward (of a generated picture also those of its decoder are left out), without what is
computed again. `ready_seconds` is the time from the model on the host to the first timed step.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from goals import missed
from torch import nn

from quintet import ImageFlow, MaskGit, VQGanVAE
from quintet.image import recipes
from quintet.nn.flow import straight_path
from quintet.shared.generation.generator import sample_keys
from quintet.shared.maskgit.model import random_mask

CAPTION = "a small purple triangle at the bottom right on yellow"
STEPS = {"maskgit": 12, "flow": 25}


def build(asked: argparse.Namespace, device: torch.device) -> Any:
    tail = "_tiny" if asked.tiny else ""
    stage = "autoencoder" if asked.family == "flow" else "vqgan"
    recipe = getattr(recipes, f"{asked.family}{tail}")()
    vae = VQGanVAE(getattr(recipes, f"{stage}{tail}")().model)
    settings = {n: v for n, v in vars(recipe.model).items() if n not in ("grid", "digits")}
    if asked.family == "flow":
        settings |= {"latent_channels": vae.config.latent_channels, "jumps": asked.few > 0}
    kind = {"flow": ImageFlow, "maskgit": MaskGit}[asked.family]
    model = kind(vae, image_size=recipe.images.size, **settings)
    for parameter in model.parameters():  # residual branches begin at zero
        parameter.data = torch.randn_like(parameter) * parameter.shape[-1] ** -0.5
    if asked.family == "flow":
        model.set_statistics(torch.zeros(()), torch.ones(()))
    return model.to(device)


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


def matrix_rate(device: torch.device) -> float:
    """Operations a second of a large product."""
    dtype, side = (torch.bfloat16, 8192) if device.type == "cuda" else (torch.float32, 512)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / seconds(lambda: a @ b, 10, device)


def forward_products(model: nn.Module, family: str) -> float:
    """Operations of the matrix products of one sample, forward, its caption encoded."""
    config, text = model.config, model.config.text_length
    tokens = config.tokens // (config.patch**2 if family == "flow" else 1)
    width = config.heads * config.head_dim
    of_text = of_tokens = once = 0
    for name, p in model.named_parameters():
        if p.ndim != 2 or "embed" in name:
            continue
        if "text_encoder.blocks" in name or "to_kv" in name:
            of_text += p.numel()
        elif name.startswith(("modulation", "time", "last", "variant", "jump", "known")):
            once += p.numel()
        elif "text" not in name and "offsets" not in name:
            of_tokens += p.numel()
    if family == "flow":
        rows, attended = tokens + text + 1, config.layers * (tokens + text + 1) ** 2
    else:
        rows, crossed = tokens, -(-config.layers // 2)
        attended = config.layers * tokens**2 + crossed * tokens * text
    attention = 2 * (attended + config.text_layers * text**2) * width
    return 2 * (of_tokens * rows + of_text * text + once + attention)


def sample(asked: argparse.Namespace, device: torch.device) -> dict[str, object]:
    model = build(asked, device).eval().requires_grad_(False)
    steps = asked.few or asked.steps or STEPS[asked.family]
    texts, guided = [CAPTION] * asked.count, {} if asked.few else {"cond_scale": 3.0}

    def work() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return model.generate(texts, steps=steps, **guided)

    taken = seconds(work, asked.repeats, device)
    operations = forward_products(model, asked.family) * asked.count * steps
    operations *= 1 if asked.few else 2
    return {
        "pictures_per_second": round(asked.count / taken, 1),
        "share_of_matrix_rate": round(operations / taken / matrix_rate(device), 3),
        "batch": asked.count,
        "steps": steps,
        "size": model.image_size,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def loss_of(model: Any, asked: argparse.Namespace, device: torch.device) -> Callable[[], Any]:
    """The loss of a step of training, with keyed noise."""
    config, count = model.config, asked.batch_size
    text = model.tokenize_captions([CAPTION] * count)[0]
    keys = sample_keys(0, range(count), model.key_name).to(device)
    drop = torch.zeros(count, dtype=torch.bool, device=device)
    if asked.family == "maskgit":
        ids = torch.randint(config.codebook_size, (count, config.tokens), device=device)

        def masked_loss() -> torch.Tensor:
            losses = model(ids, random_mask(keys, config.grid), text, None, drop)
            return losses.loss_sum.sum() / losses.masked.sum()

        return masked_loss
    from quintet.engine.keys import normal
    from quintet.shared.flow.model import training_times

    shape = (config.latent_channels, *config.grid)
    latents = torch.randn(count, *shape, device=device)
    known = torch.zeros(count, 1, *config.grid, dtype=torch.bool, device=device)

    def flow_loss() -> torch.Tensor:
        times = training_times(keys, config.time_shift)
        path = straight_path(normal(keys, "noise", shape), latents, times)
        out = model(path.x, times, known, text, None, drop)
        return (out - path.target).square().mean()

    return flow_loss


def train(asked: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Steps of AdamW, captured as in a run on one GPU."""
    model = build(asked, device).train()
    rate = matrix_rate(device)
    begun = time.perf_counter()
    on_gpu = device.type == "cuda"
    if asked.compile:
        for block in model.regions():
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True, capturable=on_gpu)
    losses = loss_of(model, asked, device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = losses()
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
    ready = time.perf_counter() - begun
    taken = seconds(work, asked.repeats, device)
    operations = 3 * forward_products(model, asked.family) * asked.batch_size
    return {
        "milliseconds_per_step": round(1000 * taken, 2),
        "samples_per_second": round(asked.batch_size / taken, 1),
        "matrix_rate": round(rate / 1e12, 1),
        "share_of_matrix_rate": round(operations / taken / rate, 3),
        "ready_seconds": round(ready, 1),
        "batch": asked.batch_size,
        "compiled": asked.compile,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=("flow", "maskgit"))
    parser.add_argument("what", choices=("sample", "train"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=64, help="pictures of a batch")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--few", type=int, default=0, help="steps of a model of few steps")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    row = {"sample": sample, "train": train}[asked.what](asked, torch.device(asked.device))
    name = f"{asked.family} {'few' if asked.few else asked.what}"
    lacking = [] if asked.tiny else missed(name, row)
    print(json.dumps({**row, "missed": lacking}))
    sys.exit(1 if lacking else 0)


if __name__ == "__main__":
    main()
