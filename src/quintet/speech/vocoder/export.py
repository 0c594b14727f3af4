"""Export of the vocoder: the network, up to the inverse STFT."""

import torch
from torch import Tensor, nn

from quintet.engine.models.export import Exportable, Input, Piece
from quintet.speech.vocoder.model import MEAN, STD, Vocoder


class Spectrum(nn.Module):
    """Log-magnitudes and phases of log-mels."""

    def __init__(self, model: Vocoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        log_mels = frames.mT
        hidden = self.model.vocos.backbone((log_mels - MEAN) / STD)
        log_magnitudes, phases = self.model.vocos.head.out(hidden).chunk(2, -1)
        return log_magnitudes + self.model.envelope(log_mels), phases


def pieces(model: Vocoder) -> Exportable:
    config, generator = model.config, torch.Generator().manual_seed(0)
    traced, checked = (
        torch.randn(batch, frames, config.n_mels, generator=generator) * STD + MEAN
        for batch, frames in ((2, 48), (3, 65))
    )
    description = f"(batch, frames, {config.n_mels}) float32: log-mels"
    inputs = {"frames": Input(traced, checked, description, ("batch", "frames"))}
    shape = f"(batch, frames, {config.n_fft // 2 + 1}) float32"
    outputs = {
        "log_magnitudes": f"{shape}: natural logarithms, of magnitudes up to 100",
        "phases": f"{shape}: radians",
    }
    left_out = (
        "The spectrogram, the inverse STFT and the corrections of the magnitudes are not exported:"
        " ONNX has no inverse FFT of real signals."
    )
    return Exportable(
        [Piece("spectrum", "log-mels to a spectrum", Spectrum(model), inputs, outputs)], left_out
    )
