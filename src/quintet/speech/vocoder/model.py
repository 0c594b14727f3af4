"""Vocoder: log-mels to sounds, by a network in the manner of Vocos (arXiv 2306.00814).

Shapes: b sounds of n samples, t frames, f frequencies, m mel bins.

The network predicts magnitudes and phases, which the inverse STFT makes a sound. Two things that
are known of the magnitudes need not be learned. They begin at the envelope that the log-mels
outline (as in FreeV, arXiv 2406.08196). And the sound is corrected towards the log-mels: each
magnitude of its spectrum by what its mel bins lack, as one iteration of Griffin-Lim would.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.models import model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.vocoder import GriffinLim, Vocos, VocosConfig
from quintet.speech.features import log_mel
from quintet.speech.vocoder.config import VocoderConfig

MEAN, STD = -2.0, 2.2
"""Of the log-mels of speech, about."""
OUTSIDE = -12.0
"""Log-magnitude of frequencies outside of all mel filters."""
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
    """(f, m): the share of each mel filter in what is known of a frequency."""
    log_area: Tensor
    """(m,): of the filters; a log-mel is about that of its magnitudes plus this."""

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
        bank = self.mel.bank
        spread = bank / bank.sum(1, keepdim=True)
        self.register_buffer("spread", spread, persistent=False)
        self.register_buffer("log_area", bank.sum(0).log(), persistent=False)

    def regions(self) -> list[nn.Module]:
        """Regions to compile: the blocks, which share one graph."""
        return list(self.vocos.backbone.convnext)

    def forward(self, log_mels: Tensor) -> Tensor:
        """(b, m, t) -> (b, (t - 1) hop)."""
        log_mels = full_precision(log_mels)
        hidden = self.vocos.backbone((log_mels - MEAN) / STD)
        with without_autocast(log_mels):
            sounds = self.vocos.head(hidden, self.envelope(log_mels))
            previous: Tensor | None = None
            for _ in range(self.config.corrections):
                spectrum = self.griffin_lim.stft(sounds, log_mels.shape[2])
                ahead = spectrum if previous is None else spectrum + AHEAD * (spectrum - previous)
                sounds = self.griffin_lim.to_sound(self.corrected(ahead, log_mels))
                previous = spectrum
        return sounds

    def envelope(self, log_mels: Tensor) -> Tensor:
        """(b, m, t) -> (b, t, f): smooth log-magnitudes."""
        return self._at_frequencies(log_mels.mT - self.log_area, OUTSIDE)

    def corrected(self, spectrum: Tensor, log_mels: Tensor) -> Tensor:
        """A spectrum (b, t, f) with log-mels closer to these; its phases are kept."""
        magnitudes = spectrum[..., self.mel.first : self.mel.last].abs()
        present = self.mel.to_mel(magnitudes).clamp_min(self.mel.floor).log()
        gain = self._at_frequencies((log_mels.mT - present).clamp(-LARGEST, LARGEST), 0.0)
        return spectrum * gain.exp()

    def _at_frequencies(self, values: Tensor, outside: float) -> Tensor:
        """(b, t, m) -> (b, t, f)."""
        above = self.mel.n_fft // 2 + 1 - self.mel.last
        return F.pad(values @ self.spread.T, (self.mel.first, above), value=outside)

    @torch.no_grad()
    def copy(self, sounds: Tensor) -> Tensor:
        """Sounds (b, n) or (n,) through log-mels, of the same length."""
        batch = sounds if sounds.ndim == 2 else sounds[None]
        hop, length = self.config.hop_length, batch.shape[1]
        whole = F.pad(batch.to(self.spread.device), (0, -length % hop))
        copies = self(self.mel(whole))[:, :length]
        return copies if sounds.ndim == 2 else copies[0]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv1d, nn.Linear)):
        nn.init.trunc_normal_(module.weight, std=0.02)
        assert module.bias is not None
        nn.init.zeros_(module.bias)
