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
from quintet.video.tokenizer.model import VideoTokenizer, temporal_error
from quintet.video.tokenizer.task import bicubic_baseline

SPATIAL = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)
TEMPORAL = (0.0, 1e-6, 1 / 8, 1 / 4, 1.0)


def clips(folder: str | None, count: int, frames: int, size: int) -> Tensor:
    """The middle of every file of a folder, or built-in validation clips, in 0..1."""
    valid = 0.0 if folder else 0.05
    config = VideoDataConfig(frames=frames, size=(size, size), valid_fraction=valid)
    data = open_data(folder, config, "train" if folder else "valid", 0)
    taken = range(min(count, len(data)))
    return torch.stack([data.keyed(index, None)["video"] for index in taken]) / 255


def bands(error: Tensor, real: Tensor, frequency: Tensor, edges: tuple[float, ...], dims: tuple):
    """Of each band between two edges: its share of the error, and error / original."""
    noise, signal = (torch.fft.fftn(x, dim=dims).abs().square() for x in (error, real))
    total = noise.sum()
    for low, high in pairwise(edges):
        inside = (frequency >= low) & (frequency < high)
        lost, there = (noise * inside).sum(), (signal * inside).sum()
        yield f"{low:.3g}..{high:.3g}", (lost / total).item(), (lost / there).item()


def frequencies(real: Tensor) -> tuple[Tensor, Tensor]:
    """Of the bins of a spectrum of clips (b, c, t, h, w): radial in space, and in time."""
    frames, height, width = real.shape[2:]
    down, across = (torch.fft.fftfreq(n, device=real.device) for n in (height, width))
    temporal = torch.fft.fftfreq(frames, device=real.device).abs()
    return torch.hypot(down[:, None], across), temporal[:, None, None]


def summary(output: Tensor, real: Tensor) -> dict[str, float]:
    """The error of clips (b, c, t, h, w) in one row. Relative errors are those of bands: coarse and
    fine are below and above an eighth of a cycle per pixel."""
    frames = psnr(*(x.transpose(1, 2).flatten(0, 1) for x in (output, real))).view(len(real), -1)
    radial, temporal = frequencies(real)
    error, still = output - real, real.mean(2, keepdim=True).expand_as(real)
    coarse, fine = (row[2] for row in bands(error, real, radial, (0.0, 1 / 8, 1.0), (3, 4)))
    resting, moving = (row[2] for row in bands(error, real, temporal, (0.0, 1e-6, 1.0), (2,)))
    motion = temporal_error(output, real).mean() / temporal_error(still, real).mean()
    return {
        "psnr": psnr(output, real).mean().item(),
        "psnr_mean_frame": psnr(still, real).mean().item(),
        "motion_error_over_still": motion.item(),
        "psnr_first_frame": frames[:, 0].mean().item(),
        "psnr_worst_frame": frames.mean(0).min().item(),
        "relative_error_coarse": coarse,
        "relative_error_fine": fine,
        "relative_error_still": resting,
        "relative_error_moving": moving,
    }


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
    real = clips(args.folder, args.count, args.frames, args.size).to(device)
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
    radial, temporal = frequencies(real)
    for what, frequency, edges, dims in (
        ("cycles per pixel", radial, SPATIAL, (3, 4)),
        ("cycles per frame", temporal, TEMPORAL, (2,)),
    ):
        print(f"\n| {what} | share of the error | error / original |\n|---|---|---|")
        for name, share, ratio in bands(error, real, frequency, edges, dims):
            print(f"| {name} | {share:.1%} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
