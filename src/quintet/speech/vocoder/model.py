"""Vocoder: log-mels to sounds, by a network in the manner of Vocos (arXiv 2306.00814).

Shapes: b sounds of n samples, t frames, f frequencies, m mel bins.

The network starts where Griffin-Lim does: at magnitudes deconvolved from the log-mels, and at
phases integrated along the partials of these. It predicts what to add to the logarithms of
the former and to the latter. The sound is then corrected towards the log-mels, several times:
each magnitude of its spectrum by what its mel bins lack. Griffin-Lim would replace magnitudes by
the deconvolved ones, which have no harmonics where mel bins are wide; a correction keeps them.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.models import model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.spectrogram import LogMel
from quintet.nn.vocoder import GriffinLim, Vocos, VocosConfig
from quintet.speech.features import log_mel
from quintet.speech.vocoder.config import VocoderConfig

MEAN, STD = -2.0, 2.2
"""Of the log-mels of speech, about."""
LOUDEST = 100.0
"""The largest magnitude that is predicted."""
SMALLEST = 1e-7
"""The smallest one before the network has its say."""
DECONVOLUTIONS = 8
"""Iterations of the deconvolution; more of them change little."""
LARGEST = 4.0
"""A correction changes log-magnitudes by at most this."""
AHEAD = 0.5
"""Momentum of the corrections, as of the fast Griffin-Lim algorithm."""


class Vocoder(Pretrained, nn.Module):
    """Built from a configuration, or from its fields as keywords.

    `vocoder(log_mels)` gives sounds, `vocoder.copy(sounds)` copies of them through log-mels.
    """

    Config = VocoderConfig
    spread: Tensor
    """(m, f): the share of each mel filter in what is known of a frequency."""

    def __init__(self, config: VocoderConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = config or VocoderConfig()
        self.config = config = replace(config, **model_keywords({}, keywords, config))
        self.mel = log_mel(config.sample_rate, config.n_fft, config.hop_length, config.n_mels)
        self.griffin_lim = GriffinLim(self.mel)
        self.vocos = Vocos(
            VocosConfig(
                sample_rate=config.sample_rate,
                n_mels=config.n_mels,
                dim=config.dim,
                hidden=config.expansion * config.dim,
                layers=config.depth,
                n_fft=config.n_fft,
                hop_length=config.hop_length,
            )
        )
        self.vocos.apply(_initialise)
        nn.init.trunc_normal_(self.vocos.head.out.weight, std=0.002)  # nearly what it starts at
        bank = self.mel.bank
        above = self.mel.n_fft // 2 + 1 - self.mel.last
        spread = F.pad((bank / bank.sum(1, keepdim=True)).T, (self.mel.first, above))
        self.register_buffer("spread", spread, persistent=False)

    def regions(self) -> list[nn.Module]:
        """Regions to compile: the blocks, which share one graph."""
        return list(self.vocos.backbone.convnext)

    def forward(self, log_mels: Tensor) -> Tensor:
        """(b, m, t) -> (b, (t - 1) hop)."""
        log_mels = full_precision(log_mels)
        log_magnitudes, phases = self.offsets(log_mels)
        with without_autocast(log_mels):
            known = self.griffin_lim.magnitudes(log_mels, DECONVOLUTIONS).clamp_min(SMALLEST)
            magnitudes = (known.log() + log_magnitudes).exp().clamp_max(LOUDEST)
            # Of the known magnitudes: those of the predicted ones would change in all frames after
            # a change in one, and the gradients are four times as large and lead nowhere.
            phases = phases + self.griffin_lim.initial_phases(known)
            sounds = self.griffin_lim.to_sound(torch.polar(magnitudes, phases))
            return self.corrected(sounds, log_mels)

    def offsets(self, log_mels: Tensor) -> tuple[Tensor, Tensor]:
        """(b, m, t) -> (b, t, f) twice: what to add to log-magnitudes and phases."""
        hidden = self.vocos.backbone((log_mels - MEAN) / STD)
        with without_autocast(hidden):  # bf16 would round phases to a hundredth of a turn
            first, second = self.vocos.head.out(full_precision(hidden)).chunk(2, -1)
        return first, second

    def corrected(self, sounds: Tensor, log_mels: Tensor) -> Tensor:
        """Sounds (b, n) with log-mels closer to these."""
        previous: Tensor | None = None
        for _ in range(self.config.corrections):
            spectrum = self.griffin_lim.stft(sounds, log_mels.shape[2])
            ahead = spectrum if previous is None else spectrum + AHEAD * (spectrum - previous)
            magnitudes = ahead[..., self.mel.first : self.mel.last].abs()
            present = self.mel.to_mel(magnitudes).clamp_min(self.mel.floor).log()
            gain = (log_mels.mT - present).clamp(-LARGEST, LARGEST) @ self.spread
            sounds, previous = self.griffin_lim.to_sound(ahead * gain.exp()), spectrum
        return sounds

    @torch.no_grad()
    def copy(self, sounds: Tensor) -> Tensor:
        """Sounds (b, n) or (n,) through log-mels, of the same length."""
        batch = sounds if sounds.ndim == 2 else sounds[None]
        hop, length = self.config.hop_length, batch.shape[1]
        whole = F.pad(batch.to(self.spread.device), (0, -length % hop))
        copies = self(self.mel(whole))[:, :length]
        return copies if sounds.ndim == 2 else copies[0]


def log_mels(config: VocoderConfig) -> list[LogMel]:
    """What copies are compared by: the log-mels that the vocoder is given, then those with a window
    half and twice as long."""
    own = log_mel(config.sample_rate, config.n_fft, config.hop_length, config.n_mels)
    others = [
        log_mel(config.sample_rate, window, window // 4, max(1, config.n_mels * share // 10))
        for window, share in ((config.n_fft // 2, 4), (config.n_fft * 2, 10))
    ]
    return [own, *others]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv1d, nn.Linear)):
        nn.init.trunc_normal_(module.weight, std=0.02)
        assert module.bias is not None
        nn.init.zeros_(module.bias)
