"""Vocos (arXiv 2306.00814), a vocoder of log-mels, with the names of its published weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.griffin_lim import envelope, istft
from quintet.nn.precision import full_precision, without_autocast


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
    shapes = (n for n in expected.keys() & tensors if expected[n] != tensors[n].shape)
    for what, unfit in {
        "lacks": expected.keys() - tensors,
        "has unknown": tensors.keys() - expected,
        "has misshapen": shapes,
    }.items():
        if names := sorted(unfit):
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
