"""VideoFlow: clips from captions, from a first frame, and continued, by flow matching (arXiv
2210.02747) over latents.

caption and first latent frames -> flow transformer, some steps -> latents (b, c, 1 + n, h, w)
                                -> tokenizer -> clips (b, c, 1 + n s, H, W)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.nn.attention import Context
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
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
        frames: int | None = None,
        overlap: int | None = None,
        seed: int = 0,
        first: int = 0,
        **settings: Any,
    ) -> Tensor:
        """Clips (b, c, t, H, W) in 0..1, one for each text, or `count`.

        A `clip` (c, t, H, W), or a first frame (c, H, W), is continued to `frames` frames; the
        default is the length of training. Chunks overlap by `overlap` frames, by default about
        half of a chunk. `settings`: steps, method, cond_scale (see `Solver`). Clip number i depends
        on the seed and on `first` + i, not on the batch.
        """
        solver = self.solver_of(texts, settings)
        return self.continued(texts, count, clip, frames, overlap, seed, first, solver)

    def chunk(
        self, clips: Tensor, known: int, keys: Tensor, context: Context | None, solver: Solver
    ) -> Tensor:
        grid, latents, mask = self.config.grid, None, None
        if known:
            prefix = self.encode(clips)
            latents = prefix.new_zeros(len(clips), prefix.shape[1], *grid)
            latents[:, :, : prefix.shape[2]] = prefix
            mask = torch.zeros(len(clips), 1, *grid, dtype=torch.bool, device=latents.device)
            mask[:, :, : prefix.shape[2]] = True
        start = self.start(keys, grid, latents, mask)
        return self.decode(self.solved(start, context, solver))


Model = VideoFlow
