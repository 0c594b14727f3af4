"""Train a model that makes clean meshes for scans, on clean meshes of your own.

python examples/retopology.py --steps 500 --run runs/clean
"""

import argparse
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import Retopology, RetopologyTrainer
from quintet.mesh.recipes import retopology_tiny

CORNERS = torch.tensor(list(product((-1.0, 1.0), repeat=3)))
SIDES = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
FACES = torch.tensor([face for a, b, c, d in SIDES for face in ((a, b, c), (a, c, d))])


class Boxes(Dataset[dict[str, Tensor]]):
    """Boxes of any proportions: vertices (8, 3) in -1..1, and faces (12, 3)."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        size = 0.2 + 0.75 * torch.rand(3, generator=torch.Generator().manual_seed(index))
        return {"vertices": CORNERS * size, "faces": FACES}


def scan_of_a_box(count: int) -> np.ndarray:
    """Points on a box of 30 x 20 x 10 that stands far from the origin, and their normals."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (count, 3))
    axis, side = rng.integers(3, size=count), rng.choice([-1.0, 1.0], count)
    normals = np.zeros((count, 3))
    points[range(count), axis] = normals[range(count), axis] = side
    noise = rng.normal(0, 0.05, (count, 3))
    return np.concatenate((points * [15, 10, 5] + [100, 0, 0] + noise, normals), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own clean meshes, instead of the boxes")
    parser.add_argument("--run", default="runs/clean", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    recipe = retopology_tiny()  # for small models; by default mesh/retopology
    trainer = RetopologyTrainer(
        Retopology(recipe.model),
        None if args.folder else Boxes(),
        data=args.folder,
        recipe=recipe,
        steps=args.steps,
        warmup_steps=args.steps // 10,
        workers=0,  # what is made in memory needs no workers
        run=args.run,
    )
    trainer.train(resume=True)

    scan = scan_of_a_box(3000)
    vertices, faces = trainer.retopologise(scan, 12, count=4)[0]
    print(
        f"a scan of {len(scan)} points: {len(faces)} faces asked for 12, {len(vertices)} vertices"
    )
    gaps = np.linalg.norm(scan[:, None, :3] - vertices[None], axis=-1).min(0)
    share = 100 * gaps.mean() / np.ptp(scan[:, :3], 0).max() if len(gaps) else 100
    print(f"mean distance of its corners to the scan: {share:.2f} % of its longest side")


if __name__ == "__main__":
    main()
