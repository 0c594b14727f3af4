"""Cost and benefit of compilation: seconds to the first step, images per second of the tokenizer.

    python benchmarks/compile_pays.py [--batch-size 64] [--what eager,whole,regions]

`whole` compiles the network as one graph, `regions` each block by itself (blocks of one shape share
their code). Forward and backward in bf16; each variant runs in a separate process with an empty
cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict

import torch

from quintet.image import recipes
from quintet.image.vqgan.model import VQGanVAE
from quintet.nn.adversarial.discriminator import PatchDiscriminator
from quintet.nn.perceptual import StructuralDistance


def one(what: str, batch: int) -> None:
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = recipes.vqgan()
    image = torch.rand(batch, 3, *recipe.images.size, device=device)
    image = image.contiguous(memory_format=torch.channels_last)
    kind, _, how = what.partition(":")
    network = {
        "vae": lambda: VQGanVAE(recipe.model),
        "discriminator": lambda: PatchDiscriminator(**asdict(recipe.discriminator)),
        "distance": StructuralDistance,
    }[kind]()
    network = network.to(device, memory_format=torch.channels_last)
    if how == "whole":
        network.compile(dynamic=False)
    if how == "regions":
        for block in network.modules():
            if type(block).__module__ == "quintet.nn.blocks":
                block.compile(dynamic=False)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            if kind == "vae":
                loss = (network(image).output - image).abs().mean()
            elif kind == "discriminator":
                loss = network(image.requires_grad_()).mean()
            else:
                loss = network(image.requires_grad_(), image.detach().flip(0)).mean()
        loss.backward()

    begin = time.perf_counter()
    step()
    synchronise()
    first = time.perf_counter() - begin
    for _ in range(3):
        step()
    synchronise()
    begin = time.perf_counter()
    for _ in range(20):
        step()
    synchronise()
    seconds = (time.perf_counter() - begin) / 20
    row = {"benchmark": "compile_pays", "what": what, "first_step_s": round(first, 1)}
    print(json.dumps(row | {"images_per_second": round(batch / seconds, 1)}), flush=True)


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--what", default="vae:eager,vae:whole,vae:regions,discriminator:whole")
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        one(options.one, options.batch_size)
        return
    for what in options.what.split(","):
        with tempfile.TemporaryDirectory() as cache:
            words = [
                sys.executable,
                __file__,
                "--one",
                what,
                "--batch-size",
                str(options.batch_size),
            ]
            subprocess.run(words, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}, check=False)


if __name__ == "__main__":
    main()
