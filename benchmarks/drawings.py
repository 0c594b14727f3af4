"""Text to image on real drawings: emoji by several vendors, captioned by their names.

    python benchmarks/drawings.py prepare EMOJI DATA [--side 128] [--vendors openmoji twemoji]
    python benchmarks/drawings.py train DATA --out DIR [--tokenizer-steps 1500] [--steps 3000]
    python benchmarks/drawings.py train DATA --out DIR --tiny --tokenizer-steps 20 --steps 20
    python benchmarks/drawings.py sample DATA --out DIR [--count 512]
    python benchmarks/drawings.py judge DATA --out DIR --network open-nsfw.onnx

EMOJI is the folder of emoji that benchmarks/realdata/assemble.py writes. A caption is the name and
the style of the vendor; a name is in training with all its vendors, or held out with all of them.
`sample` writes a sheet: held-out names whose words all occur in training, and names seen in
training, each with a real drawing and three generated ones. It also draws one picture for each of
`--count` held-out captions, and `judge` prints their Fréchet distance from held-out drawings beside
that of held-out drawings from as many of training, on the network of benchmarks/ablation.py.
"""

import argparse
import json
import random
import re
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ablation import Trunk
from command import quintet
from PIL import Image
from provenance import commit, machine
from torch import Tensor

from quintet.judges.frechet import frechet_distance
from quintet.judges.media import image as images
from quintet.media.pixels import Pixels, read_image, write_png
from quintet.media.sheets import grid
from quintet.shared.outputs import eight_bits
from quintet.shared.sampling import decoding_of, loaded

GENERATED, SHEET = "generated", "drawings.png"
ENOUGH = 3
"""Names of the training set in which each word of a composed name occurs, at least."""
ROWS = 8
"""Of each half of the sheet."""


# -- data and training ----------------------------------------------------------------------------


def prepare(asked: argparse.Namespace) -> None:
    for split in ("train", "held"):
        folder = asked.data / split
        folder.mkdir(parents=True)
        rows = []
        for row in metadata(asked.emoji / split):
            if asked.vendors and row["source"] not in asked.vendors:
                continue
            name = f"{len(rows):05d}.jpg"
            with Image.open(asked.emoji / split / row["file_name"]) as picture:
                small = picture.convert("RGB").resize((asked.side,) * 2, Image.Resampling.LANCZOS)
            small.save(folder / name, quality=92)
            kept = {key: row[key] for key in ("source", "license", "group")}
            text = f"{row['text']}, {row['style']}"
            rows.append(json.dumps({"file_name": name, "text": text, **kept}))
        (folder / "metadata.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        print(f"{folder}: {len(rows)} drawings")


def metadata(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def train(asked: argparse.Namespace) -> None:
    end = "_tiny" if asked.tiny else ""
    data = [asked.data / "train", "--valid", asked.data / "held"]
    tokenizer = asked.out / "tokenizer"
    first = ["--run", tokenizer, "--steps", asked.tokenizer_steps, *shlex.split(asked.first_flags)]
    second = ["--run", asked.out / "generator", "--tokenizer", tokenizer, "--steps", asked.steps]
    begun = time.perf_counter()
    quintet("train", f"image/vqgan{end}", *data, "--losses.adversarial", "none", *first)
    middle = time.perf_counter()
    quintet("train", f"image/maskgit{end}", *data, *second, *shlex.split(asked.flags))
    seconds = [round(middle - begun, 1), round(time.perf_counter() - middle, 1)]
    row = {"seconds": dict(zip(("tokenizer", "generator"), seconds)), "commit": asked.commit}
    text = json.dumps({**row, **machine(asked.out / "generator")})
    (asked.out / "row.json").write_text(text, encoding="utf-8")
    print(text)


# -- what it draws --------------------------------------------------------------------------------


def words_of(caption: str) -> list[str]:
    """Of the name, without the style."""
    return re.findall(r"\w+", caption.rpartition(",")[0].lower())


def composed(held: list[dict[str, Any]], seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Held-out drawings whose names are two or more words that training has seen apart."""
    names = {row["group"]: words_of(row["text"]) for row in seen}
    counts = Counter(word for words in names.values() for word in set(words))
    return [
        row
        for row in held
        if len(words := words_of(row["text"])) > 1 and all(counts[w] >= ENOUGH for w in words)
    ]


def one_of_each(rows: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """In a random order, one drawing of each name."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    return list({row["group"]: row for row in shuffled}.values())


def cell(picture: Tensor) -> Pixels:
    return eight_bits(picture).movedim(0, -1).numpy()


def sample(asked: argparse.Namespace) -> None:
    held, seen = (metadata(asked.data / split) for split in ("held", "train"))
    run = asked.out / "generator"
    model = loaded(run, asked.device)
    settings = decoding_of(run, argparse.Namespace(**dict.fromkeys(DECODING)))
    size = model.image_size
    chosen = [("held", row) for row in one_of_each(composed(held, seen), 0)[:ROWS]]
    chosen += [("train", row) for row in one_of_each(seen, 0)[:ROWS]]
    lines = []
    for split, row in chosen:
        real = read_image(asked.data / split / row["file_name"])
        real = np.asarray(Image.fromarray(real).resize(size[::-1], Image.Resampling.LANCZOS))
        made = model.generate([row["text"]] * 3, seed=0, **settings).cpu()
        lines.append([real, *(cell(picture) for picture in made)])
        print(f"{'not seen' if split == 'held' else 'seen'}: {row['text']}")
    halves = [a + b for a, b in zip(lines[: len(lines) // 2], lines[len(lines) // 2 :])]
    titles = ["name not seen", "generated", "", "", "name seen", "generated", "", ""]
    write_png(asked.out / SHEET, grid(halves, titles))
    folder = asked.out / GENERATED
    folder.mkdir(exist_ok=True)
    captions = [row["text"] for row in random.Random(1).sample(held, len(held))[: asked.count]]
    for first in range(0, len(captions), 64):
        part = captions[first : first + 64]
        made = model.generate(part, seed=1, first=first, **settings).cpu()
        for number, picture in enumerate(made, first):
            write_png(folder / f"{number:05d}.png", cell(picture))
    print(f"{asked.out / SHEET}; {len(captions)} pictures in {folder}")


DECODING = ("steps", "order", "temperature", "choice_temperature", "cond_scale")


@torch.no_grad()
def judge(asked: argparse.Namespace) -> None:
    made = sorted((asked.out / GENERATED).glob("*.png"))
    held = sorted((asked.data / "held").glob("*.jpg"))
    seen = sorted((asked.data / "train").glob("*.jpg"))
    count = min(len(made), len(held), len(seen))
    side = images.read(made[0], None).shape[-1]
    trunk = Trunk(asked.network)
    sets = [random.Random(0).sample(paths, count) for paths in (made, held, seen)]
    features = [np.concatenate([last_features(trunk, p, side) for p in paths]) for paths in sets]
    row = {
        "count": count,
        "generated_against_held": frechet_distance(features[0], features[1]),
        "held_against_training": frechet_distance(features[1], features[2]),
    }
    print(json.dumps({n: round(v, 1) for n, v in row.items()}))


def last_features(trunk: Trunk, path: Path, side: int) -> Any:
    picture = images.read(path, None)[None]
    if picture.shape[-1] != side:
        picture = torch.nn.functional.interpolate(picture, side, mode="bicubic", antialias=True)
    return trunk(picture.clamp(0, 1))[-1].mean((2, 3)).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    preparing = verbs.add_parser("prepare")
    preparing.add_argument("emoji", type=Path)
    preparing.add_argument("data", type=Path, help="written; must not exist")
    preparing.add_argument("--side", type=int, default=128)
    preparing.add_argument("--vendors", nargs="+", default=[])
    preparing.set_defaults(run=prepare)
    for verb in (train, sample, judge):
        later = verbs.add_parser(verb.__name__)
        later.add_argument("data", type=Path)
        later.add_argument("--out", type=Path, required=True)
        later.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        later.add_argument("--tiny", action="store_true", help="the recipes for a CPU")
        later.add_argument("--tokenizer-steps", type=int, default=1500)
        later.add_argument("--steps", type=int, default=3000)
        later.add_argument("--first-flags", default="", help="settings of the tokenizer")
        later.add_argument("--flags", default="", help="settings of the generator")
        later.add_argument("--count", type=int, default=512)
        later.add_argument("--network", type=Path, help="ONNX file")
        later.add_argument("--commit", default=commit(), help="of a copy without git's history")
        later.set_defaults(run=verb)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
