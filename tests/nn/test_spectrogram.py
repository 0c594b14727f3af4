"""The log-mel spectrogram against librosa's, against its definition, and against padding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.mel import hz_to_mel, mel_filterbank, mel_to_hz
from quintet.nn.spectrogram import LogMel, band_mask


def chirp() -> np.ndarray:
    """A quarter of a second at 24 kHz: a low tone and a rising one."""
    t = np.arange(6000) / 24000
    return 0.2 * np.sin(2 * np.pi * 300 * t) + 0.1 * np.sin(2 * np.pi * 5000 * t * (1 + t))


def log_mel(wav: np.ndarray, rate: int, n_fft: int, hop: int, bins: int, low: float, high: float):
    """The definition, step by step in float64, with nothing of what it is compared with."""
    padded = np.pad(wav, n_fft // 2)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    frames = [
        np.abs(np.fft.fft(window * padded[t : t + n_fft])[: n_fft // 2 + 1]) ** 2
        for t in range(0, len(padded) - n_fft + 1, hop)
    ]

    def mel(hz: float) -> float:
        return 3 * hz / 200 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)

    def hertz(mel: float) -> float:
        return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    corners = [hertz(m) for m in np.linspace(mel(low), mel(high), bins + 2)]
    bank = np.zeros((bins, n_fft // 2 + 1))
    for row, (left, middle, right) in enumerate(zip(corners, corners[1:], corners[2:])):
        for column in range(n_fft // 2 + 1):
            hz = column * rate / n_fft
            up, down = (hz - left) / (middle - left), (right - hz) / (right - middle)
            bank[row, column] = max(0.0, min(up, down)) * 2 / (right - left)
    return np.log(np.maximum(bank @ np.stack(frames, 1), 1e-10))


@pytest.mark.parametrize(
    ("rate", "n_fft", "hop", "bins", "low", "high"),
    [(16000, 1024, 160, 64, 30.0, 8000.0), (24000, 1024, 256, 100, 0.0, 12000.0)],
)
def test_it_is_the_log_mel_of_its_definition(rate, n_fft, hop, bins, low, high) -> None:
    wav = np.random.default_rng(0).standard_normal(4000) * 0.1
    actual = LogMel(rate, n_fft, hop, bins, low, high)(torch.from_numpy(wav[None]).float())[0]
    expected = log_mel(wav, rate, n_fft, hop, bins, low, high)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-4)


def test_it_is_what_librosa_gave() -> None:
    """librosa 0.11: melspectrogram(y, sr=24000, n_fft=1024, hop_length=256, n_mels=100, power=1),
    its logarithm at four bins and three frames."""
    seen = [
        [-2.2752234342, -2.9684121215, -2.4347728429],
        [-1.4097530222, -2.2224904287, -1.5181510146],
        [-6.7615507326, -7.4526835425, -5.6705143646],
        [-6.3127623187, -7.0059171717, -5.9105077285],
    ]
    mel = LogMel(24000, 1024, 256, 100, power=1.0).double()
    actual = mel(torch.from_numpy(chirp()[None]))[0]
    assert actual.shape == (100, 24)
    picked = actual[[0, 10, 50, 99]][:, [0, 1, 23]].numpy()
    np.testing.assert_allclose(picked, seen, atol=1e-4)
    bank = mel_filterbank(24000, 1024, 100, 0.0, 12000.0)
    assert bank.sum() == pytest.approx(4.264108166951827, rel=1e-12)
    assert (bank[50].argmax(), bank[50].max()) == (90, pytest.approx(0.012807677472633729))


def test_it_is_librosas() -> None:
    librosa = pytest.importorskip("librosa", reason="a second opinion that is not installed")
    wav = np.random.default_rng(1).standard_normal((2, 12000)).astype(np.float32) * 0.2
    actual = LogMel(16000, 2048, 160, 128, 30.0)(torch.from_numpy(wav))
    options = {"sr": 16000, "n_fft": 2048, "hop_length": 160, "n_mels": 128, "fmin": 30.0}
    expected = np.log(librosa.feature.melspectrogram(y=wav, **options))
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-4)


def test_autocast_changes_nothing() -> None:
    mel, wav = LogMel(16000, 512, 160, 32), torch.randn(2, 4000)
    plain = mel(wav)
    with torch.autocast("cpu", torch.bfloat16):
        assert mel(wav).equal(plain)
    assert plain.dtype == torch.float32
    assert not mel.state_dict()


@given(length=st.integers(1, 5000), pad=st.integers(0, 3000))
@settings(deadline=None, max_examples=30)
def test_padding_changes_no_frame(length: int, pad: int) -> None:
    mel = LogMel(16000, 512, 160, 32)
    wav = torch.randn(1, length, generator=torch.Generator().manual_seed(length))
    alone = mel(wav)
    assert alone.shape[2] == mel.frames(length) == int(mel.frames(torch.tensor([length])))
    padded = mel(torch.nn.functional.pad(wav, (0, pad)))[..., : alone.shape[2]]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


def test_a_gradient_passes_silence_too() -> None:
    wav = torch.zeros(1, 2000)
    wav[:, :700] = torch.randn(700)
    wav.requires_grad_()
    LogMel(16000, 256, 64, 16, power=1.0)(wav).sum().backward()
    assert wav.grad is not None
    assert wav.grad.isfinite().all()
    assert wav.grad.abs().sum() > 0


def test_more_bins_than_the_transform_can_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="raise n_fft"):
        LogMel(16000, 256, 160, 128)


@given(st.floats(0, 12000))
def test_the_mel_scale_comes_back(hz: float) -> None:
    assert float(mel_to_hz(hz_to_mel(np.array(hz)))) == pytest.approx(hz, abs=1e-6)


@given(extent=st.integers(1, 60), share=st.floats(0, 0.9), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=50)
def test_bands_lie_inside_of_what_is_valid(extent: int, share: float, seed: int) -> None:
    bands = torch.rand(5, 2, 2, generator=torch.Generator().manual_seed(seed))
    bands[..., 0] *= share
    extents = torch.tensor([extent, extent, 1, 60, 30])
    hidden = band_mask(bands, extents, 60)
    assert hidden.shape == (5, 60)
    assert not (hidden & (torch.arange(60) >= extents[:, None])).any()
    assert (hidden.sum(1) <= 2 * (extents * share + 1)).all()
    longer = band_mask(bands, extents, 80)
    assert longer[:, :60].equal(hidden)


def test_bands_are_of_every_width_and_at_every_place() -> None:
    bands = torch.rand(4000, 1, 2) * torch.tensor([0.25, 1.0])
    hidden = band_mask(bands, 20, 20)
    assert set(hidden.sum(1).tolist()) == {0, 1, 2, 3, 4, 5}
    assert hidden.any(0).all()
