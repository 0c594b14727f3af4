"""A published autoencoder on real pictures, before and after its decoder is fine-tuned.

    python benchmarks/published.py TAESD --data real/images --out DIR

TAESD is a copy of the repository madebyollin/taesd: taesd.py, taef2_encoder.pth, taef2_decoder.pth
(32 channels for 8 x 8 pixels). The folder of pictures has `train` and `held`. Prints one JSON line,
and ends with status 1 if held-out pictures then have less than 30 dB.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from provenance import commit, machine

from quintet import ImageDecoderTrainer, LatentModule
from quintet.nn.similarity import psnr

LEAST = 30.0


def taef2(folder: Path) -> torch.nn.Module:
    spec = importlib.util.spec_from_file_location("taesd", folder / "taesd.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TAESD(folder / "taef2_encoder.pth", folder / "taef2_decoder.pth")


@torch.no_grad()
def quality(model: LatentModule, task: Any, device: str) -> dict[str, float]:
    """Number of held-out pictures and the mean of their PSNR."""
    held, rows = task.data("valid"), []
    model = model.to(device)
    for n in range(len(held)):
        pixels = held.keyed(n, None)["image"][None].to(device) / 255.0
        rows.append(psnr(model.reconstruct(pixels), pixels).item())
    return {"pictures": len(rows), "psnr": round(sum(rows) / len(rows), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--commit", default=commit(), help="of a copy without git's history")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LatentModule(taef2(asked.folder), pixels="0..1")
    trainer = ImageDecoderTrainer(
        model,
        data=asked.data / "train",
        settings={"images.valid_folder": str(asked.data / "held")},
        size=asked.size,
        steps=asked.steps,
        batch_size=asked.batch_size,
        learning_rate=asked.learning_rate,
        losses={"adversarial": "none", "perceptual": 0.0, "l1": 0.0, "l2": 1.0},
        warm_discriminator=0,
        evaluate_every=0,
        save_every=0,
        workers=asked.workers,
        seed=asked.seed,
        run=asked.out,
        trackers=(),
    )
    task = trainer.task(trainer.recipe)
    before, began = quality(model, task, device), time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    after = quality(trainer.averaged_model(), task, device)
    row = {"before": before, "after": after, "seconds": round(seconds, 1), "steps": asked.steps}
    print(json.dumps({**row, "commit": asked.commit, **machine(asked.out)}))
    return 0 if after["psnr"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
