"""A picture of a sound: its log-mel spectrogram, drawn from the file that can be heard."""

import io
import wave

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BINS = 80
COLUMNS = 480
SECONDS = 60
RANGE = 11.0
"""Powers of e below the loudest that can be told from silence."""
COLOURS = np.array([(11, 9, 36), (86, 20, 110), (183, 55, 121), (251, 136, 97), (252, 253, 191)])


def picture(data: bytes) -> bytes | None:
    """PNG of a WAV file of 16-bit samples; None for any other and for a damaged one."""
    from PIL import Image

    try:
        samples, rate = read(data)
    except (wave.Error, EOFError, ValueError, RuntimeError):
        return None
    if len(samples) < 2:
        return None
    out = io.BytesIO()
    Image.fromarray(coloured(log_mel(samples, rate))).save(out, "PNG")
    return out.getvalue()


def read(data: bytes) -> tuple[Floats, int]:
    """Mono samples between -1 and 1, and their rate."""
    with wave.open(io.BytesIO(data)) as file:
        if file.getsampwidth() != 2 or file.getframerate() < 1:
            raise ValueError("only 16-bit samples are drawn")
        frames = file.readframes(SECONDS * min(file.getframerate(), 192_000))
        channels = file.getnchannels()
        values = np.frombuffer(frames, "<i2").astype(np.float64) / 32768
        whole = len(values) // channels * channels
        return values[:whole].reshape(-1, channels).mean(1), file.getframerate()


def log_mel(samples: Floats, rate: int) -> Floats:
    """(BINS, t), low frequencies first."""
    width = int(2 ** np.ceil(np.log2(max(64, rate / 24))))
    hop = max(width // 4, -(-len(samples) // COLUMNS))
    padded = np.pad(samples, width // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)[::hop]
    power = np.abs(np.fft.rfft(windows * np.hanning(width), axis=1)) ** 2
    return np.log(bands(rate, width) @ power.T + 1e-7)


def bands(rate: int, width: int) -> Floats:
    """(BINS, width / 2 + 1): triangles evenly spaced in mels."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BINS + 2) / 2595) - 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    at = np.fft.rfftfreq(width, 1 / rate)[None]
    # Low triangles are narrower than a bin of the transform: each keeps at least the nearest.
    near = np.abs(at - middle) <= rate / width / 2
    return np.maximum(np.minimum((at - low) / (middle - low), (high - at) / (high - middle)), near)


def coloured(values: Floats) -> npt.NDArray[np.uint8]:
    """(b, t) -> (b, t, 3), low frequencies below."""
    share = ((values - values.max()) / RANGE + 1).clip(0, 1)[::-1]
    stops = np.linspace(0, 1, len(COLOURS))
    parts = [np.interp(share, stops, COLOURS[:, channel]) for channel in range(3)]
    return np.rint(np.stack(parts, -1)).astype(np.uint8)
