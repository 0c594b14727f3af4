"""Train a model that writes meshes from a sentence, on captioned meshes of your own.

python examples/mesh_transformer.py --steps 200 --run runs/writer
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from quintet import MeshAutoencoder, MeshAutoencoderTrainer, MeshTransformer, MeshTransformerTrainer
from quintet.mesh import recipes
from quintet.mesh.transformer.config import GenerationConfig

CORNERS = torch.tensor(list(product((-1.0, 1.0), repeat=3)))
SIDES = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
FACES = torch.tensor([face for a, b, c, d in SIDES for face in ((a, b, c), (a, c, d))])


class Boxes(Dataset[dict[str, Any]]):
    """Flat and tall boxes, and a caption that says which."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, Any]:
        wide, deep, high = torch.rand(3, generator=torch.Generator().manual_seed(index)).tolist()
        tall = index % 2 == 1
        size = torch.tensor(
            [0.3 + 0.4 * wide, 0.3 + 0.4 * deep, (0.75 if tall else 0.1) + high / 5]
        )
        text = "a tall box" if tall else "a flat box"
        return {"vertices": CORNERS * size, "faces": FACES, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/writer"), help="for both stages")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    shared: dict[str, Any] = {"warmup_steps": 20, "workers": 0}

    autoencoder = MeshAutoencoder(
        dim=96, message_dim=32, encoder_layers=2, decoder_layers=2, levels=(12, 12, 12)
    )
    first = MeshAutoencoderTrainer(
        autoencoder,
        Boxes(),
        recipe=recipes.autoencoder_tiny(),  # for small models; by default mesh/autoencoder
        steps=max(1, args.steps // 4),
        run=args.run / "autoencoder",
        **shared,
    )
    first.train(resume=True)

    # The averaged weights are what the second stage learns the codes of.
    transformer = MeshTransformer(
        first.averaged_model(), dim=128, layers=3, heads=4, head_dim=32, fine_layers=1, max_faces=16
    )
    second = MeshTransformerTrainer(
        transformer,
        Boxes(),
        recipe=recipes.transformer_tiny(),
        generation=GenerationConfig(count=2, reference_count=64),  # at evaluations
        steps=args.steps,
        run=args.run / "transformer",
        **shared,
    )
    second.train(resume=True)

    for text in ("a flat box", "a tall box"):
        (mesh,) = second.generate([text], temperature=0.5)
        wide, deep, high = (mesh.vertices.max(0).values - mesh.vertices.min(0).values).tolist()
        print(f"{text}: {len(mesh.faces)} faces, {wide:.2f} x {deep:.2f}, {high:.2f} high")


if __name__ == "__main__":
    main()
