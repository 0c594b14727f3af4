"""From log-mel spectrograms back to sound: by search (Griffin-Lim), or by a network (Vocos).

Shapes: b sounds of n samples, t frames, f frequencies, m mel bins.

Griffin-Lim with momentum is Perraudin, Balazs and Sondergaard's (WASPAA 2013). It begins with
phases that follow from the magnitudes (phase gradients, Prusa, Balazs and Sondergaard, TASLP 2017),
summed along time: half as many iterations then do as from random ones, and nothing is drawn. Vocos
is arXiv 2306.00814, with the names of its published weights.
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

from quintet.nn.quantise import full_precision, without_autocast
from quintet.nn.spectrogram import LogMel

HANN = 0.25645
"""What the width of a Gaussian most like a Hann window is, in units of the window squared."""
FAINT = 1e-6
"""Magnitudes so far below the loudest one say nothing of phases."""


def overlap_add(pieces: Tensor, hop: int) -> Tensor:
    """(b, t, size) -> (b, (t - 1) hop + size): each a hop later than the one before."""
    count, size = pieces.shape[1:]
    whole = (1, (count - 1) * hop + size)
    return F.fold(pieces.mT, whole, (1, size), stride=(1, hop))[:, 0, 0]


def from_frames(spectrum: Tensor, window: Tensor, hop: int) -> Tensor:
    """(b, t, f) -> (b, (t - 1) hop + n_fft): the sound whose transform is nearest to this."""
    size = len(window)
    pieces = torch.fft.irfft(spectrum, size) * window
    weights = overlap_add(window.square().expand(1, pieces.shape[1], size), hop)
    return overlap_add(pieces, hop) / weights.clamp_min(1e-8)


class GriffinLim(nn.Module):
    """Log-mels (b, m, t) of a `LogMel` -> sounds (b, n), each of which depends on its own alone."""

    def __init__(self, mel: LogMel, iterations: int = 32, momentum: float = 0.99) -> None:
        super().__init__()
        self.mel, self.iterations, self.momentum = mel, iterations, momentum

    @torch.no_grad()
    def forward(self, log_mels: Tensor, length: int | None = None) -> Tensor:
        """`length` samples where given: frames alone tell it only up to a hop."""
        with without_autocast(log_mels):
            magnitudes = self.magnitudes(full_precision(log_mels))
            spectrum = torch.polar(magnitudes, self.first_phases(magnitudes))
            before = torch.zeros_like(spectrum)
            for _ in range(self.iterations):
                found = self.to_frames(self.to_sound(spectrum), magnitudes.shape[1])
                ahead = found + self.momentum * (found - before)
                spectrum = magnitudes * ahead / ahead.abs().clamp_min(1e-12)
                before = found
            sound = self.to_sound(spectrum)
            short = 0 if length is None else max(0, length - sound.shape[1])
            return F.pad(sound, (0, short))[:, :length]

    def to_frames(self, sound: Tensor, count: int) -> Tensor:
        half, hop = self.mel.n_fft // 2, self.mel.hop
        rest = (count - 1) * hop + self.mel.n_fft - half - sound.shape[1]
        pieces = F.pad(sound, (half, rest)).unfold(-1, self.mel.n_fft, hop)
        return torch.fft.rfft(pieces * self.mel.window)

    def to_sound(self, spectrum: Tensor) -> Tensor:
        """(b, t, f) -> (b, (t - 1) hop): without what only half a window has seen."""
        half = self.mel.n_fft // 2
        count = (spectrum.shape[1] - 1) * self.mel.hop
        return from_frames(spectrum, self.mel.window, self.mel.hop)[:, half : half + max(1, count)]

    def magnitudes(self, log_mels: Tensor, iterations: int = 32) -> Tensor:
        """(b, m, t) -> (b, t, f): spectra, never negative, that have these mels.

        There are many; multiplied step by step (Richardson 1972, Lucy 1974) from a smooth one, they
        stay smooth and above zero. Least squares, which only the loudest mels count in, is farther
        from the truth.
        """
        area = self.mel.bank.sum(0)
        bank = self.mel.bank / area
        mels = log_mels.mT.exp() / area
        share = bank.sum(1).clamp_min(1e-12)
        found = mels @ bank.T / share
        for _ in range(iterations):
            found = found * ((mels / (found @ bank).clamp_min(1e-20)) @ bank.T) / share
        above = self.mel.n_fft // 2 + 1 - self.mel.last
        return F.pad(found ** (1 / self.mel.power), (self.mel.first, above))

    def first_phases(self, magnitudes: Tensor) -> Tensor:
        """Each frequency turns on from frame to frame, by what the slope of its spectrum says."""
        size, hop = self.mel.n_fft, self.mel.hop
        count, bins = magnitudes.shape[1:]
        frame = torch.arange(count, device=magnitudes.device)[:, None]
        steady = frame * torch.arange(bins, device=magnitudes.device) * hop % size
        least = (FAINT * magnitudes.amax((1, 2), keepdim=True)).clamp_min(1e-30)
        logs = F.pad(torch.maximum(magnitudes, least).log(), (1, 1), mode="replicate")
        turn = (logs[..., 2:] - logs[..., :-2]) * (hop / (2 * HANN * size))
        turn = (turn + F.pad(turn, (0, 0, 1, 0))[:, :-1]) / 2
        return steady * (2 * math.pi / size) + turn.cumsum(1)


# Vocos.


@dataclass(frozen=True, kw_only=True)
class VocosConfig:
    rate: int
    """Samples a second."""
    bins: int
    """Mel bins that it reads."""
    dim: int
    """Width of the network."""
    hidden: int
    """Width inside each block."""
    layers: int
    """Number of blocks."""
    n_fft: int
    """Samples of a transform."""
    hop: int
    """Samples between frames."""
    centred: bool = True
    """Whether t frames make t - 1 hops of sound, the first frame being centred on its start."""


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
        rows = self.norm(self.dwconv(x).mT)
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(rows)))).mT


class VocosBackbone(nn.Module):
    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.embed = nn.Conv1d(config.bins, config.dim, 7, padding=3)
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
    """Rows (b, t, d) -> sounds (b, n): magnitudes and phases of every frame, transformed back."""

    window: Tensor

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.out = nn.Linear(config.dim, config.n_fft + 2)
        self.hop = config.hop
        self.trim = (config.n_fft if config.centred else config.n_fft - config.hop) // 2
        self.register_buffer("window", torch.hann_window(config.n_fft), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        size, phase = full_precision(self.out(rows)).chunk(2, -1)
        with without_autocast(rows):
            magnitude = size.exp().clamp_max(100)  # as in training: a safeguard against explosion
            sound = from_frames(torch.polar(magnitude, phase), self.window, self.hop)
            return sound[:, self.trim : sound.shape[1] - self.trim]


class Vocos(nn.Module):
    """Log-mels (b, m, t), made as those that it was trained on, -> sounds (b, n)."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = VocosBackbone(config)
        self.head = VocosHead(config)

    def forward(self, log_mels: Tensor) -> Tensor:
        return self.head(self.backbone(log_mels))


DERIVED = ("feature_extractor.", "head.istft.")
"""Published weights also hold windows and filters, which the configuration says already."""


def load_vocos(folder: str | Path) -> Vocos:
    """From config.json (the published configuration, as JSON) and model.safetensors; frozen."""
    path = Path(folder)
    config = read_vocos_config(path / "config.json")
    weights = path / "model.safetensors"
    try:
        found = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{weights} cannot be read ({error}): give a folder with the weights of Vocos as"
            " safetensors"
        ) from error
    found = {name: value for name, value in found.items() if not name.startswith(DERIVED)}
    with torch.device("meta"):
        wanted = Vocos(config).state_dict()
    lacking, surplus = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    unlike = sorted(n for n in wanted.keys() & found.keys() if wanted[n].shape != found[n].shape)
    for names, what in ((lacking, "lacks"), (surplus, "has unknown"), (unlike, "has misshapen")):
        if names:
            raise ValueError(
                f"{weights} {what} {len(names)} tensors of Vocos ({', '.join(names[:8])}): is"
                " config.json the one that came with these weights?"
            )
    model = Vocos(config)
    model.load_state_dict({name: value.float() for name, value in found.items()})
    return model.requires_grad_(False).eval()


def read_vocos_config(path: Path) -> VocosConfig:
    try:
        about: Any = json.loads(path.read_text(encoding="utf-8"))
        features, backbone, head = (
            about[part]["init_args"] for part in ("feature_extractor", "backbone", "head")
        )
        return VocosConfig(
            rate=int(features["sample_rate"]),
            bins=int(backbone["input_channels"]),
            dim=int(backbone["dim"]),
            hidden=int(backbone["intermediate_dim"]),
            layers=int(backbone["num_layers"]),
            n_fft=int(head["n_fft"]),
            hop=int(head["hop_length"]),
            centred=head.get("padding", "same") == "center",
        )
    except (OSError, ValueError, TypeError) as error:
        reason = str(error)
    except KeyError as error:
        reason = f"it lacks {error}"
    raise ValueError(
        f"{path} is no configuration of Vocos ({reason}): write the published config.yaml as JSON,"
        " with init_args of feature_extractor, backbone and head"
    )
