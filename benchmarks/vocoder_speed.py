"""Speed of a vocoder: times real time, and the latency to the first sound.

    python benchmarks/vocoder_speed.py [RUN …] [--seconds 10] [--batch-size 8]

Without a run, both recipes with random weights, which are as fast. Prints a JSON line for
Griffin-Lim and for the vocoder, on one CPU core and, where there is one, on a GPU: log-mels of a
batch of sounds to samples, in fp32. The first sound is that of the first `FIRST` seconds of frames
alone, as an application that plays while it computes would ask for. The exit status is 1 where a
vocoder is slower than `GOALS`.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing import measured
from torch import nn

from quintet.speech.recipes import vocoder, vocoder_tiny
from quintet.speech.vocoder.model import Vocoder

FIRST = 0.5
"""Seconds of the first sound."""
GOALS = {"cpu": 3.0, "cuda": 100.0}
"""Times real time, on one core and on one GPU."""


def row(
    network: nn.Module, model: Vocoder, device: torch.device, seconds: float, batch: int
) -> dict[str, Any]:
    config = model.config
    frames = round(seconds * config.sample_rate / config.hop_length)
    generator = torch.Generator().manual_seed(0)
    log_mels = (torch.randn(batch, config.n_mels, frames + 1, generator=generator) - 2).to(device)
    first = log_mels[:1, :, : round(FIRST * config.sample_rate / config.hop_length) + 1]

    def clock(inputs: torch.Tensor) -> float:
        network(inputs)
        if device.type == "cuda":
            return measured(lambda: network(inputs), 10, device)
        begin = time.process_time()  # of this process: others may be running
        network(inputs)
        return time.process_time() - begin

    with torch.no_grad():
        whole, latency = clock(log_mels), clock(first)
    times = batch * frames * config.hop_length / config.sample_rate / whole
    return {"times_real_time": times, "first_sound_ms": 1000 * latency}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    models = {str(run): Vocoder.from_pretrained(run) for run in options.runs}
    recipes = {"speech/vocoder": vocoder(), "speech/vocoder_tiny": vocoder_tiny()}
    models = models or {name: Vocoder(recipe.model).eval() for name, recipe in recipes.items()}
    slow = 0
    for name, model in models.items():
        for device in devices:
            model.to(device)
            batch = options.batch_size if device.type == "cuda" else 1
            for what, network in (("griffin_lim", model.griffin_lim), ("vocoder", model)):
                numbers = row(network, model, device, options.seconds, batch)
                about = {"benchmark": "vocoder_speed", "model": name, "what": what}
                about |= {"device": device.type, "batch_size": batch}
                print(json.dumps(about | numbers), flush=True)
                slow += what == "vocoder" and numbers["times_real_time"] < GOALS[device.type]
    sys.exit(1 if slow else 0)
