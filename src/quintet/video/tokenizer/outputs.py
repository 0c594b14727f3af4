"""Outputs of a video tokenizer: reconstructions."""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from quintet.engine.task import Batch
from quintet.shared.outputs import Group, Outputs, cropped, eight_bits
from quintet.shared.tokenizer.pixels import three_channels
from quintet.video.tokenizer.model import VideoTokenizer
from quintet.video.tokenizer.task import VideoTask, bicubic_baseline


class Reconstructions(Outputs):
    task: VideoTask

    def preparation(self) -> dict[str, str]:
        config = self.task.recipe.videos
        rate = "those of the file" if config.fps is None else f"{config.fps:g} a second"
        frames = f"{config.frames} from the middle, {rate}"
        return {"frames": frames, **cropped(config.size)}

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        real, model = self.task.real(batch), cast(VideoTokenizer, self.task.tokenizer)
        sets = {
            "originals": real,
            "outputs": self.nets["tokenizer"](real).output,
            "bicubic": bicubic_baseline(real, model.factor, model.time_factor),
            "mean_frame": real.mean(2, keepdim=True).expand_as(real),
        }
        clips = {name: [*eight_bits(rgb_frames(x))] for name, x in sets.items()}
        return Group(clips.pop("originals"), clips.pop("outputs"), clips)


def rgb_frames(clips: Tensor) -> Tensor:
    """(b, c, t, h, w) -> (b, t, 3, h, w)."""
    frames = clips.transpose(1, 2)
    return three_channels(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])


outputs = Reconstructions
