"""Speed of retopology: codes a second, the seconds of 4,000 faces, and training.

    python benchmarks/retopology_speed.py [--size full|tiny] [--only RECIPE ...] [--train]

Networks of the recipes before training, which never end a mesh; whole calls with their points, in
bf16 on a GPU, graphs kept from an earlier call of that size. `first_call_seconds` are of earlier
calls; the 4,000 faces are of a first call. `--train` also times the recipe's steps on built-in
meshes, with scans made by its workers; the share of the matrix rate leaves out attention. Exit
status 1 where a goal is missed.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from goals import missed
from mesh_speed import step_operations
from timing import matrix_rate, measured, timed_steps

from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.mesh import recipes
from quintet.mesh.retopology.model import Retopology, limits
from quintet.mesh.retopology.task import RetopologyTask

NEVER = -1e4
"""A logit of the end, at which no mesh ends."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    names = ["mesh/retopology", "mesh/retopology_large"]
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_full, good = asked.size == "full", True
    for name in asked.only:
        recipe = recipe_of(name, is_full)
        row = {"benchmark": "retopology_speed", "what": name, **generation(recipe, device, is_full)}
        if asked.train:
            row["training"] = training(recipe, asked, device)
        if is_full:
            row["missed"] = missed(name, {**row["codes_per_second"], **row})
            good = good and not row["missed"]
        print(json.dumps(row), flush=True)
    return 0 if good else 1


def recipe_of(name: str, is_full: bool) -> Any:
    recipe = getattr(recipes, name.partition("/")[2])()
    if is_full:
        return recipe
    tiny = recipes.retopology_tiny()
    model = dataclasses.replace(tiny.model, max_faces=32 if name.endswith("_large") else 48)
    return dataclasses.replace(tiny, model=model)


def generation(recipe: Any, device: torch.device, is_full: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Retopology(recipe.model).to(device).eval()
    torch.nn.init.constant_(model.transformer.end_head.bias, NEVER)
    rates: dict[str, float] = {}
    first: dict[str, float] = {}

    def seconds(name: str, count: int, faces: int) -> tuple[float, int]:
        wish, faces = wish_for(faces)
        points = torch.rand(count, model.config.points, 6, device=device) * 2 - 1
        wished = torch.full((count,), wish, device=device)

        def write() -> None:
            codes = model.generate_codes(points, wished, temperature=0.5)
            assert codes.shape[1] == faces, codes.shape

        first[name] = measured(write, 1, device)
        return first[name] if count == 1 else measured(write, 2, device), faces

    for count in (8, 32) if is_full else (8,):
        name = f"batch_{count}"
        taken, faces = seconds(name, count, 400 if is_full else 24)
        rates[name] = count * faces * model.config.transformer.tokens_per_face / taken
    taken, faces = seconds("4000", 1, 4000 if is_full else 72)  # in several windows
    row = {"codes_per_second": rates, "seconds_4000": taken, "faces": faces}
    return {**row, "first_call_seconds": first}


def wish_for(faces: int) -> tuple[int, int]:
    """The least wish with which generation stops at so many or a few more, and this number."""
    stops = limits(torch.arange(faces), 0)
    wish = int(torch.searchsorted(stops[1:], faces)) + 1
    return wish, int(stops[wish])


def training(recipe: Any, asked: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    workers = recipe.workers if asked.workers is None else asked.workers
    settings = {"workers": workers, "steps": 10**6, "trackers": (), "log_every": 10}
    recipe = dataclasses.replace(recipe, **settings)
    with tempfile.TemporaryDirectory() as place:
        make = lambda: Run(
            RetopologyTask(recipe), recipe, World(recipe), RunFolder.create(Path(place, "run"), {})
        )
        row = timed_steps(make, asked.steps, "meshes")
        gigaflops = step_operations(RetopologyTask, recipe, Path(place, "count")) / 1e9
    rate = matrix_rate(device, 8192 if device.type == "cuda" else 512)
    share = row["meshes_per_second"] * gigaflops * 1e9 / rate
    return {**row, "step_gflop": gigaflops, "share_of_matrix_rate": share}


if __name__ == "__main__":
    sys.exit(main())
