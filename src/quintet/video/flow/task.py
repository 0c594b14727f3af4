"""Training of a flow generator of clips (shared/flow/task.py)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.engine.keys import uniform
from quintet.shared.flow.few_steps import FewSteps
from quintet.shared.flow.task import FlowTask
from quintet.shared.scenes import agreement
from quintet.shared.tokenizer.pixels import displayed, to_bytes
from quintet.video import data
from quintet.video.exhibits import CaptionedClips
from quintet.video.flow.config import VideoFlowFewRecipe, VideoFlowRecipe
from quintet.video.flow.model import VideoFlow


class VideoFlowTask(FlowTask):
    field, settings, room = "video", "videos", data
    Model = VideoFlow

    def grid(self) -> tuple[int, ...]:
        videos = self.recipe.videos
        return VideoFlow.grid_of(self.tokenizer, videos.size, videos.frames)

    def given(self, keys: Tensor, grid: tuple[int, ...]) -> Tensor:
        """The first latent frames, from one to all but one; of every third clip the first and the
        last one."""
        frames = grid[0]
        if frames == 1:
            return torch.zeros(len(keys), 1, *grid, dtype=torch.bool, device=keys.device)
        place = torch.arange(frames, device=keys.device)
        count = 1 + (uniform(keys, "known/frames", ()) * (frames - 1)).long()
        ends = uniform(keys, "known/ends", ()) < (1 / 3 if frames > 2 else 0)
        known = torch.where(
            ends[:, None], (place == 0) | (place == frames - 1), place < count[:, None]
        )
        return known[:, None, :, None, None].expand(-1, 1, *grid)

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return agreement.agrees_clip(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> CaptionedClips:
        return CaptionedClips("generated", rows, titles, texts)


class VideoFlowFewTask(FewSteps, VideoFlowTask):
    """The same, distilled to few steps."""


def build(recipe: VideoFlowRecipe | VideoFlowFewRecipe) -> VideoFlowTask:
    if isinstance(recipe, VideoFlowFewRecipe):
        return VideoFlowFewTask(recipe)
    return VideoFlowTask(recipe)
