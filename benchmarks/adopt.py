"""An autoencoder of diffusers adopted on real pictures, beside a plain loop at equal seconds.

    python benchmarks/adopt.py TRAIN HELD --shape sd --first-seconds 110 --steps 2200
    python benchmarks/adopt.py TRAIN HELD --shape tiny --size 32 --batch-size 2 --steps 5

An AutoencoderKL (as large as Stable Diffusion's with --shape sd) is first trained on built-in
scenes: published weights are not needed. Then its decoder is trained on the pictures of one folder,
twice: by --steps of image/adopt (with --part lora, a LoRA; with several --flags, a run for each),
and by a loop in the manner of the training script of diffusers (mean squared error and KL, AdamW at
a constant learning rate, bf16 autocast; the same crops and batches, fed by the same loader), for as
many seconds as the last command of image/adopt took, with its start and warm-up steps. Nothing is
compiled: in minutes it does not pay. All are measured on the pictures of the other folder: PSNR,
and the perceptual distance of Quintet, which image/adopt trains with and the loop does not. Prints
a line of JSON for each. Exits with 1 unless the last image/adopt gains GAIN dB and a better
distance than before, and is ahead of the loop in both.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from command import quintet
from provenance import commit, machine
from torch import Tensor

from quintet.engine.data.source import as_source
from quintet.engine.keys import Key
from quintet.image.adopt.model import AdoptedImages
from quintet.image.config import ImageDataConfig
from quintet.image.data import collate, open_data
from quintet.nn.perceptual import StructuralDistance
from quintet.nn.similarity import psnr

BLOCKS = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
}
SHAPES: dict[str, dict[str, Any]] = {
    "sd": BLOCKS | {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2},
    "small": BLOCKS | {"block_out_channels": (64, 128, 256, 256), "layers_per_block": 1},
    "tiny": {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (8, 16),
        "norm_num_groups": 4,
    },
}
GAIN = 2.0
"""Decibels."""
Figures = dict[str, float]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    asked = arguments()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_original(work / "random", SHAPES[asked.shape])
        flags = {
            "--train": "all",
            "--minutes": asked.first_seconds / 60,
            "--steps": 1_000_000,
            "--optim.learning-rate": 3e-4,
            "--optim.scheduler": "constant",
            "--warm-discriminator": 0,
            "--losses.adversarial": "none",
        }
        seconds = train(asked, work / "random", work / "scenes", flags)
        scenes = exported(work / "scenes")
        spent = {"steps": steps_of(work / "scenes"), "seconds": round(seconds, 1)}
        before = report(asked, "before", scenes, spent)
        for number, words in enumerate(asked.flags):
            flags = {
                "--train": asked.part,
                "--steps": asked.steps,
                "--optim.learning-rate": asked.learning_rate,
                "--warm-discriminator": asked.warm,
            }
            run = work / f"adopted-{number}"
            seconds = train(asked, scenes, run, flags, asked.train, *shlex.split(words))
            spent = {"steps": asked.steps, "seconds": round(seconds, 1), "flags": words}
            adopted = report(asked, "image/adopt", exported(run), spent)
        spent = {"seconds": round(seconds, 1)}
        spent["steps"] = plain_loop(asked, scenes, work / "loop", seconds)
        loop = report(asked, "plain loop", work / "loop", spent)
    missed = shortfalls(before, adopted, loop)
    print(f"missed: {', '.join(missed) or 'nothing'}", file=sys.stderr)
    sys.exit(bool(missed))


def shortfalls(before: Figures, adopted: Figures, loop: Figures) -> list[str]:
    reached = {
        f"{GAIN:g} dB over before": adopted["psnr"] >= before["psnr"] + GAIN,
        "a better distance than before": adopted["perceptual"] < before["perceptual"],
        "PSNR ahead of the loop": adopted["psnr"] > loop["psnr"],
        "distance ahead of the loop": adopted["perceptual"] < loop["perceptual"],
    }
    return [name for name, is_reached in reached.items() if not is_reached]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("train", type=Path)
    parser.add_argument("held", type=Path)
    parser.add_argument("--part", choices=("decoder", "lora"), default="decoder")
    parser.add_argument("--shape", choices=SHAPES, default="sd")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--first-seconds", type=float, default=110)
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--warm", type=int, default=100, help="steps of --warm-discriminator")
    parser.add_argument("--flags", nargs="+", default=[""], help="more flags of image/adopt")
    parser.add_argument("--workers", type=int, default=8)
    return parser.parse_args()


def write_original(path: Path, settings: dict[str, Any]) -> None:
    import diffusers

    torch.manual_seed(0)
    diffusers.AutoencoderKL(latent_channels=4, **settings).save_pretrained(path)


def train(
    asked: argparse.Namespace,
    source: Path,
    run: Path,
    flags: dict[str, Any],
    data: Path | None = None,
    *more: str,
) -> float:
    """Seconds that `quintet train image/adopt` took, on built-in scenes or on a folder."""
    flags = flags | {
        "--from": source,
        "--run": run,
        "--compile": "off",
        "--batch-size": asked.batch_size,
        "--workers": asked.workers,
        "--evaluate-every": 0,
        "--save-every": 0,
        "--log-every": 50,
    }
    words = [word for pair in flags.items() for word in pair]
    words += ["--images.size", asked.size, asked.size, *more, "--trackers"]
    started = time.perf_counter()
    quintet("train", "image/adopt", *([data] if data else []), *words)
    return time.perf_counter() - started


def exported(run: Path) -> Path:
    export = run.with_name(f"{run.name}-export")
    quintet("export", run, export)
    return export


def steps_of(run: Path) -> int:
    return max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())


def plain_loop(asked: argparse.Namespace, source: Path, out: Path, seconds: float) -> int:
    """Steps taken in the seconds, by the classes of diffusers alone."""
    import diffusers

    network = diffusers.AutoencoderKL.from_pretrained(source).to(DEVICE)
    network.encoder.requires_grad_(False)
    network.quant_conv.requires_grad_(False)
    learned = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=asked.learning_rate)
    steps, started = 0, time.perf_counter()
    for images in batches(asked):
        if time.perf_counter() - started > seconds:
            break
        pixels = images.to(DEVICE, non_blocking=True).float() / 127.5 - 1
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            with torch.no_grad():
                posterior = network.encode(pixels).latent_dist
            output = network.decode(posterior.sample()).sample
        loss = (output.float() - pixels).square().mean() + 1e-6 * posterior.kl().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    network.save_pretrained(out)
    return steps


class Crops(torch.utils.data.Dataset[Tensor]):
    """The pictures of a folder, cropped and flipped as in training."""

    def __init__(self, asked: argparse.Namespace) -> None:
        config = ImageDataConfig(size=(asked.size, asked.size))
        self.source = as_source(open_data(asked.train, config, "train", 0))

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> Tensor:
        epoch, number = divmod(index, len(self.source))
        return self.source.keyed(number, Key(0, epoch, number))["image"]


def batches(asked: argparse.Namespace) -> Any:
    order = torch.utils.data.RandomSampler(range(10**7), generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(
        Crops(asked), asked.batch_size, sampler=order, num_workers=asked.workers, drop_last=True
    )


@torch.no_grad()
def report(asked: argparse.Namespace, name: str, folder: Path, more: dict[str, Any]) -> Figures:
    model = AdoptedImages.from_pretrained(folder).to(DEVICE)
    config = ImageDataConfig(size=(asked.size, asked.size), valid_fraction=0.0)
    source = open_data(asked.held, config, "train", 0)
    distance = StructuralDistance().to(DEVICE)
    rows: dict[str, list[Tensor]] = {"psnr": [], "perceptual": []}
    for first in range(0, len(source), asked.batch_size):
        last = min(first + asked.batch_size, len(source))
        items = [source.keyed(index, None) for index in range(first, last)]
        real = collate(items)["image"].to(DEVICE).float() / 255
        output = model.reconstruct(real)
        rows["psnr"].append(psnr(output, real))
        rows["perceptual"].append(distance(output, real).expand(len(real)))
    figures = {what: round(torch.cat(values).mean().item(), 4) for what, values in rows.items()}
    about = {
        "part": asked.part,
        "shape": asked.shape,
        "size": asked.size,
        "batch_size": asked.batch_size,
    }
    line = {"name": name, **figures, "pictures": len(source), **about, **more}
    about_run = machine(folder.parent / "scenes")
    print(json.dumps({**line, **about_run, "commit": commit()}), flush=True)
    return figures


if __name__ == "__main__":
    main()
