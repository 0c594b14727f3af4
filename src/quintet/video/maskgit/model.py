"""VideoMaskGit: clips from captions, from a first frame, and continued (MAGVIT, arXiv 2212.05199).

caption and first latent frames -> masked transformer, a few steps -> ids (b, 1 + n, h, w)
                                -> tokenizer -> clips (b, c, 1 + n s, H, W)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.nn.attention import Context
from quintet.shared.generation.generator import Seed
from quintet.shared.maskgit.decoding import Decoding
from quintet.shared.maskgit.generator import MaskedGenerator
from quintet.video.continuing import ContinuingGenerator
from quintet.video.maskgit.config import VideoMaskGitConfig


class VideoMaskGit(ContinuingGenerator, MaskedGenerator):
    """Clip generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the clips: `VideoMaskGit(tokenizer, image_size=128, frames=17, dim=768)`."""

    Config = VideoMaskGitConfig
    config: VideoMaskGitConfig

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.video.tokenizer.model import VideoTokenizer

        return [VideoTokenizer]

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str] | str | None = None,
        *,
        count: int | None = None,
        clip: Tensor | None = None,
        frames: int | None = None,
        overlap: int | None = None,
        seed: Seed = 0,
        first: int = 0,
        **settings: Any,
    ) -> Tensor:
        """Clips (b, c, t, H, W) in 0..1, one for each text, or `count`.

        A `clip` (c, t, H, W), or a first frame (c, H, W), is continued to `frames` frames; the
        default is the length of training. Chunks overlap by `overlap` frames, by default about
        half of a chunk. `settings`: steps, order, temperature, choice_temperature, cond_scale (see
        `Decoding`). Clip number i depends on the seed and on `first` + i, not on the batch.
        """
        decoding = self.decoding_of(texts, settings)
        return self.continued(texts, count, clip, frames, overlap, seed, first, decoding)

    def chunk(
        self, clips: Tensor, known: int, keys: Tensor, context: Context | None, decoding: Decoding
    ) -> Tensor:
        ids = self.blank_ids(len(clips))
        if known:
            prefix = self.tokenize_pixels(clips)
            ids[:, : prefix.shape[1]] = prefix
        return self.decode_ids(self.complete(ids, keys, context, decoding))

    def decode_block(self, ids: Tensor) -> Tensor:
        return self.tokenizer.decode_from_code_indices(ids)


Model = VideoMaskGit
