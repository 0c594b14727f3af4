"""Graph export of VoiceBox: durations and the velocity network, with a program that speaks by them
without torch."""

from typing import Any

import torch
from torch import Tensor, nn

from quintet import mel, suggest
from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.shared.export.pieces import PROGRAM, program
from quintet.speech.text import characters, english, markup, phonemes, spelling, timing
from quintet.speech.text.characters import VOCABULARY
from quintet.speech.voicebox import driver, sound
from quintet.speech.voicebox.inference import Solver
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voicebox.sample import SENTENCE

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


def durations(self: Any, ids: Tensor) -> Tensor:
    counts = torch.full(ids.shape[:1], ids.shape[1])
    voice = torch.zeros(ids.shape[0], 2 * self.model.config.n_mels)
    nothing = torch.zeros_like(ids)
    return self.model.durations(ids, counts, nothing, nothing > 0, voice).exp()


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
    piece = Piece("velocity", "velocity network of the flow", Velocity(model), inputs, outputs)
    if config.text != "learned" or config.features != "mel":
        left_out = "The spectrogram and the solver are not exported: they loop and draw numbers."
        return Exportable([piece], left_out)
    few, more = (torch.randint(1, VOCABULARY, shape) for shape in ((2, 9), (3, 14)))
    description = "(batch, tokens) int64: ids of whole texts"
    text = Input(few, more, description, ("batch", "tokens"))
    frames = {"frames": "(batch, tokens) float32: frames of each id"}
    lengths = Piece("durations", "lengths of ids", graph(model, durations), {"ids": text}, frames)
    named = ("mean", "std", "phonemes", "spell_out", "edges", *driver.SPECTRA)
    about = {name: getattr(config, name) for name in named}
    about |= {"limit": recipe.recordings.text_length if recipe else SENTENCE, "captions": {}}
    own = recipe.sampling if recipe else Solver()
    about["sway"] = own.sway
    settings: dict[str, Any] = {"seed": 0, "steps": own.steps, "method": own.method}
    settings |= {
        "cond_scale": float(own.cond_scale),
        "language": "",
        "seconds": float,
        "rate": 1.0,
        "vocoder": str,
    }
    modules = (driver, sound, mel, characters, english, phonemes, spelling, markup, timing, suggest)
    left_out = (
        "The aligner is not exported: the program speaks in a voice of its own, texts that fit the"
        f" model. Phonemes need espeakng-loader beside it. {PROGRAM} --vocoder names the folder of"
        " a vocoder exported as ONNX."
    )
    return Exportable([lengths, piece], left_out, program(about, settings, *modules))
