"""VideoFlow: clips from captions, from a first frame, to a last one and continued, by flow matching
(arXiv 2210.02747) over latents.

caption and first latent frames -> flow transformer, some steps -> latents (b, c, 1 + n, h, w)
                                -> tokenizer -> clips (b, c, 1 + n s, H, W)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.attention import Context
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
from quintet.shared.generation.generator import Seed
from quintet.video.continuing import ContinuingGenerator
from quintet.video.flow.config import VideoFlowConfig

STILL = (1.0, 3.0)
"""Changes, as multiples of the error of the tokenizer: still up to the first, moving from the
second on."""
COUNTED = (0.02, 0.08)
"""Errors of the tokenizer (of 0..1) that are counted at least, and at most."""
AROUND = 9
"""Side of the squares in which changes and errors are averaged."""


class VideoFlow(ContinuingGenerator, FlowGenerator):
    """Clip generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the clips: `VideoFlow(tokenizer, image_size=128, frames=17, dim=512)`."""

    Config = VideoFlowConfig
    config: VideoFlowConfig
    change_std: Tensor
    """(c,): of the changes from a latent frame to the next one, of normalised latents."""

    def build(self, config: Any) -> None:
        super().build(config)
        if config.changes:
            self.register_buffer("change_std", torch.ones(config.latent_channels))

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
        solved = self.solved(self.start(keys, grid, latents, mask), context, solver)
        made = self.decode(self.absolute(solved, mask))
        if known:
            made = with_still_parts(made, clips)
        if end is not None:
            shown = min(end.shape[2], self.tokenizer.time_factor)
            made[:, :, -shown:] = end[:, :, -shown:]
        return made

    def measure_latents(self, latents: Tensor) -> Self:
        """Also, the deviation of the changes from frame to frame."""
        super().measure_latents(latents)
        if self.config.changes and latents.shape[2] > 1:
            squares = self.normalised(latents).diff(dim=2).square()
            self.set_change_std(squares.mean((0, 2, 3, 4)).sqrt())
        return self

    def set_change_std(self, std: Tensor) -> None:
        self.change_std.copy_(std.clamp_min(1e-3))

    def beside_of_known(self, x: Tensor, known: Tensor, beside: Tensor | None) -> Tensor | None:
        return self.last_known(x, known)[0] if self.config.changes else beside

    def relative(self, latents: Tensor, known: Tensor) -> Tensor:
        if not self.config.changes:
            return latents
        last, scale = self.last_known(latents, known)
        return (latents - last) / scale

    def absolute(self, generated: Tensor, known: Tensor) -> Tensor:
        if not self.config.changes:
            return generated
        last, scale = self.last_known(generated, known)
        return last + scale * generated

    def last_known(self, latents: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """For frames after a known one, that frame and the deviation of changes from it, which
        grows with the root of the distance; 0 and 1 for known frames and those before."""
        count = latents.shape[2]
        place = torch.arange(count, device=latents.device)
        whole = known.flatten(3).all(3)  # (b, 1, t)
        before = (place <= place[:, None]) & whole[:, :, None]  # (b, 1, t, t)
        latest = torch.where(before, place, -1).amax(3)
        follows = ((latest >= 0) & ~whole)[..., None, None]
        index = latest.clamp_min(0)[..., None, None].expand_as(latents)
        last = torch.where(follows, latents.gather(2, index), torch.zeros_like(latents))
        far = (place - latest).clamp_min(1).to(latents.dtype).sqrt()[..., None, None]
        scale = torch.where(follows, far * self.change_std.view(1, -1, 1, 1, 1), 1.0)
        return last, scale

    def last_latent(self, end: Tensor) -> Tensor:
        """(1, c, 1, h, w): that of the last frames; an image is held as long as a latent lasts."""
        length = 1 + self.tokenizer.time_factor
        missing = max(0, length - end.shape[2])
        held = torch.cat((end[:, :, :1].expand(-1, -1, missing, -1, -1), end), 2)
        return self.encode(held[:, :, -length:])[:, :, -1:]


def with_still_parts(made: Tensor, clips: Tensor) -> Tensor:
    """Clips (b, c, t, H, W) that begin with given frames (b, c, k, H, W), decoded: later frames are
    the last given one where they do not move, so that a background neither flickers nor loses the
    details that the tokenizer does not keep. A change is no movement where it is no larger than
    what the tokenizer gets wrong there."""
    known = clips.shape[2]
    given, last, later = clips[:, :, -1:], made[:, :, known - 1 : known], made[:, :, known:]
    error = around(given - last).clamp(*COUNTED)
    still = (STILL[1] - around(later - last) / error) / (STILL[1] - STILL[0])
    still = still.clamp(0, 1)
    # Weights of 0 and 1 add nothing to a pixel, as a sum of a difference would by rounding.
    return torch.cat((made[:, :, :known], still * given + (1 - still) * later), 2)


def around(change: Tensor) -> Tensor:
    """(b, 1, t, H, W): absolute changes (b, c, t, H, W), averaged over squares."""
    mean = change.abs().mean(1)
    return F.avg_pool2d(mean, AROUND, 1, AROUND // 2, count_include_pad=False).unsqueeze(1)


class Chosen(NamedTuple):
    """What a chunk is made by."""

    solver: Solver
    end: Tensor | None
    """(1, c, t, H, W): the last frames."""


Model = VideoFlow
