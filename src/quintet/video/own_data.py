"""A user's own data set of clips."""

from typing import Any

from torch import Tensor

from quintet.engine.keys import Key
from quintet.shared.tokenizer.trainer import OwnPixels


class OwnVideos(OwnPixels):
    """A window of `frames`, placed by the key, of a longer clip; an image repeated as a still."""

    fields = {
        "video": "video",
        "videos": "video",
        "image": "video",
        "images": "video",
        "text": "text",
    }
    shapes = {4: "a clip (c, t, h, w)", 3: "an image (c, h, w)"}

    def __init__(self, dataset: Any, frames: int, channels: int = 3):
        super().__init__(dataset, channels)
        self.frames = frames

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        sample = super().sample(fields, where, key)
        clip: Tensor = sample["video"]
        still = clip.ndim == 3
        if still:
            clip = clip[:, None].expand(-1, self.frames, -1, -1)
        spare = clip.shape[1] - self.frames
        if spare < 0:
            raise ValueError(
                f"{where} has {clip.shape[1]} frames, but frames is {self.frames}: lower frames, "
                "or drop the short clips"
            )
        first = key.random("window").randint(0, spare) if key is not None else spare // 2
        return {**sample, "video": clip[:, first : first + self.frames], "still": still}
