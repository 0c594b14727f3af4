"""Vocoders from log-mel spectrograms: Griffin-Lim and Vocos.

Shapes: b sounds of n samples, t frames, f frequencies, m mel bins.

Griffin-Lim with momentum is Perraudin, Balazs and Sondergaard's (WASPAA 2013). Its initial phases
are phase gradients of the magnitudes (Prusa, Balazs and Sondergaard, TASLP 2017) integrated over
time: deterministic, and half as many iterations suffice as from random phases. Vocos is arXiv
2306.00814, with the parameter names of its published weights.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.spectrogram import LogMel

HANN = 0.25645
"""Time-frequency ratio of the Gaussian closest to a Hann window, per squared window length."""
MIN_MAGNITUDE = 1e-6
"""Magnitudes below this fraction of the largest do not define phases."""


def overlap_add(windows: Tensor, hop: int) -> Tensor:
    """(b, t, size) -> (b, (t - 1) hop + size)."""
    count, size = windows.shape[1:]
    if size % hop:
        whole = (1, (count - 1) * hop + size)
        return F.fold(windows.mT, whole, (1, size), stride=(1, hop))[:, 0, 0]
    # Pieces of a hop, added where they are: on a CPU a tenth of the time of a fold.
    pieces = windows.unflatten(-1, (-1, hop))
    total = windows.new_zeros(len(windows), count + size // hop - 1, hop)
    for place, piece in enumerate(pieces.unbind(2)):
        total[:, place : place + count] += piece
    return total.flatten(1)


def power(spectrum: Tensor) -> Tensor:
    """Squares of magnitudes; on a CPU `abs` of complex numbers takes four times as long."""
    return spectrum.real.square() + spectrum.imag.square()


def scaled(spectrum: Tensor, factors: Tensor) -> Tensor:
    """Times real factors, which `*` would first make complex."""
    return torch.view_as_complex(torch.view_as_real(spectrum) * factors[..., None])


def beyond(previous: Tensor, spectrum: Tensor, momentum: float) -> Tensor:
    """Past a spectrum, by a share of the way to it. `lerp` of complex numbers takes longer."""
    parts = torch.view_as_real(previous), torch.view_as_real(spectrum)
    return torch.view_as_complex(torch.lerp(*parts, 1 + momentum))


def envelope(window: Tensor, count: int, hop: int) -> Tensor:
    """(1, (count - 1) hop + n_fft): sums of the squares of windows that overlap."""
    squares = window.square().expand(1, count, len(window))
    return overlap_add(squares, hop).clamp_min(1e-8)


def istft(spectrum: Tensor, window: Tensor, hop: int, weights: Tensor) -> Tensor:
    """(b, t, f) -> (b, (t - 1) hop + n_fft): the least-squares inverse; `weights` is the envelope,
    which is the same for all sounds of a length."""
    return overlap_add(torch.fft.irfft(spectrum, len(window)) * window, hop) / weights


def running_sum(values: Tensor) -> Tensor:
    """(b, t, …): sums over the second axis up to each place, by doubling: unlike `cumsum` the same
    every time on a GPU, and exact to more digits."""
    step = 1
    while step < values.shape[1]:
        values = torch.cat((values[:, :step], values[:, step:] + values[:, :-step]), 1)
        step *= 2
    return values


class GriffinLim(nn.Module):
    """Log-mels (b, m, t) of a `LogMel` -> sounds (b, n), independent of each other."""

    def __init__(self, mel: LogMel, iterations: int = 32, momentum: float = 0.99) -> None:
        super().__init__()
        self.mel, self.iterations, self.momentum = mel, iterations, momentum

    @torch.no_grad()
    def forward(self, log_mels: Tensor, length: int | None = None) -> Tensor:
        """`length` is in samples; frames define it only up to a hop."""
        with without_autocast(log_mels):
            magnitudes = self.magnitudes(full_precision(log_mels))
            sound = self.retrieved(magnitudes, self.iterations)
            short = 0 if length is None else max(0, length - sound.shape[1])
            return F.pad(sound, (0, short))[:, :length]

    def retrieved(self, magnitudes: Tensor, iterations: int) -> Tensor:
        """(b, t, f) -> (b, (t - 1) hop): sounds with about these magnitudes."""
        count = magnitudes.shape[1]
        weights = self.envelope(count)
        spectrum = torch.polar(magnitudes, self.initial_phases(magnitudes))
        previous = torch.zeros_like(spectrum)
        for _ in range(iterations):
            # Momentum of sounds would do the same, but its rounding is heard where it is quiet.
            projected = self.stft(self.to_sound(spectrum, weights), count)
            ahead = beyond(previous, projected, self.momentum)
            spectrum = scaled(ahead, magnitudes * power(ahead).clamp_min(1e-24).rsqrt())
            previous = projected
        return self.to_sound(spectrum, weights)

    def stft(self, sound: Tensor, count: int) -> Tensor:
        half, hop = self.mel.n_fft // 2, self.mel.hop_length
        rest = (count - 1) * hop + self.mel.n_fft - half - sound.shape[1]
        pieces = F.pad(sound, (half, rest)).unfold(-1, self.mel.n_fft, hop)
        return torch.fft.rfft(pieces * self.mel.window)

    def envelope(self, count: int) -> Tensor:
        """What `to_sound` divides by, for sounds of so many frames."""
        return envelope(self.mel.window, count, self.mel.hop_length)

    def to_sound(self, spectrum: Tensor, weights: Tensor) -> Tensor:
        """(b, t, f) -> (b, (t - 1) hop), without the padding of half a window."""
        half = self.mel.n_fft // 2
        count = (spectrum.shape[1] - 1) * self.mel.hop_length
        sound = istft(spectrum, self.mel.window, self.mel.hop_length, weights)
        return sound[:, half : half + max(1, count)]

    def magnitudes(
        self, log_mels: Tensor, iterations: int = 32, start: Tensor | None = None
    ) -> Tensor:
        """(b, m, t) -> (b, t, f): non-negative spectra with these mels, near to `start`.

        Richardson-Lucy iterations (1972, 1974) from a smooth spectrum keep it smooth and positive.
        Least squares, dominated by the loudest mels, is less accurate.
        """
        area = self.mel.bank.sum(0)
        bank = self.mel.bank / area
        mels = log_mels.mT.exp() / area
        share = bank.sum(1).clamp_min(1e-12)
        if start is None:
            spectra = mels @ bank.T / share
        else:
            spectra = start[..., self.mel.first : self.mel.last] ** self.mel.power
        for _ in range(iterations):
            spectra = spectra * ((mels / (spectra @ bank).clamp_min(1e-20)) @ bank.T) / share
        above = self.mel.n_fft // 2 + 1 - self.mel.last
        return F.pad(spectra ** (1 / self.mel.power), (self.mel.first, above))

    def initial_phases(self, magnitudes: Tensor) -> Tensor:
        """Phases integrated over frames, from the slope of the log-spectrum over frequency."""
        size, hop = self.mel.n_fft, self.mel.hop_length
        count, bins = magnitudes.shape[1:]
        frame = torch.arange(count, device=magnitudes.device)[:, None]
        steady = frame * torch.arange(bins, device=magnitudes.device) * hop % size
        least = (MIN_MAGNITUDE * magnitudes.amax((1, 2), keepdim=True)).clamp_min(1e-30)
        logs = torch.maximum(magnitudes, least).log()
        logs = torch.cat((logs[..., :1], logs, logs[..., -1:]), -1)
        advance = (logs[..., 2:] - logs[..., :-2]) * (hop / (2 * HANN * size))
        advance = (advance + F.pad(advance, (0, 0, 1, 0))[:, :-1]) / 2
        return steady * (2 * math.pi / size) + running_sum(advance)


# Vocos.


@dataclass(frozen=True, kw_only=True)
class VocosConfig:
    sample_rate: int
    """Sample rate in Hz."""
    n_mels: int
    """Mel bins of the input."""
    dim: int
    """Width of the network."""
    hidden: int
    """Width inside each block."""
    layers: int
    """Number of blocks."""
    n_fft: int
    """Samples of the FFT."""
    hop_length: int
    """Samples between frames."""
    centred: bool = True
    """Centred frames: t frames give t - 1 hops of sound."""


class VocosBlock(nn.Module):
    """A ConvNeXt block along time: (b, d, t) -> (b, d, t)."""

    def __init__(self, dim: int, hidden: int, scale: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, hidden)
        self.pwconv2 = nn.Linear(hidden, dim)
        self.gamma = nn.Parameter(torch.full((dim,), scale))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.dwconv(x).mT)
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(hidden)))).mT


class VocosBackbone(nn.Module):
    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.embed = nn.Conv1d(config.n_mels, config.dim, 7, padding=3)
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        blocks = (
            VocosBlock(config.dim, config.hidden, 1 / config.layers) for _ in range(config.layers)
        )
        self.convnext = nn.ModuleList(blocks)
        self.final_layer_norm = nn.LayerNorm(config.dim, eps=1e-6)

    def forward(self, log_mels: Tensor) -> Tensor:
        """(b, m, t) -> (b, t, d)."""
        x = self.norm(self.embed(log_mels).mT).mT
        for block in self.convnext:
            x = block(x)
        return self.final_layer_norm(x.mT)


class VocosHead(nn.Module):
    """Hidden states (b, t, d) -> sounds (b, n), by the inverse STFT of magnitudes and phases."""

    window: Tensor

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.out = nn.Linear(config.dim, config.n_fft + 2)
        self.hop_length = config.hop_length
        self.trim = (config.n_fft if config.centred else config.n_fft - config.hop_length) // 2
        self.register_buffer("window", torch.hann_window(config.n_fft), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        log_magnitude, phase = full_precision(self.out(hidden)).chunk(2, -1)
        with without_autocast(hidden):
            magnitude = log_magnitude.exp().clamp_max(100)  # as in its training
            weights = envelope(self.window, hidden.shape[1], self.hop_length)
            sound = istft(torch.polar(magnitude, phase), self.window, self.hop_length, weights)
            return sound[:, self.trim : sound.shape[1] - self.trim]


class Vocos(nn.Module):
    """Log-mels (b, m, t), with the features of its training, -> sounds (b, n)."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = VocosBackbone(config)
        self.head = VocosHead(config)

    def forward(self, log_mels: Tensor) -> Tensor:
        return self.head(self.backbone(log_mels))


DERIVED = ("feature_extractor.", "head.istft.")
"""Windows and filters in the published weights, defined by the configuration."""


def load_vocos(folder: str | Path) -> Vocos:
    """Frozen Vocos from model.safetensors and config.json (the published one, as JSON)."""
    path = Path(folder)
    config = read_vocos_config(path / "config.json")
    weights = path / "model.safetensors"
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{weights} cannot be read ({error}): give a folder with Vocos weights in"
            " model.safetensors"
        ) from error
    tensors = {name: value for name, value in tensors.items() if not name.startswith(DERIVED)}
    with torch.device("meta"):
        expected = {name: value.shape for name, value in Vocos(config).state_dict().items()}
    missing, unexpected = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    shapes = sorted(n for n in expected.keys() & tensors if expected[n] != tensors[n].shape)
    for names, what in (
        (missing, "lacks"),
        (unexpected, "has unknown"),
        (shapes, "has misshapen"),
    ):
        if names:
            raise ValueError(
                f"{weights} {what} {len(names)} tensors of Vocos ({', '.join(names[:8])}): is"
                " config.json the one that came with these weights?"
            )
    model = Vocos(config)
    model.load_state_dict({name: value.float() for name, value in tensors.items()})
    return model.requires_grad_(False).eval()


def read_vocos_config(path: Path) -> VocosConfig:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
        features, backbone, head = (
            config[part]["init_args"] for part in ("feature_extractor", "backbone", "head")
        )
        return VocosConfig(
            sample_rate=int(features["sample_rate"]),
            n_mels=int(backbone["input_channels"]),
            dim=int(backbone["dim"]),
            hidden=int(backbone["intermediate_dim"]),
            layers=int(backbone["num_layers"]),
            n_fft=int(head["n_fft"]),
            hop_length=int(head["hop_length"]),
            centred=head.get("padding", "same") == "center",
        )
    except (OSError, ValueError, TypeError) as error:
        reason = str(error)
    except KeyError as error:
        reason = f"it lacks {error}"
    raise ValueError(
        f"{path} is not a Vocos configuration ({reason}): write the published config.yaml as JSON,"
        " with init_args of feature_extractor, backbone and head"
    )
