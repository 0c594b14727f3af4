"""Copies of sounds through Opus and MP3, to compare codecs with. They need PyAV and soxr."""

from importlib.util import find_spec
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from quintet.media.audio import Samples, resampled

NEEDED = ("av", "soxr")
LONGEST_DELAY = 0.1
"""Seconds by which a copy may be late or early."""


class Encoder(NamedTuple):
    name: str
    """FFmpeg's name of it."""
    container: str
    rates: tuple[int, ...]
    """Sample rates that it takes, in ascending order."""
    options: dict[str, str]


ENCODERS = {
    "opus": Encoder("libopus", "ogg", (48_000,), {"vbr": "off", "application": "audio"}),
    "mp3": Encoder("libmp3lame", "mp3", (16_000, 22_050, 24_000, 32_000, 44_100, 48_000), {}),
}
"""With a constant bit rate."""


def missing() -> list[str]:
    """Libraries that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def lossy_copy(samples: Samples, rate: int, kind: str, kbit: int) -> Samples:
    """(n, channels), mono or stereo, encoded with so many kbit/s and decoded: of the same length,
    in time with the original."""
    encoder = ENCODERS[kind]
    own = next((each for each in encoder.rates if each >= rate), encoder.rates[-1])
    spare = np.zeros((round(LONGEST_DELAY * own), samples.shape[1]), np.float32)
    sound = np.concatenate((resampled(samples, rate, own), spare))
    copy = resampled(_decoded(_encoded(sound, own, encoder, kbit), own), own, rate)
    return in_time(copy, samples, rate)


def in_time(copy: Samples, original: Samples, rate: int) -> Samples:
    """A copy, shifted to where its correlation with the original is highest, and as long."""
    most, length = round(LONGEST_DELAY * rate), len(original)
    size = 1 << (len(copy) + length).bit_length()
    one, other = (np.fft.rfft(sound.mean(1), size) for sound in (copy, original))
    correlation = np.fft.irfft(one * other.conj(), size)
    late = int(np.concatenate((correlation[-most:], correlation[: most + 1])).argmax()) - most
    shifted = copy[late:] if late > 0 else np.pad(copy, ((-late, 0), (0, 0)))
    return np.pad(shifted[:length], ((0, max(0, length - len(shifted))), (0, 0)))


def _encoded(sound: Samples, rate: int, encoder: Encoder, kbit: int) -> bytes:
    import av

    layout = "mono" if sound.shape[1] == 1 else "stereo"
    file = BytesIO()
    with av.open(file, "w", format=encoder.container) as container:
        stream: Any = container.add_stream(encoder.name, rate, options=encoder.options)
        stream.layout, stream.bit_rate = layout, 1000 * kbit
        planes = np.ascontiguousarray(sound.T)
        frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=layout)
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return file.getvalue()


def _decoded(content: bytes, rate: int) -> Samples:
    import av

    with av.open(BytesIO(content), "r") as container:
        layout = container.streams.audio[0].layout
        resampler = av.AudioResampler("fltp", layout, rate)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray() for frame in frames], axis=1).T.astype(np.float32)
