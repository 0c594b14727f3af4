"""Speed and memory of the mesh room: training both models, and generating meshes.

    python benchmarks/mesh_speed.py [--size peer|tiny] [--only autoencoder transformer generation]
    python benchmarks/mesh_speed.py --peer "python bench_peers.py"

Bumpy sheets of 600 to 800 faces in memory; the engine's own steps, bf16 and compiled on a GPU. With
`--peer` the benchmark of another package runs in the same call (systems mesh_autoencoder,
mesh_transformer, bench_generate; one JSON line each with samples_per_s or tokens_per_s), and the
exit status is 1 where ours is less than 3, 6 and 10 times as fast, or where the transformer takes
more than a third of the other's memory for a mesh.
"""

import argparse
import dataclasses
import json
import math
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from goals import missed
from timing import counted_flops, matrix_rate, measured, timed_steps
from torch.autograd import DeviceType

from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.mesh import recipes
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.autoencoder.model import MeshAutoencoder
from quintet.mesh.autoencoder.task import AutoencoderTask
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.geometry import face_neighbours
from quintet.mesh.transformer.config import MeshTransformerConfig
from quintet.mesh.transformer.generator import CHECK_EVERY
from quintet.mesh.transformer.model import MeshTransformer
from quintet.mesh.transformer.task import TransformerTask

FLOORS = {"autoencoder": 3.0, "transformer": 6.0, "generation": 10.0}
SYSTEMS = {
    "autoencoder": "mesh_autoencoder --batch-size 256 --warmup 4 --steps 12",
    "transformer": "mesh_transformer --batch-size 16 --warmup 4 --steps 12",
    "generation": "bench_generate --batch-size 8 --tokens 600 --repeats 1",
}


class Sheets:
    """Sheets over a grid with random heights, a few of them, as often as asked."""

    def __init__(self, least: int, most: int, distinct: int, length: int):
        self.length = length
        sizes = torch.linspace(least, most, distinct).int().tolist()
        self.items = [sheet(faces, seed) for seed, faces in enumerate(sizes)]

    def __len__(self) -> int:
        return self.length

    def keyed(self, index: int, key: object) -> dict[str, Any]:
        return self.items[index % len(self.items)]

    def variant(self, index: int, number: int) -> dict[str, Any]:
        return self.keyed(index, None)

    def digest(self, index: int) -> str:
        return f"sheet-{len(self.items)}-{len(self.keyed(index, None)['faces'])}"

    def text(self, index: int) -> str:
        return ""

    def name(self, index: int) -> str:
        return f"sheet {index}"


def sheet(faces: int, seed: int) -> dict[str, Any]:
    side = int((faces / 2) ** 0.5 + 0.999)
    rows = -(-faces // (2 * side))
    draw = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(
        torch.linspace(-0.9, 0.9, rows + 1), torch.linspace(-0.9, 0.9, side + 1), indexing="ij"
    )
    z = torch.rand(x.shape, generator=draw) * 1.8 - 0.9
    corner = torch.arange(x.numel()).view_as(x)
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, :-1], corner[1:, 1:]
    triangles = torch.stack([torch.stack([a, b, c], -1), torch.stack([b, d, c], -1)], 2)
    triangles = triangles.reshape(-1, 3)[:faces]
    vertices = torch.stack([x, y, z], -1).view(-1, 3)
    table = torch.as_tensor(face_neighbours(triangles.numpy()))
    return {"vertices": vertices, "faces": triangles, "neighbours": table, "text": ""}


def settings(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": asked.device,
        "steps": 10**6,
        "workers": asked.workers,
        "trackers": (),
        "log_every": 10,
    }


def sizes(size: str) -> tuple[Sheets, MeshDataConfig]:
    if size == "tiny":
        return Sheets(48, 64, 16, 4096), MeshDataConfig(max_faces=64)
    return Sheets(600, 800, 64, 4096), MeshDataConfig(max_faces=800)


def timed_run(task: Any, recipe: Any, place: Path, steps: int) -> dict[str, Any]:
    make = lambda: Run(task, recipe, World(recipe), RunFolder.create(place, {}))
    row = timed_steps(make, steps, "meshes")
    if "gib" in row:
        row["gib_per_mesh"] = row["gib"] / recipe.batch_size
    return row


def step_operations(task: Callable[[Any], Any], recipe: Any, place: Path) -> float:
    """Floating-point operations of a step for one mesh, counted by torch on the eager network and
    on a CPU, where a batch has no spare rows. Without the products of Muon, which are the same for
    any batch, and without fused attention: whether torch counts it on a CPU, and how, differs
    between versions."""
    optim = dataclasses.replace(recipe.optim, optimizer="adamw")
    small = dataclasses.replace(
        recipe, device="cpu", batch_size=2, compile="off", workers=0, optim=optim
    )
    run = Run(task(small), small, World(small), RunFolder.create(place, {}))
    operations = counted_flops(run, 1, attention=False)
    run.close()
    return operations


def attention_operations(recipe: Any, data: Sheets) -> float:
    """Of the transformer's attention over n faces, in a step for one mesh: forward two products of
    n x n x e for each head, of which causal attention needs half, and backward twice as many. The
    attention over the codes of a face are plain products on a CPU, and counted there (in full:
    less than 0.1 % of a step)."""
    model = recipe.model
    rows = [min(len(item["faces"]) + 1, recipe.meshes.max_faces) for item in data.items]
    product = 2 * sum(n**2 for n in rows) / len(rows) * model.head_dim
    forward = 2 * product / 2
    return model.layers * model.heads * 3 * forward


def autoencoder(asked: argparse.Namespace, place: Path, rate: float) -> dict[str, Any]:
    data, meshes = sizes(asked.size)
    base = recipes.autoencoder() if asked.size == "peer" else recipes.autoencoder_tiny()
    recipe = dataclasses.replace(
        base, meshes=meshes, batch_size=256 if asked.size == "peer" else 16, **settings(asked)
    )

    def task(recipe: Any) -> AutoencoderTask:
        return AutoencoderTask(recipe, sets={"train": data, "valid": None})

    operations = step_operations(task, recipe, place / "count")
    row = timed_run(task(recipe), recipe, place / "run", asked.steps)
    share = row["meshes_per_second"] * operations / rate
    return row | {"step_gflop": operations / 1e9, "share_of_matrix_rate": share}


def transformer(asked: argparse.Namespace, place: Path, rate: float) -> dict[str, Any]:
    data, meshes = sizes(asked.size)
    tiny = asked.size == "tiny"
    frozen = MeshAutoencoder(
        recipes.autoencoder_tiny().model if tiny else MeshAutoencoderConfig()
    ).save_pretrained(place / "autoencoder")
    base = recipes.transformer_tiny() if tiny else recipes.transformer()
    model = base.model if tiny else MeshTransformerConfig(text="none")
    model = dataclasses.replace(model, text="none")
    recipe = dataclasses.replace(
        base,
        autoencoder=str(frozen),
        model=model,
        meshes=meshes,
        batch_size=16 if tiny else asked.batch_size,
        **settings(asked),
    )

    def task(recipe: Any) -> TransformerTask:
        return TransformerTask(recipe, sets={"train": data, "valid": None})

    operations = step_operations(task, recipe, place / "count")
    attention = attention_operations(recipe, data)
    operations += attention
    row = timed_run(task(recipe), recipe, place / "run", asked.steps)
    share = row["meshes_per_second"] * operations / rate
    encode = encoding_seconds(task(recipe), data, recipe)
    row |= {"step_gflop": operations / 1e9, "attention_gflop": attention / 1e9}
    row["share_of_matrix_rate"] = share
    without = recipe.batch_size / (row["ms_per_step"] / 1e3 + encode)
    return row | {"encode_ms": encode * 1e3, "meshes_per_second_without_cache": without}


def encoding_seconds(task: TransformerTask, data: Sheets, recipe: Any) -> float:
    """What a batch's codes would cost at every step, were they not kept."""
    from quintet.mesh.data import Collate

    device = World(recipe).device
    batch = Collate(recipe.meshes.max_faces, 3)(
        [data.keyed(i, None) for i in range(recipe.batch_size)]
    )
    meshes = {n: batch[n].to(device) for n in ("vertices", "faces", "neighbours")}
    network = task.autoencoder.to(device)

    def encode() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            network.tokenize(**meshes)

    encode()
    return measured(encode, 5, device)


def generation(asked: argparse.Namespace, place: Path, rate: float) -> dict[str, Any]:
    """Codes per second of whole calls: captions, weights and faces, graphs kept from an earlier
    call. The first call of a size is counted apart: it captures, and the very first one compiles
    kernels (or loads them from Triton's cache)."""
    tiny = asked.size == "tiny"
    config = recipes.transformer_tiny().model if tiny else MeshTransformerConfig()
    levels = (6, 6, 6) if tiny else (24, 24, 24)
    size = {"levels": levels, "codebook_size": math.prod(levels)}
    config = dataclasses.replace(config, text="bytes", max_faces=64 if tiny else 800, **size)
    faces = 16 if tiny else 200
    recipe = dataclasses.replace(recipes.transformer_tiny(), device=asked.device)
    device = World(recipe).device
    model = MeshTransformer(config).to(device).eval()
    torch.nn.init.constant_(model.end_head.bias, -1e4)  # never ends: every batch is as long
    rows: dict[str, Any] = {}
    first: dict[str, float] = {}
    cases = [
        (1, 1.0, None),
        (8, 1.0, None),
        (32, 1.0, None),
        (512, 1.0, None),
        (8, 2.0, None),
        (8, 1.0, torch.float32),
    ]
    for count, scale, dtype in cases[: 2 if tiny else None]:
        name = f"batch_{count}" + ("_guided" if scale != 1 else "") + ("_fp32" if dtype else "")

        def write(
            faces: int = faces, count: int = count, scale: float = scale, dtype: Any = dtype
        ) -> None:
            context = model.encode_captions(["a table with three legs"] * count)
            codes = model.generate_codes(
                context, count, cond_scale=scale, max_faces=faces, dtype=dtype
            )
            assert codes.shape[1] == faces
            assert int(codes.min()) >= 0

        first[name] = measured(write, 1, device)
        rows[name] = count * faces * config.tokens_per_face / measured(write, 3, device)
    kernels = kernels_per_face(model, faces) if device.type == "cuda" else None
    return {
        "head": config.head,
        "levels": config.levels,
        "tokens_per_second": rows,
        "first_call_seconds": first,
        "kernels_per_face": kernels,
        "faces": faces,
    }


def kernels_per_face(model: MeshTransformer, faces: int) -> float:
    """Of a batch of 8: the kernels of a whole call, less those of one of half its length."""

    def count(length: int) -> int:
        model.generate_codes(context, 8, max_faces=length)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            model.generate_codes(context, 8, max_faces=length)
            torch.cuda.synchronize()
        return sum(event.device_type == DeviceType.CUDA for event in profiler.events() or ())

    context = model.encode_captions(["a table with three legs"] * 8)
    short = faces // 2 + CHECK_EVERY  # both in the same graph
    return (count(faces) - count(short)) / (faces - short)


def peer(command: str, system: str, device: str) -> dict[str, Any]:
    words = [*shlex.split(command), *system.split(), "--size", "base", "--device", device]
    words += ["--precision", "fp32" if "generate" in system else "bf16", "--threads", "16"]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def compare(name: str, ours: dict[str, Any], other: dict[str, Any]) -> tuple[float, bool]:
    if name == "generation":
        ratio = ours["tokens_per_second"]["batch_8"] / other["tokens_per_s"]
    else:
        ratio = ours["meshes_per_second"] / other["samples_per_s"]
    passed = ratio >= FLOORS[name]
    if name == "transformer":
        third = other["peak_mem_gib"] / other["batch_size"] / 3
        passed = passed and ours["gib_per_mesh"] <= third
    return ratio, passed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="peer", choices=("peer", "tiny"))
    parser.add_argument("--only", nargs="+", default=list(FLOORS), choices=list(FLOORS))
    parser.add_argument("--batch-size", type=int, default=32, help="of the transformer")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--peer", help="the other package's benchmark command")
    asked = parser.parse_args()
    gpu = asked.device != "cpu" and torch.cuda.is_available()
    rate = matrix_rate(torch.device("cuda" if gpu else "cpu"), 8192 if gpu else 1024)
    good = True
    for name in asked.only:
        other = peer(asked.peer, SYSTEMS[name], "cuda" if gpu else "cpu") if asked.peer else None
        with tempfile.TemporaryDirectory() as place:
            row = globals()[name](asked, Path(place), rate)
        row = {"benchmark": "mesh_speed", "what": name, "matrix_tflops": rate / 1e12, **row}
        if other is not None:
            row["ratio"], passed = compare(name, row, other)
            good = good and passed
            print(json.dumps({"peer": other}), flush=True)
        if gpu and asked.size == "peer":
            row["missed"] = missed(name, row.get("tokens_per_second", row))
            good = good and not row["missed"]
        print(json.dumps(row), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
