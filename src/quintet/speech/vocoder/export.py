"""Export of the vocoder: the network alone."""

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.speech.vocoder.model import MEAN, STD, Vocoder


def offsets(self: Any, frames: Tensor) -> Tensor:
    return self.model.offsets(frames.mT)


def pieces(model: Vocoder, recipe: Any) -> Exportable:
    config, generator = model.config, torch.Generator().manual_seed(0)
    traced, checked = (
        torch.randn(batch, frames, config.n_mels, generator=generator) * STD + MEAN
        for batch, frames in ((2, 48), (3, 65))
    )
    description = f"(batch, frames, {config.n_mels}) float32: log-mels"
    inputs = {"frames": Input(traced, checked, description, ("batch", "frames"))}
    shape = f"(batch, frames, {config.n_fft // 2 + 1}) float32"
    added = "to be added to natural logarithms of magnitudes"
    outputs = {"log_magnitudes": f"{shape}: {added}"}
    left_out = (
        "Spectra, phase retrieval and corrections are no graphs: ONNX has no inverse FFT of real"
        " signals. The program of an exported VoiceBox has them: its --vocoder takes this folder."
    )
    network = graph(model, offsets)
    piece = Piece("offsets", "log-mels to magnitudes", network, inputs, outputs)
    about = json.dumps(dataclasses.asdict(config), indent=1) + "\n"
    return Exportable([piece], left_out, {"export.json": about})
