"""Training of the clip generator (shared/maskgit/task.py)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.shared.maskgit.task import MaskedTask
from quintet.shared.scenes import agreement as judge
from quintet.shared.tokenizer.pixels import displayed, to_bytes
from quintet.video import data
from quintet.video.exhibits import CaptionedClips
from quintet.video.maskgit.config import VideoMaskGitRecipe
from quintet.video.maskgit.model import VideoMaskGit


class VideoMaskGitTask(MaskedTask):
    field, settings, room = "video", "videos", data
    Model = VideoMaskGit

    def __init__(
        self, recipe: VideoMaskGitRecipe, model: VideoMaskGit | None = None, sets: Any = None
    ):
        super().__init__(recipe, model, sets)
        self.prefix = recipe.prefix_share

    def grid(self) -> tuple[int, ...]:
        videos = self.recipe.videos
        return VideoMaskGit.grid_of(self.tokenizer, videos.size, videos.frames)

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return judge.agrees_clip(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> CaptionedClips:
        return CaptionedClips("generated", rows, titles, texts)


build = VideoMaskGitTask
to_encode = VideoMaskGitTask.to_encode
