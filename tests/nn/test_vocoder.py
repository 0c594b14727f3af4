import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quintet.nn.griffin_lim import GriffinLim
from quintet.nn.spectrogram import LogMel
from quintet.nn.vocos import Vocos, VocosConfig, load_vocos
from quintet.speech.voices import compose, speak

RATE = 24_000


def speech(rate: int = RATE, seconds: float = 1.0) -> Tensor:
    """Three voices (3, n)."""
    return torch.from_numpy(
        np.stack([speak(compose(n), rate)[: round(seconds * rate)] for n in (1, 2, 5)])
    )


def convergence(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def mel_convergence(mel: LogMel, found: Tensor, wanted: Tensor) -> float:
    """Of mel magnitudes, whatever the power they are summed in."""
    return convergence(*((mel(x) / mel.power).exp() for x in (found, wanted)))


@pytest.mark.by_default("8000-*", "16000-*", "24000-*-1.0-*")
@pytest.mark.parametrize(
    ("rate", "n_fft", "hop", "bins", "power", "bound"),
    [
        (24_000, 1024, 256, 100, 1.0, 0.08),
        (24_000, 1024, 256, 100, 2.0, 0.08),
        (16_000, 640, 160, 80, 2.0, 0.08),
        (22_050, 1024, 256, 80, 1.0, 0.1),
        (44_100, 2048, 441, 128, 1.0, 0.08),
        (8000, 256, 64, 40, 1.0, 0.1),
    ],
)
def test_speech_survives_the_round_trip(
    rate: int, n_fft: int, hop: int, bins: int, power: float, bound: float
) -> None:
    mel = LogMel(rate, n_fft, hop, bins, power=power, floor=1e-5)
    sound = speech(rate)
    actual = GriffinLim(mel)(mel(sound), sound.shape[1])
    assert actual.shape == sound.shape
    assert actual.isfinite().all()
    assert actual.abs().max() < 1.5
    assert mel_convergence(mel, actual, sound) < bound


def test_mels_that_begin_above_and_end_below_are_inverted_between() -> None:
    mel = LogMel(RATE, 1024, 256, 60, 100.0, 8000.0, power=1.0, floor=1e-5)
    sound = speech()
    actual = GriffinLim(mel)(mel(sound), sound.shape[1])
    assert mel_convergence(mel, actual, sound) < 0.12
    magnitudes = GriffinLim(mel).magnitudes(mel(sound))
    hz = torch.linspace(0, RATE / 2, 513)
    assert not magnitudes[..., (hz < 90) | (hz > 8100)].any()


def test_magnitudes_are_not_negative_and_have_the_mels_asked_for() -> None:
    mel = LogMel(RATE, 1024, 256, 100, power=1.0, floor=1e-5)
    expected = mel(speech())
    actual = GriffinLim(mel).magnitudes(expected)
    assert (actual >= 0).all()
    again = mel.to_mel(actual[..., mel.first : mel.last]).mT
    assert convergence(again, expected.exp()) < 1e-3
    assert ((again.clamp_min(mel.floor).log() - expected).abs()).mean() < 0.02


def test_more_iterations_come_nearer() -> None:
    mel = LogMel(RATE, 1024, 256, 100, power=1.0, floor=1e-5)
    sound = speech(seconds=0.5)
    log_mels = mel(sound)
    actual = [
        mel_convergence(mel, GriffinLim(mel, count)(log_mels, sound.shape[1]), sound)
        for count in (0, 8, 32)
    ]
    assert actual[0] > 2 * actual[1] > 2.5 * actual[2]


def test_a_sound_is_the_same_alone_and_in_a_batch_and_every_time() -> None:
    mel = LogMel(RATE, 512, 128, 60, power=1.0, floor=1e-5)
    vocoder = GriffinLim(mel, 8)
    log_mels = mel(speech(seconds=0.4))
    both = vocoder(log_mels)
    assert torch.equal(both, vocoder(log_mels))
    for index, alone in enumerate(log_mels):
        assert torch.allclose(vocoder(alone[None])[0], both[index], atol=1e-4)


def test_a_tone_keeps_its_pitch() -> None:
    mel = LogMel(RATE, 1024, 256, 100, power=1.0, floor=1e-5)
    tone = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(RATE) / RATE)
    actual = GriffinLim(mel)(mel(tone[None]), RATE)[0]
    assert int(torch.fft.rfft(actual).abs().argmax()) == pytest.approx(440, abs=6)


def test_silence_stays_silent_and_lengths_are_as_asked() -> None:
    mel = LogMel(RATE, 1024, 256, 100, power=1.0, floor=1e-5)
    vocoder = GriffinLim(mel, 4)
    silent = mel(torch.zeros(1, 5000))
    assert vocoder(silent).abs().max() < 1e-3
    assert vocoder(silent).shape == (1, 5000 // 256 * 256)
    for length in (1, 4900, 5000, 5119):
        assert vocoder(silent, length).shape == (1, length)
    assert vocoder(silent[..., :1]).isfinite().all()


# Vocos.

SMALL = VocosConfig(
    sample_rate=8000, n_mels=10, dim=16, hidden=24, layers=2, n_fft=64, hop_length=16
)


def published(config: VocosConfig) -> dict[str, object]:
    """A configuration as it comes with the weights."""
    return {
        "feature_extractor": {
            "init_args": {"sample_rate": config.sample_rate, "n_mels": config.n_mels}
        },
        "backbone": {
            "class_path": "vocos.models.VocosBackbone",
            "init_args": {
                "input_channels": config.n_mels,
                "dim": config.dim,
                "intermediate_dim": config.hidden,
                "num_layers": config.layers,
            },
        },
        "head": {
            "init_args": {
                "dim": config.dim,
                "n_fft": config.n_fft,
                "hop_length": config.hop_length,
                "padding": "center" if config.centred else "same",
            }
        },
    }


def save(model: Vocos, folder: Path) -> Path:
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    extra = {"head.istft.window": torch.hann_window(64), "feature_extractor.fb": torch.ones(2)}
    save_file(weights | extra, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(published(model.config)))
    return folder


@pytest.mark.parametrize("centred", [True, False])
def test_vocos_comes_back_from_its_folder(tmp_path: Path, centred: bool) -> None:
    config = VocosConfig(**{**vars(SMALL), "centred": centred})
    model = Vocos(config).eval()
    loaded = load_vocos(save(model, tmp_path))
    assert loaded.config == config
    log_mels = torch.randn(2, 10, 9)
    with torch.no_grad():
        actual = loaded(log_mels)
        assert torch.equal(actual, model(log_mels))
    assert actual.shape == (2, (8 if centred else 9) * 16)
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


def test_weights_have_the_published_names() -> None:
    block = ["dwconv.weight", "dwconv.bias", "norm.weight", "norm.bias", "gamma"]
    block += [f"pwconv{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")]
    names = [f"backbone.convnext.{n}.{name}" for n in (0, 1) for name in block]
    layers = ("backbone.embed", "backbone.norm", "backbone.final_layer_norm", "head.out")
    names += [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert sorted(Vocos(SMALL).state_dict()) == sorted(names)


def test_the_published_size_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        model = Vocos(
            VocosConfig(
                sample_rate=24000,
                n_mels=100,
                dim=512,
                hidden=1536,
                layers=8,
                n_fft=1024,
                hop_length=256,
            )
        )
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(13.5e6, rel=0.01)


def test_the_head_is_the_inverse_transform_of_magnitude_and_phase() -> None:
    model = Vocos(SMALL)
    rows = torch.randn(2, 9, 16)
    with torch.no_grad():
        size, phase = model.head.out(rows).mT.chunk(2, 1)
        spectrum = torch.polar(size.exp(), phase)
        window = torch.hann_window(64)
        expected = torch.istft(spectrum, 64, 16, window=window, center=True)
        assert torch.allclose(model.head(rows), expected, atol=1e-5)


def test_loud_magnitudes_are_bounded() -> None:
    head = Vocos(SMALL).head
    torch.nn.init.constant_(head.out.bias, 50.0)
    assert head(torch.zeros(1, 9, 16)).isfinite().all()


def test_a_folder_that_is_no_vocos_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is not a Vocos configuration"):
        load_vocos(tmp_path)
    save(Vocos(SMALL), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for change, message in (
        ({"backbone.norm.bias": None}, r"lacks 1 tensors of Vocos \(backbone\.norm\.bias\)"),
        ({"backbone.other": torch.ones(1)}, r"has unknown 1 .*backbone\.other"),
        ({"head.out.bias": torch.ones(3)}, r"has misshapen 1 .*head\.out\.bias"),
    ):
        changed = {n: v for n, v in (weights | change).items() if v is not None}
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            load_vocos(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        load_vocos(tmp_path)
    (tmp_path / "config.json").write_text('{"backbone": {}}')
    with pytest.raises(ValueError, match="lacks 'feature_extractor'"):
        load_vocos(tmp_path)
