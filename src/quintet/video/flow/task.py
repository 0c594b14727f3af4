"""Training of a flow generator of clips (shared/flow/task.py)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import fold, uniform
from quintet.engine.task import Batch, Rows, World
from quintet.nn.similarity import psnr
from quintet.shared.flow.data import ENOUGH
from quintet.shared.flow.few_steps import FewSteps
from quintet.shared.flow.task import FlowTask
from quintet.shared.generation.data import in_floats
from quintet.shared.generation.generator import sample_keys
from quintet.shared.scenes import agreement
from quintet.shared.tokenizer.pixels import displayed, to_bytes
from quintet.video import data
from quintet.video.exhibits import CaptionedClips
from quintet.video.flow.config import VideoFlowFewRecipe, VideoFlowRecipe
from quintet.video.flow.model import Chosen, VideoFlow

AHEAD = 4
"""Frames after the start of a clip that are compared."""


class VideoFlowTask(FlowTask):
    field, settings, room = "video", "videos", data
    Model = VideoFlow

    def prepare(self, world: World) -> None:
        model: Any = self.model
        measured = model.measured_latents
        super().prepare(world)
        train = self.codes["train"]
        if self.config.changes and train is not None and not measured:
            model.set_change_std(self.change_std(train))

    def change_std(self, train: Any) -> Tensor:
        """(c,): of the changes between neighbouring frames of normalised latents, in fp64 over
        samples spread evenly."""
        step = -(-len(train) // ENOUGH)
        rows = (train.codes_of(index).double() for index in range(0, len(train), step))
        squares = [
            row.unflatten(0, self.config.grid).diff(dim=0).square().mean((0, 1, 2)) for row in rows
        ]
        return torch.stack(squares).mean(0).sqrt().float().to(self.device) / self.model.latent_std

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

    def measure_generation(self, batch: Batch) -> dict[str, Rows]:
        """Also, how near the frames after the start of a held-out clip come to the real ones, and
        how near the last known frame and the mean of the known ones do."""
        rows = [row for row, index in enumerate(batch.ids) if index < self.generation.count]
        known = 1 + self.tokenizer.time_factor
        length = self.recipe.videos.frames
        if not rows or length <= known:
            return super().measure_generation(batch)
        model: Any = self.model
        numbers = [batch.ids[row] for row in rows]
        source = self.codes["valid"].source
        clips = torch.stack([source.keyed(number, None)[self.field] for number in numbers])
        clips = in_floats(clips.to(self.device), self.tokenizer)
        start, ahead = clips[:, :, :known], slice(known, min(length, known + AHEAD))
        captions = [batch.data["caption"][row] for row in rows]
        with torch.autocast(self.device.type, enabled=False):
            keys = sample_keys(fold(0, "chunk", known), numbers, model.key_name)
            chosen = Chosen(self.solver, None)
            made = model.chunk(start, known, keys, self.context(captions), chosen)
        guesses = {"": made[:, :, ahead], "_last": start[:, :, -1:], "_mean": start.mean(2, True)}
        real = clips[:, :, ahead]
        values = {
            f"continued_psnr{name}": Rows(psnr(guess.expand_as(real).float(), real.float()))
            for name, guess in guesses.items()
        }
        return super().measure_generation(batch) | values

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return agreement.agrees_clip(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> CaptionedClips:
        return CaptionedClips("generated", rows, titles, texts)


class VideoFlowFewTask(FewSteps, VideoFlowTask):
    """The same, distilled to few steps."""


to_encode = VideoFlowTask.to_encode


def build(recipe: VideoFlowRecipe | VideoFlowFewRecipe) -> VideoFlowTask:
    if isinstance(recipe, VideoFlowFewRecipe):
        return VideoFlowFewTask(recipe)
    return VideoFlowTask(recipe)
