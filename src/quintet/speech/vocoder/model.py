"""Vocoder: log-mels to sounds, by predicted magnitudes and phase retrieval.

Shapes: b sounds of n samples, t frames, f frequencies, m mel bins.

Of a spectrum the log-mels lack two things: magnitudes within the mel bins, which are wide at high
frequencies, and phases. Given the former, Griffin-Lim finds the latter within cents of the pitch.
So the network, in the manner of Vocos (arXiv 2306.00814) but without phases, predicts magnitudes
alone: what to add to the logarithms of those that are deconvolved from the log-mels. It learns from
the spectra of recordings directly, without an inverse STFT, and so in minutes.

After phase retrieval the sound is corrected towards the log-mels, several times: each magnitude of
its spectrum by what its mel bins lack, which keeps phases and harmonics as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.models import model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.nn.adversarial.losses import per_sample
from quintet.nn.griffin_lim import GriffinLim, beyond, power, scaled
from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.vocos import VocosBackbone, VocosConfig
from quintet.speech.features import log_mel
from quintet.speech.vocoder.config import VocoderConfig

MEAN, STD = -2.0, 2.2
"""Approximate mean and deviation of the log-mels of speech."""
SMALLEST = 1e-7
"""The smallest magnitude before the network's correction."""
QUIET = 1e-3
"""The least magnitude in the loss; quieter ones are all alike."""
DECONVOLUTIONS = 4
"""Iterations before the network and after it; more of them change little."""
LARGEST = 4.0
"""A correction changes log-magnitudes by at most this."""
AHEAD = 0.9
"""Momentum of the corrections, as of the fast Griffin-Lim algorithm."""
PULL = 1.3
"""Over-relaxation of the corrections. What is corrected too far comes back with the other sign, and
momentum enlarges it by 1 + 2 AHEAD: they converge below 1 + 1 / (1 + 2 AHEAD), which is 1.357."""


class Vocoder(Pretrained, nn.Module):
    """Built from a configuration, or from its fields as keywords.

    `vocoder(log_mels)` gives sounds, `vocoder.copy(sounds)` copies of them through log-mels.
    """

    Config = VocoderConfig
    spread: Tensor
    """(m, f): the share of each mel filter in what is known of a frequency."""
    weights: Tensor
    """(f,): weights of errors, by the density of mel filters, 1 on average. Otherwise hundreds of
    bins of noise would outweigh the ten that hold the pitch."""

    def __init__(self, config: VocoderConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = config or VocoderConfig()
        self.config = config = updated(config, model_keywords({}, keywords, config))
        self.mel = log_mel(config.sample_rate, config.n_fft, config.hop_length, config.n_mels)
        self.griffin_lim = GriffinLim(self.mel)
        self.backbone = VocosBackbone(
            VocosConfig(
                sample_rate=config.sample_rate,
                n_mels=config.n_mels,
                dim=config.dim,
                hidden=3 * config.dim,
                layers=config.depth,
                n_fft=config.n_fft,
                hop_length=config.hop_length,
            )
        )
        self.out = nn.Linear(config.dim, config.n_fft // 2 + 1)
        self.backbone.apply(_initialise)
        self.out.apply(_initialise)
        nn.init.trunc_normal_(self.out.weight, std=0.002)  # nearly the deconvolved magnitudes
        bank = self.mel.bank
        outside = (self.mel.first, self.mel.n_fft // 2 + 1 - self.mel.last)
        spread = F.pad((bank / bank.sum(1, keepdim=True)).T, outside)
        density = F.pad((bank / bank.sum(0)).sum(1), outside)
        self.register_buffer("spread", spread, persistent=False)
        self.register_buffer("weights", density / density.mean(), persistent=False)

    def regions(self) -> list[nn.Module]:
        """Regions to compile: the blocks, which share one graph."""
        return list(self.backbone.convnext)

    def forward(self, log_mels: Tensor, sounds: Tensor | None = None) -> Tensor:
        """(b, m, t) -> (b, (t - 1) hop); or, with the sounds (b, n) themselves, the error of the
        predicted log-magnitudes of each: (b,)."""
        log_mels = full_precision(log_mels)
        logs = self.log_magnitudes(log_mels)
        with without_autocast(log_mels):
            if sounds is not None:
                real = self.griffin_lim.stft(full_precision(sounds), log_mels.shape[2]).abs()
                least = torch.full_like(real, QUIET)
                gaps = torch.maximum(logs, least.log()) - torch.maximum(real, least).log()
                return per_sample(gaps.abs() * self.weights)
            magnitudes = self.griffin_lim.magnitudes(log_mels, DECONVOLUTIONS, logs.exp())
            retrieved = self.griffin_lim.retrieved(magnitudes, self.config.retrievals)
            return self.corrected(retrieved, log_mels)

    def log_magnitudes(self, log_mels: Tensor) -> Tensor:
        """(b, m, t) -> (b, t, f), as predicted."""
        offsets = self.offsets(log_mels)
        with without_autocast(log_mels):
            known = self.griffin_lim.magnitudes(log_mels, DECONVOLUTIONS)
            return known.clamp_min(SMALLEST).log() + offsets

    def offsets(self, log_mels: Tensor) -> Tensor:
        """(b, m, t) -> (b, t, f): what to add to log-magnitudes."""
        return full_precision(self.out(self.backbone((log_mels - MEAN) / STD)))

    def corrected(self, sounds: Tensor, log_mels: Tensor) -> Tensor:
        """Sounds (b, n) with log-mels closer to these."""
        wanted = log_mels.mT.contiguous()
        weights = self.griffin_lim.envelope(wanted.shape[1])
        previous: Tensor | None = None
        for _ in range(self.config.corrections):
            spectrum = self.griffin_lim.stft(sounds, wanted.shape[1])
            ahead = spectrum if previous is None else beyond(previous, spectrum, AHEAD)
            magnitudes = power(ahead[..., self.mel.first : self.mel.last]).sqrt()
            present = self.mel.to_mel(magnitudes).clamp_min(self.mel.floor).log()
            gain = (PULL * (wanted - present)).clamp(-LARGEST, LARGEST) @ self.spread
            sounds = self.griffin_lim.to_sound(scaled(ahead, gain.exp()), weights)
            previous = spectrum
        return sounds

    @torch.no_grad()
    def copy(self, sounds: Tensor, invert: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Sounds (b, n) or (n,) through log-mels, of the same length; `invert` is another way back
        from log-mels."""
        batch = sounds if sounds.ndim == 2 else sounds[None]
        hop, length = self.config.hop_length, batch.shape[1]
        whole = F.pad(batch.to(self.spread.device), (0, -length % hop))
        copies = (invert or self)(self.mel(whole))[:, :length]
        return copies if sounds.ndim == 2 else copies[0]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv1d, nn.Linear)):
        nn.init.trunc_normal_(module.weight, std=0.02)
        assert module.bias is not None
        nn.init.zeros_(module.bias)


Model = Vocoder
