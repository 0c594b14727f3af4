"""VideoFlow: clips from captions, from a first frame, to a last one and continued, by flow matching
(arXiv 2210.02747) over latents.

caption and first latent frames -> flow transformer, some steps -> latents (b, c, 1 + n, h, w)
                                -> tokenizer -> clips (b, c, 1 + n s, H, W)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.nn.attention import Context
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
from quintet.shared.generation.generator import Seed
from quintet.video.continuing import ContinuingGenerator
from quintet.video.flow.config import VideoFlowConfig


class VideoFlow(ContinuingGenerator, FlowGenerator):
    """Clip generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the clips: `VideoFlow(tokenizer, image_size=128, frames=17, dim=512)`."""

    Config = VideoFlowConfig
    config: VideoFlowConfig

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.video.adopt.model import AdoptedClips
        from quintet.video.tokenizer.model import VideoTokenizer

        return [VideoTokenizer, AdoptedClips]

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str] | str | None = None,
        *,
        count: int | None = None,
        clip: Tensor | None = None,
        last: Tensor | None = None,
        frames: int | None = None,
        overlap: int | None = None,
        seed: Seed = 0,
        first: int = 0,
        **settings: Any,
    ) -> Tensor:
        """Clips (b, c, t, H, W) in 0..1, one for each text, or `count`.

        A `clip` (c, t, H, W), or a first frame (c, H, W), is continued to `frames` frames; the
        default is the length of training. Chunks overlap by `overlap` frames, by default about
        half of a chunk. A `last` frame (c, H, W) is where a clip of the length of training comes to
        rest, or ends in, where it is a clip (c, t, H, W). `settings`: steps, method, cond_scale
        (see `Solver`). Clip number i depends on the seed and on `first` + i, not on the batch.
        """
        solver = self.solver_of(texts, settings)
        end = None if last is None else self.checked(last)
        if end is not None and frames not in (None, self.clip_shape[0]):
            raise ValueError(
                f"a clip to a last frame has the {self.clip_shape[0]} frames of training: leave"
                " frames out"
            )
        chosen = Chosen(solver, end)
        return self.continued(texts, count, clip, frames, overlap, seed, first, chosen)

    def chunk(
        self, clips: Tensor, known: int, keys: Tensor, context: Context | None, chosen: "Chosen"
    ) -> Tensor:
        grid, (solver, end) = self.config.grid, chosen
        if not known and end is None:
            start = self.start(keys, grid)
            return self.decode(self.solved(start, context, solver))
        latents = self.latent_mean.new_zeros(len(clips), self.config.latent_channels, *grid)
        mask = torch.zeros(len(clips), 1, *grid, dtype=torch.bool, device=latents.device)
        if known:
            prefix = self.encode(clips)
            latents[:, :, : prefix.shape[2]], mask[:, :, : prefix.shape[2]] = prefix, True
        if end is not None:
            latents[:, :, -1:], mask[:, :, -1:] = self.last_latent(end), True
        made = self.decode(self.solved(self.start(keys, grid, latents, mask), context, solver))
        if end is not None:
            shown = min(end.shape[2], self.tokenizer.time_factor)
            made[:, :, -shown:] = end[:, :, -shown:]
        return made

    def last_latent(self, end: Tensor) -> Tensor:
        """(1, c, 1, h, w): that of the last frames; an image is held as long as a latent lasts."""
        length = 1 + self.tokenizer.time_factor
        missing = max(0, length - end.shape[2])
        held = torch.cat((end[:, :, :1].expand(-1, -1, missing, -1, -1), end), 2)
        return self.encode(held[:, :, -length:])[:, :, -1:]


class Chosen(NamedTuple):
    """What a chunk is made by."""

    solver: Solver
    end: Tensor | None
    """(1, c, t, H, W): the last frames."""


Model = VideoFlow
