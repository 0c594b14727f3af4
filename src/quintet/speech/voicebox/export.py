"""Graph export of VoiceBox: the velocity network."""

from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.models.export import Exportable, Input, Piece
from quintet.speech.text.characters import VOCABULARY
from quintet.speech.voicebox.model import VoiceBox

FREE = ("batch", "frames")


class Velocity(nn.Module):
    """The velocity of a noisy state."""

    def __init__(self, model: VoiceBox) -> None:
        super().__init__()
        self.text_embedding, self.backbone = model.text_embedding, model.backbone

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        context: Tensor,
        infill_mask: Tensor,
        frame_ids: Tensor,
        mask: Tensor,
    ) -> Tensor:
        return self.backbone(x, context, infill_mask, self.text_embedding(frame_ids), time, mask)


def examples(model: VoiceBox, batch: int, frames: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(frames)
    channels, packed = model.config.n_mels, model.config.phonemes is not None
    most = VOCABULARY**2 if packed else model.config.vocabulary
    lengths = torch.linspace(frames, frames / 2, batch).long()
    mask = torch.arange(frames) < lengths[:, None]
    infill_mask = (torch.arange(frames) >= frames // 3) & mask
    x, clean = torch.randn(2, batch, frames, channels, generator=generator)
    return {
        "x": x,
        "time": torch.rand(batch, generator=generator),
        "context": torch.where((mask & ~infill_mask)[..., None], clean, 0),
        "infill_mask": infill_mask,
        "frame_ids": torch.randint(1, most, (batch, frames), generator=generator) * mask,
        "mask": mask,
    }


def pieces(model: VoiceBox, recipe: Any) -> Exportable:
    config = model.config
    channels, packed = config.n_mels, config.phonemes is not None
    symbols = f"phoneme (its symbols are digits in base {VOCABULARY})"
    token = symbols if packed else f"id below {config.vocabulary}"
    descriptions = {
        "x": f"(batch, frames, {channels}) float32: the state of the flow",
        "time": "(batch) float32 from 0 (noise) to 1 (data)",
        "context": f"(batch, frames, {channels}) float32: known frames, zeros elsewhere",
        "infill_mask": "(batch, frames) bool: frames to infill",
        "frame_ids": f"(batch, frames) int64: the {token} of each frame",
        "mask": "(batch, frames) bool: false for padding",
    }
    traced, checked = examples(model, 2, 48), examples(model, 3, 65)
    free = {name: FREE[:1] if name == "time" else FREE for name in descriptions}
    inputs = {n: Input(traced[n], checked[n], text, free[n]) for n, text in descriptions.items()}
    outputs = {"velocity": f"(batch, frames, {channels}) float32: the velocity of x"}
    left_out = (
        "The spectrogram, the aligner, the duration model, the solver and the vocoder are not"
        " exported: they search, loop and draw random numbers."
    )
    piece = Piece("velocity", "velocity network of the flow", Velocity(model), inputs, outputs)
    return Exportable([piece], left_out)
