"""Plot of the curves of a run, as in docs/images.

    python benchmarks/curves.py runs/image docs/images/image-curves.png

Two panels, chosen by the recipe of the run: training metrics, and validation metrics with their
baselines. Requires only Pillow.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

COLOURS = ("#2f6fdb", "#d4552b", "#2a9d6a", "#8a5cc9", "#b08900")
PAPER, INK, SOFT, GRID = "#ffffff", "#1c2024", "#5b6470", "#e3e6ea"
WIDTH, HEIGHT, SCALE = 440, 270, 2
"""Points of a panel; drawn at `SCALE` times the size for antialiasing."""
LEFT, TOP, RIGHT, BOTTOM = 52, 34, 14, 58


@dataclass(frozen=True)
class Panel:
    """Metrics of one panel and their labels."""

    title: str
    lines: dict[str, str]
    logarithmic: bool = False


AUTOENCODER = (
    Panel("training loss", {"vae/loss": "autoencoder"}),
    Panel(
        "validation PSNR, dB",
        {
            "val/psnr": "model",
            "val/psnr_bicubic": "bicubic",
            "val/psnr_mean_colour": "mean colour",
        },
    ),
)
FLOW = (
    Panel("training loss, squared error of velocities", {"transformer/loss": "transformer"}),
    Panel(
        "validation: loss, and fractions of generated samples",
        {
            "val/loss": "loss",
            "val/loss_without_text": "without text",
            "val/agrees": "agrees",
            "val/agrees_tokenizer": "reconstruction agrees",
        },
    ),
)
DISTILLED = (
    Panel("logarithm of the training loss", {"transformer/loss": "transformer"}),
    Panel("validation, fraction of generated samples", {"val/agrees": "agrees"}),
)

CONTINUED = (
    FLOW[0],
    Panel(
        "validation, PSNR of the frames that follow, dB",
        {
            "val/continued_psnr": "model",
            "val/continued_psnr_last": "last frame",
            "val/continued_psnr_mean": "mean frame",
        },
    ),
)

PANELS: dict[str, tuple[Panel, ...]] = {
    "image/autoencoder_tiny": AUTOENCODER,
    "image/flow_tiny": FLOW,
    "image/flow_few_tiny": DISTILLED,
    "video/autoencoder_tiny": (
        Panel("training loss", {"tokenizer/loss": "autoencoder"}),
        *AUTOENCODER[1:],
    ),
    "video/flow_tiny": FLOW,
    "video/continuation_tiny": CONTINUED,
    "video/flow_few_tiny": DISTILLED,
    "image/vqgan_tiny": (
        Panel("training losses", {"vae/loss": "tokenizer", "discriminator/loss": "discriminator"}),
        Panel(
            "validation PSNR, dB",
            {
                "val/psnr": "model",
                "val/psnr_bicubic": "bicubic",
                "val/psnr_mean_colour": "mean colour",
            },
        ),
    ),
    "image/maskgit_tiny": (
        Panel("training loss, nats an id", {"transformer/loss": "transformer"}),
        Panel(
            "validation: loss, and fractions of generated images",
            {
                "val/loss": "loss",
                "val/loss_without_text": "without text",
                "val/agrees": "agrees",
                "val/agrees_tokenizer": "reconstruction agrees",
            },
        ),
    ),
    "video/maskgit_tiny": (
        Panel("training loss, nats an id", {"transformer/loss": "transformer"}),
        Panel(
            "validation: loss, and fractions of generated clips",
            {
                "val/loss": "loss",
                "val/loss_without_text": "without text",
                "val/agrees": "agrees",
                "val/agrees_tokenizer": "reconstruction agrees",
            },
        ),
    ),
    "mesh/autoencoder_tiny": (
        Panel("training loss", {"autoencoder/loss": "autoencoder"}, logarithmic=True),
        Panel(
            "validation fractions",
            {
                "val/exact": "exact",
                "val/triangles": "triangles",
                "val/codebook_usage": "codebook use",
            },
        ),
    ),
    "mesh/autoencoder_compact_tiny": (
        Panel("training loss", {"autoencoder/loss": "autoencoder"}, logarithmic=True),
        Panel("validation fractions", {"val/exact": "exact", "val/within_one": "within one"}),
    ),
    "mesh/transformer_tiny": (
        Panel("training loss, nats a code", {"transformer/loss": "transformer"}),
        Panel(
            "validation: loss, and fractions of 16 generated meshes",
            {
                "val/loss": "loss",
                "val/loss_without_text": "without text",
                "val/valid": "valid",
                "val/agrees": "agrees",
            },
        ),
    ),
    "mesh/retopology_tiny": (
        Panel(
            "loss, nats a coordinate",
            {
                "retopology/loss": "training",
                "val/loss": "validation",
                "val/loss_other_points": "with points of others",
            },
        ),
        Panel(
            "validation: fractions of 32 generated meshes",
            {"val/valid": "valid", "val/exact": "exactly the original"},
        ),
    ),
    "speech/vocoder_tiny": (
        Panel("training loss", {"vocoder/loss": "vocoder"}),
        Panel(
            "validation error of log-mels",
            {"val/mel_error": "vocoder", "val/mel_error_griffin_lim": "Griffin-Lim"},
        ),
    ),
    "video/tokenizer_tiny": (
        Panel(
            "training losses",
            {
                "tokenizer/loss": "tokenizer",
                "frame_discriminator/loss": "frame discriminator",
                "motion_discriminator/loss": "motion discriminator",
            },
        ),
        Panel(
            "validation PSNR, dB",
            {
                "val/psnr": "model",
                "val/psnr_bicubic": "bicubic",
                "val/psnr_mean_frame": "mean frame",
                "val/psnr_mean_colour": "mean colour",
            },
        ),
    ),
    "music/flow_tiny": FLOW,
    "music/codec_tiny": (
        Panel(
            "training errors",
            {"codec/mel": "log-mels", "codec/waveform": "samples"},
            logarithmic=True,
        ),
        Panel(
            "validation error of log-mels",
            {"val/mel_error": "codec", "val/mel_error_silence": "silence"},
        ),
    ),
    "music/mulan_tiny": (
        Panel("training loss", {"mulan/loss": "both ways, of the global batch"}),
        Panel(
            "validation recall, both ways, of 256 pairs",
            {"val/recall_at_10": "at 10", "val/recall_at_5": "at 5", "val/recall_at_1": "at 1"},
        ),
    ),
    "speech/voicebox_tiny": (
        Panel(
            "training losses",
            {
                "voicebox/flow": "flow",
                "voicebox/alignment": "alignment",
                "voicebox/duration": "durations",
            },
        ),
        Panel(
            "validation mel error of the infilled span",
            {
                "val/mel_error": "model",
                "val/mel_error_interpolated": "interpolated",
                "val/mel_error_copied": "copied",
            },
        ),
    ),
}

Line = list[tuple[float, float]]


def read(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def points(records: Sequence[dict[str, Any]], metric: str) -> Line:
    found = [(r["step"], r[metric]) for r in records if isinstance(r.get(metric), (int, float))]
    return [(float(step), float(value)) for step, value in found]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between low and high, about `count` of them."""
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def powers(low: float, high: float) -> list[float]:
    """The powers of ten inside, or as they are the two ends where there are fewer than two."""
    inside = [float(k) for k in range(math.ceil(low), math.floor(high) + 1)]
    return inside if len(inside) > 1 else [low, high]


class Paper:
    """One panel: axes, grid, lines and their names."""

    def __init__(self, picture: Image.Image, left: int, panel: Panel, lines: dict[str, Line]):
        self.draw, self.left, self.panel = ImageDraw.Draw(picture), left, panel
        self.lines = {
            name: [(x, math.log10(max(y, 1e-9))) for x, y in line] if panel.logarithmic else line
            for name, line in lines.items()
        }
        values = [y for line in self.lines.values() for _, y in line]
        self.last = max(x for line in lines.values() for x, _ in line)
        room = (max(values) - min(values)) * 0.05 or 0.5
        self.low, self.high = min(values) - room, max(values) + room

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / self.last
        up = (HEIGHT - TOP - BOTTOM) * (y - self.low) / (self.high - self.low)
        return (self.left + across) * SCALE, (HEIGHT - BOTTOM - up) * SCALE

    def text(self, x: float, y: float, words: str, anchor: str, colour: str, size: int) -> None:
        font = ImageFont.load_default(size * SCALE)
        place = ((self.left + x) * SCALE, y * SCALE)
        self.draw.text(place, words, fill=colour, font=font, anchor=anchor)

    def axes(self) -> None:
        self.text(LEFT, 16, self.panel.title, "lm", INK, 14)
        marks = powers if self.panel.logarithmic else ticks
        for y in marks(self.low, self.high):
            begin, end = self.at(0, y), self.at(self.last, y)
            self.draw.line([begin, end], fill=GRID, width=SCALE)
            shown = f"{10**y:.2g}" if self.panel.logarithmic else f"{y:.4g}"
            self.text(LEFT - 6, begin[1] / SCALE, shown, "rm", SOFT, 11)
        for x in ticks(0, self.last, 4):
            place = self.at(x, self.low)[0] / SCALE - self.left
            self.text(place, HEIGHT - BOTTOM + 12, f"{x:.0f}", "mm", SOFT, 11)
        self.text(WIDTH - RIGHT, HEIGHT - BOTTOM + 27, "step", "rm", SOFT, 11)

    def curves(self) -> None:
        beside = 24.0
        for (name, line), colour in zip(self.lines.items(), COLOURS):
            places = [self.at(x, y) for x, y in line]
            self.draw.line(places, fill=colour, width=2 * SCALE, joint="curve")
            if name.startswith("val/"):
                for x, y in places:
                    self.draw.circle((x, y), 2.5 * SCALE, fill=colour)
            label = self.panel.lines[name]
            self.stroke(beside, HEIGHT - 14, colour)
            self.text(beside + 20, HEIGHT - 14, label, "lm", INK, 11)
            beside += 34 + ImageFont.load_default(11).getlength(label)

    def stroke(self, x: float, y: float, colour: str) -> None:
        """Legend marker."""
        begin, end = (self.left + x) * SCALE, (self.left + x + 14) * SCALE
        self.draw.line([(begin, y * SCALE), (end, y * SCALE)], fill=colour, width=3 * SCALE)


def picture(records: Sequence[dict[str, Any]], panels: Sequence[Panel]) -> Image.Image:
    wide = Image.new("RGB", (WIDTH * len(panels) * SCALE, HEIGHT * SCALE), PAPER)
    for index, panel in enumerate(panels):
        lines = {name: points(records, name) for name in panel.lines}
        missing = [name for name, line in lines.items() if not line]
        if missing:
            raise SystemExit(f"the run has no metric {', '.join(missing)}")
        paper = Paper(wide, index * WIDTH, panel, lines)
        paper.axes()
        paper.curves()
    small = wide.resize((wide.width // SCALE * 3 // 2, wide.height // SCALE * 3 // 2))
    return small.quantize(64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="run of a _tiny recipe")
    parser.add_argument("out", type=Path, help="output .png")
    options = parser.parse_args()
    recipe = json.loads((options.run / "config.json").read_text(encoding="utf-8"))["recipe"]
    if recipe not in PANELS:
        raise SystemExit(f"{options.run} is a run of {recipe}; supported: {', '.join(PANELS)}")
    picture(read(options.run), PANELS[recipe]).save(options.out, optimize=True)
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
