"""What can leave the speech room as a graph: the network of the flow."""

import torch
from torch import Tensor, nn

from quintet.engine.exporting import Exportable, Input, Piece
from quintet.speech.config import VoiceBoxRecipe
from quintet.speech.model import VoiceBox

FREE = ("batch", "frames")


class Velocity(nn.Module):
    """Where a noisy state should go."""

    def __init__(self, model: VoiceBox) -> None:
        super().__init__()
        self.characters, self.backbone = model.characters, model.backbone

    def forward(
        self, x: Tensor, time: Tensor, context: Tensor, hole: Tensor, said: Tensor, mask: Tensor
    ) -> Tensor:
        return self.backbone(x, context, hole, self.characters(said), time, mask)


def examples(model: VoiceBox, batch: int, frames: int) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(frames)
    bins, letters = model.config.bins, model.config.vocabulary
    ends = torch.linspace(frames, frames / 2, batch).long()
    mask = torch.arange(frames) < ends[:, None]
    hole = (torch.arange(frames) >= frames // 3) & mask
    x, clean = torch.randn(2, batch, frames, bins, generator=chance)
    return {
        "x": x,
        "time": torch.rand(batch, generator=chance),
        "context": torch.where((mask & ~hole)[..., None], clean, 0),
        "hole": hole,
        "said": torch.randint(1, letters, (batch, frames), generator=chance) * mask,
        "mask": mask,
    }


def pieces(model: VoiceBox, recipe: VoiceBoxRecipe) -> Exportable:
    bins, letters = model.config.bins, model.config.vocabulary
    says = {
        "x": f"(batch, frames, {bins}) float32: the state of the flow",
        "time": "(batch) float32 in 0..1: from noise to data",
        "context": f"(batch, frames, {bins}) float32: known frames, and zeros elsewhere",
        "hole": "(batch, frames) bool: true where frames are to be found",
        "said": f"(batch, frames) int64 below {letters}: the character in each frame",
        "mask": "(batch, frames) bool: true where a frame is no padding",
    }
    traced, checked = examples(model, 2, 48), examples(model, 3, 65)
    free = {name: FREE[:1] if name == "time" else FREE for name in says}
    inputs = {n: Input(traced[n], checked[n], says[n], free[n]) for n in says}
    outputs = {"velocity": f"(batch, frames, {bins}) float32: the change of x with time"}
    left_out = (
        "The spectrogram, the aligner, the duration model, the solver and the vocoder stay with"
        " Quintet: they search, loop and draw, which is no graph."
    )
    piece = Piece("velocity", "the flow's network", Velocity(model), inputs, outputs)
    return Exportable([piece], left_out)
