"""VideoMaskGit: clips from captions, from a first frame, and continued (MAGVIT, arXiv 2212.05199).

    caption and first latent frames -> masked transformer, a few steps -> ids (b, 1 + n, h, w)
                                    -> tokenizer -> clips (b, c, 1 + n s, H, W)

A longer clip is made in chunks. Each begins with the last frames of the one before, encoded again:
the first of them has a latent frame of its own, as the first frame of a training clip has.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.nn.attention import Context
from quintet.shared.generation.generator import sample_keys
from quintet.shared.maskgit.decoding import Decoding
from quintet.shared.maskgit.generator import MaskedGenerator
from quintet.video.maskgit.config import VideoMaskGitConfig


class VideoMaskGit(MaskedGenerator):
    """Clip generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the clips: `VideoMaskGit(tokenizer, image_size=128, frames=17, dim=768)`."""

    Config = VideoMaskGitConfig
    config: VideoMaskGitConfig

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.video.tokenizer.model import VideoTokenizer

        return [VideoTokenizer]

    @classmethod
    def grid_of(cls, tokenizer: Any, size: Any, frames: int | None = None) -> tuple[int, ...]:
        if tokenizer is None or size is None or frames is None:
            raise ValueError("give image_size and frames beside a tokenizer, or grid")
        tokenizer.check_length(frames, True)
        return 1 + (frames - 1) // tokenizer.time_factor, *tokenizer.grid_of(size)

    @property
    def clip_shape(self) -> tuple[int, int, int]:
        """Frames, height and width of a clip."""
        time, height, width = self.config.grid
        tokenizer = self.tokenizer
        frames = 1 + (time - 1) * tokenizer.time_factor
        return frames, height * tokenizer.factor, width * tokenizer.factor

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
        half of a chunk. `settings`: steps, order, temperature, choice_temperature, cond_scale (see
        `Decoding`). Clip number i depends on the seed and on `first` + i, not on the batch.
        """
        decoding = self.decoding_of(texts, settings)
        context, number, _ = self.prepared(texts, count, seed, first)
        length, height, width = self.clip_shape
        frames = length if frames is None else frames
        clips = torch.zeros(number, self.tokenizer.config.channels, 0, height, width)
        clips = clips.to(self.weight.device)
        if clip is not None:
            clips = self.checked(clip).expand(number, -1, -1, -1, -1)
        if frames > length == 1:
            raise ValueError("this model generates single frames; train it with frames above 1")
        if frames < 1:
            raise ValueError(f"frames is {frames}; it must be 1 or more")
        if frames <= clips.shape[2]:
            raise ValueError(
                f"the clip has {clips.shape[2]} frames already; frames is {frames}: give a larger"
                " number, or a shorter clip"
            )
        overlap = self.checked_overlap(overlap)
        numbers = range(first, first + number)
        while clips.shape[2] < frames:
            # The frame at which a chunk begins is part of its key: chunks are alike however a
            # clip came to its length.
            keys = sample_keys(fold(seed, "chunk", clips.shape[2]), numbers, self.key_name)
            new = self.next_chunk(clips, overlap, keys, context, decoding)
            clips = torch.cat((clips, new[:, :, : frames - clips.shape[2]]), 2)
        return clips

    def next_chunk(
        self, clips: Tensor, overlap: int, keys: Tensor, context: Context | None, decoding: Decoding
    ) -> Tensor:
        """The frames that follow a clip (b, c, t, H, W)."""
        ids, known = self.blank_ids(len(clips)), 0
        if clips.shape[2]:
            step = self.tokenizer.time_factor
            known = 1 + min(clips.shape[2] - 1, overlap) // step * step
            prefix = self.tokenize_pixels(clips[:, :, -known:])
            ids[:, : prefix.shape[1]] = prefix
        return self.decode_ids(self.complete(ids, keys, context, decoding))[:, :, known:]

    def checked(self, clip: Tensor) -> Tensor:
        clip = (clip[:, None] if clip.ndim == 3 else clip).to(self.weight.device)
        _, height, width = self.clip_shape
        channels = self.tokenizer.config.channels
        if clip.ndim != 4 or (clip.shape[0], *clip.shape[2:]) != (channels, height, width):
            raise ValueError(
                f"the clip is {tuple(clip.shape)}, but this model continues clips of {height} x"
                f" {width} pixels: give ({channels}, t, {height}, {width})"
            )
        return clip[None]

    def checked_overlap(self, overlap: int | None) -> int:
        """Frames, beside the first, that a chunk has in common with the one before."""
        latent, step = self.config.grid[0], self.tokenizer.time_factor
        most = (latent - 2) * step
        frames = (latent - 1) // 2 * step if overlap is None else overlap
        if not 0 <= frames <= max(most, 0):
            raise ValueError(f"overlap is {frames}; it must be 0 to {most} frames")
        return frames

    def decode_block(self, ids: Tensor) -> Tensor:
        return self.tokenizer.decode_from_code_indices(ids)


Model = VideoMaskGit
