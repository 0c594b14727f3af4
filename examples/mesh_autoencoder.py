"""Train a tokenizer of meshes on a data set of your own, and see a mesh come back from its codes.

python examples/mesh_autoencoder.py --steps 200 --run runs/boxes
"""

import argparse
from itertools import product

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import MeshAutoencoder, MeshAutoencoderTrainer
from quintet.mesh.recipes import autoencoder_tiny

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own 3-D files, instead of the boxes")
    parser.add_argument("--run", default="runs/boxes", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    autoencoder = MeshAutoencoder(dim=96, message_dim=32, encoder_layers=2, decoder_layers=2)
    trainer = MeshAutoencoderTrainer(
        autoencoder,
        None if args.folder else Boxes(),
        data=args.folder,
        recipe=autoencoder_tiny(),  # for small models; by default mesh/autoencoder
        max_faces=64,
        steps=args.steps,
        warmup_steps=args.steps // 10,
        workers=0,  # what is made in memory needs no workers
        run=args.run,
    )
    trainer.train(resume=True)

    mesh = Boxes()[0]
    codes = trainer.tokenize(mesh["vertices"][None], mesh["faces"][None])
    print(f"a box of 12 faces is {codes[0].numel()} codes, such as {codes[0, 0].tolist()}")
    again = autoencoder.decode_from_codes_to_faces(codes).coordinates[0].cpu()
    error = (again - mesh["vertices"][mesh["faces"]]).abs().max()
    print(f"its corners come back within {error:.4f}; a bin is {2 / autoencoder.config.bins:.4f}")


if __name__ == "__main__":
    main()
