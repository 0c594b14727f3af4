"""Training of a flow generator of music (shared/flow/task.py)."""

from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.data.source import Source
from quintet.engine.keys import uniform
from quintet.media.splits import Split
from quintet.music import agreement
from quintet.music.flow.config import MusicFlowRecipe
from quintet.music.flow.data import CaptionedSongs, SongFolder, SongLatents, open_songs
from quintet.music.flow.model import MusicFlow
from quintet.music.flow.sheets import SongSheet
from quintet.nn.spectrogram import LogMel
from quintet.shared.code_cache import Collate
from quintet.shared.encoded import open_encoded
from quintet.shared.flow.task import FlowTask
from quintet.shared.segments import Segments, collate

BANDS, MOMENTS = 32, 32
"""Mel bands and moments of the pictures whose distances are measured."""
QUIET = 1e-3
"""The least magnitude in them."""


def windows_of(recipe: MusicFlowRecipe, codec: Any) -> Segments:
    """Whole frames of a codec, the same in training and validation."""
    (frames,) = MusicFlow.grid_of(codec, recipe.sounds.seconds)
    length = frames * codec.hop
    return Segments(length, length, codec.sample_rate, codec.channels)


class MusicFlowTask(FlowTask):
    field, settings = "song", "sounds"
    Model, Codes = MusicFlow, SongLatents
    recipe: MusicFlowRecipe

    def __init__(self, recipe: MusicFlowRecipe, model: Any = None, sets: Any = None) -> None:
        super().__init__(recipe, model, sets)
        self.windows = windows_of(recipe, self.tokenizer)
        self.room: Any = SimpleNamespace(collate=lambda items: collate(items, self.windows))
        self.rate: int = self.tokenizer.sample_rate

    def grid(self) -> tuple[int, ...]:
        return MusicFlow.grid_of(self.tokenizer, self.recipe.sounds.seconds)

    def check_channels(self) -> None:
        """Data takes the channels of the codec."""

    @classmethod
    def to_encode(cls, recipe: Any, tokenizer: Any, weights: str) -> tuple[SongLatents, Collate]:
        cls.Model.check_tokenizer(tokenizer)
        windows = windows_of(recipe, tokenizer)

        class Whole(SongFolder):
            def __init__(self, folder: Any, config: Any, split: Split, seed: int) -> None:
                super().__init__(folder, config, split, seed, windows)

        folder = Whole.whole(recipe.data, recipe.sounds)
        source = CaptionedSongs(folder, recipe.sounds, windows)
        codes = SongLatents(source, recipe.variants, weights)
        return codes, lambda items: collate(items, windows)

    def _pixels(self, split: Any) -> Any:
        recipe, config = self.recipe, self.recipe.sounds
        source: Source | None = open_encoded(recipe.data, config, split, recipe.seed)
        if self.sets is not None:
            source = self.sets[split]
        elif source is None:
            source = open_songs(recipe.data, config, split, recipe.seed, self.windows)
        return None if source is None else CaptionedSongs(source, config, self.windows)

    def given(self, keys: Tensor, grid: tuple[int, ...]) -> Tensor:
        """All but a span, or, of every other song, the frames up to a place."""
        (frames,) = grid
        place = torch.arange(frames, device=keys.device)
        ends = (uniform(keys, "known/span", (2,)) * frames).floor().sort(1).values
        outside = (place < ends[:, :1]) | (place > ends[:, 1:])
        continued = uniform(keys, "known/kind", ()) < 0.5
        return torch.where(continued[:, None], place < ends[:, 1:], outside)[:, None]

    # -- evaluation -----------------------------------------------------------------------------

    @property
    def judged(self) -> bool:
        return self.recipe.data is None and self.sets is None

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return all(self.right(caption, pixels).values())

    def right(self, caption: str, pixels: Tensor) -> dict[str, bool]:
        """Whether instrument, tempo and mode are those of a caption."""
        sound = pixels.mean(0).float().cpu().numpy()
        return agreement.right(caption, sound, self.rate, self.recipe.sounds.builtin)

    def shown(self, captions: Sequence[str], samples: Tensor) -> dict[str, Tensor]:
        """What of captions is right, in generated samples, one by one."""
        right = [self.right(*pair) for pair in zip(captions, samples)]
        return {
            f"agrees_{name}": torch.tensor([float(each[name]) for each in right])
            for name in agreement.FACETS
        }

    def points(self, pixels: Tensor) -> Tensor:
        mel = picture_of(self.rate, pixels.device)
        return F.adaptive_avg_pool2d(mel(pixels.mean(1)), (BANDS, MOMENTS)).flatten(1)

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> SongSheet:
        return SongSheet("generated", rows, titles, texts, self.rate, files=True)


@lru_cache(maxsize=4)
def picture_of(rate: int, device: torch.device) -> LogMel:
    high = min(rate / 2, 8000.0)
    return LogMel(rate, 1024, 256, BANDS, high=high, power=1.0, floor=QUIET).to(device)


to_encode = MusicFlowTask.to_encode
build = MusicFlowTask
