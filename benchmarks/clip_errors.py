"""Where the error of a video tokenizer is: by frame, by spatial and by temporal frequency.

    python benchmarks/clip_errors.py RUN FOLDER [--count 64]     RUN or an exported model
    python benchmarks/clip_errors.py RUN                         built-in validation clips

Frames and bands: PSNR of the error there alone, had the rest none; share of the whole squared
error; and the error's energy relative to that of the original in the band (1: nothing of the band
arrives; above 1: it would be better to leave it out). Spatial bands are octaves of the radial
frequency, in cycles per pixel; temporal ones of the frequency in cycles per frame.
"""

import argparse
import json
from itertools import pairwise

import torch
from torch import Tensor

from quintet.nn.similarity import psnr
from quintet.video.config import VideoDataConfig
from quintet.video.data import open_data
from quintet.video.model import VideoTokenizer, temporal_error
from quintet.video.task import bicubic_baseline

SPATIAL = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)
TEMPORAL = (0.0, 1e-6, 1 / 8, 1 / 4, 1.0)


def clips(folder: str | None, args: argparse.Namespace) -> Tensor:
    """The middle of every file of a folder, or built-in validation clips, in 0..1."""
    size = (args.size, args.size)
    config = VideoDataConfig(frames=args.frames, size=size, valid_fraction=0.0 if folder else 0.05)
    data = open_data(folder, config, "train" if folder else "valid", 0)
    taken = range(min(args.count, len(data)))
    return torch.stack([data.keyed(index, None)["video"] for index in taken]) / 255


def bands(error: Tensor, real: Tensor, frequency: Tensor, edges: tuple[float, ...], dims: tuple):
    """Of each band between two edges: its share of the error, and error / original."""
    noise, signal = (torch.fft.fftn(x, dim=dims).abs().square() for x in (error, real))
    total = noise.sum()
    for low, high in pairwise(edges):
        inside = (frequency >= low) & (frequency < high)
        lost, there = (noise * inside).sum(), (signal * inside).sum()
        yield f"{low:.3g}..{high:.3g}", (lost / total).item(), (lost / there).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = VideoTokenizer.from_pretrained(args.run).to(device)
    real = clips(args.folder, args).to(device)
    output = torch.cat([model.reconstruct(part) for part in real.split(8)])
    error = output - real
    print(
        json.dumps(
            {
                "clips": len(real),
                "psnr": psnr(output, real).mean().item(),
                "mean_frame": psnr(real.mean(2, keepdim=True).expand_as(real), real).mean().item(),
                "bicubic": psnr(bicubic_baseline(real, model.factor, model.time_factor), real)
                .mean()
                .item(),
                "motion": (
                    temporal_error(output, real).mean()
                    / temporal_error(torch.zeros_like(real), real).mean()
                ).item(),
                "by_clip": [round(value, 1) for value in psnr(output, real).tolist()],
            }
        )
    )
    print("\n| frame | PSNR |\n|---|---|")
    for frame in range(real.shape[2]):
        value = psnr(output[:, :, frame : frame + 1], real[:, :, frame : frame + 1]).mean().item()
        print(f"| {frame} | {value:.2f} |")
    height, width = real.shape[-2:]
    radial = torch.hypot(
        torch.fft.fftfreq(height, device=device)[:, None], torch.fft.fftfreq(width, device=device)
    )
    temporal = torch.fft.fftfreq(real.shape[2], device=device).abs()[:, None, None]
    for what, frequency, edges, dims in (
        ("cycles per pixel", radial, SPATIAL, (3, 4)),
        ("cycles per frame", temporal, TEMPORAL, (2,)),
    ):
        print(f"\n| {what} | share of the error | error / original |\n|---|---|---|")
        for name, share, ratio in bands(error, real, frequency, edges, dims):
            print(f"| {name} | {share:.1%} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
