"""Train a tokenizer of clips on a data set of your own, and turn a clip into ids and back.

python examples/video_tokenizer.py --steps 300 --run runs/balls
"""

import argparse

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import VideoTokenizer, VideoTokenizerTrainer
from quintet.video.recipes import tokenizer_tiny


class Balls(Dataset[Tensor]):
    """A ball that flies straight on: (3, frames, size, size) in 0..1."""

    def __init__(self, frames: int = 5, size: int = 32):
        self.frames, self.size = frames, size

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Tensor:
        drawn = torch.rand(7, generator=torch.Generator().manual_seed(index))
        start, way, colour = 0.2 + drawn[:2] / 2, (drawn[2:4] - 0.5) / self.frames, drawn[4:]
        line = torch.linspace(0, 1, self.size)
        places = start + torch.arange(self.frames)[:, None] * way  # (frames, 2)
        rows = (line[None, :, None] - places[:, 0, None, None]).square()
        columns = (line[None, None, :] - places[:, 1, None, None]).square()
        return (rows + columns < 0.04).float() * colour.view(3, 1, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own videos, instead of the balls")
    parser.add_argument("--run", default="runs/balls", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    layers = ("residual", "compress_time", "residual")
    tokenizer = VideoTokenizer(
        init_dim=32, max_dim=64, patch_size=4, layers=layers, levels=(8, 8, 5)
    )
    trainer = VideoTokenizerTrainer(
        tokenizer,
        dataset=None if args.folder else Balls(),
        data=args.folder,
        recipe=tokenizer_tiny(),  # for small models; by default video/tokenizer
        size=32,
        frames=5,
        steps=args.steps,
        warmup_steps=args.steps // 10,
        adversarial="none",  # discriminators pay off in longer runs
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    clips = torch.stack([Balls(frames=21)[index] for index in range(2000, 2004)])
    ids = trainer.tokenize(clips, chunk=4)  # any length: chunks carry their state
    frames, *grid = ids.shape[1:]
    print(f"a clip of 21 frames is {frames} x {grid[0]} x {grid[1]} ids")
    error = (tokenizer.decode_from_code_indices(ids, chunk=4).cpu() - clips).abs().mean()
    plain = (clips - clips.mean((2, 3, 4), keepdim=True)).abs().mean()
    print(f"mean error of a pixel: {error:.3f}; of the clip's mean colour: {plain:.3f}")


if __name__ == "__main__":
    main()
