"""Log-mel spectrogram of an audio file as an image."""

import io
import wave

import numpy as np
import numpy.typing as npt

from quintet.mel import Floats, hz_to_mel, mel_filterbank, mel_to_hz

BINS = 80
MAX_FRAMES = 480
MAX_SECONDS = 60
DYNAMIC_RANGE = 11.0
"""Range of the colour map, in natural logarithms of power below the maximum."""
COLORMAP = np.array([(11, 9, 36), (86, 20, 110), (183, 55, 121), (251, 136, 97), (252, 253, 191)])


def spectrogram_png(data: bytes) -> bytes | None:
    """PNG for a 16-bit WAV file; None for other formats and damaged files."""
    from PIL import Image

    try:
        samples, rate = read_wav(data)
    except (wave.Error, EOFError, ValueError, RuntimeError):
        return None
    if len(samples) < 2:
        return None
    out = io.BytesIO()
    Image.fromarray(apply_colormap(log_mel(samples, rate))).save(out, "PNG")
    return out.getvalue()


def read_wav(data: bytes) -> tuple[Floats, int]:
    """Mono samples in [-1, 1], and the sample rate."""
    with wave.open(io.BytesIO(data)) as file:
        if file.getsampwidth() != 2 or file.getframerate() < 1:
            raise ValueError("only 16-bit samples are supported")
        # A damaged header may announce any sample rate.
        frames = file.readframes(MAX_SECONDS * min(file.getframerate(), 192_000))
        channels = file.getnchannels()
        values = np.frombuffer(frames, "<i2").astype(np.float64) / 32768
        whole = len(values) // channels * channels
        return values[:whole].reshape(-1, channels).mean(1), file.getframerate()


def log_mel(samples: Floats, rate: int) -> Floats:
    """(BINS, frames), low frequencies first."""
    # The next power of two above 1/24 s.
    width = int(2 ** np.ceil(np.log2(max(64, rate / 24))))
    hop = max(width // 4, -(-len(samples) // MAX_FRAMES))
    padded = np.pad(samples, width // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)[::hop]
    power = np.abs(np.fft.rfft(windows * np.hanning(width), axis=1)) ** 2
    return np.log(bands(rate, width) @ power.T + 1e-7)


def bands(rate: int, width: int) -> Floats:
    """(BINS, width / 2 + 1): the mel filterbank, without empty filters."""
    top = hz_to_mel(np.array(rate / 2), "htk")
    centres = mel_to_hz(np.linspace(0, top, BINS + 2)[1:-1, None], "htk")
    # Low triangles are narrower than an FFT bin: each keeps at least the nearest bin.
    nearest = np.abs(np.fft.rfftfreq(width, 1 / rate) - centres) <= rate / width / 2
    return np.maximum(mel_filterbank(rate, width, BINS, scale="htk"), nearest)


def apply_colormap(values: Floats) -> npt.NDArray[np.uint8]:
    """(bins, frames) -> (bins, frames, 3), low frequencies at the bottom."""
    share = ((values - values.max()) / DYNAMIC_RANGE + 1).clip(0, 1)[::-1]
    stops = np.linspace(0, 1, len(COLORMAP))
    parts = [np.interp(share, stops, COLORMAP[:, channel]) for channel in range(3)]
    return np.rint(np.stack(parts, -1)).astype(np.uint8)
