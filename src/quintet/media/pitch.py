"""Fundamental frequency by YIN (de Cheveigné and Kawahara 2002, doi 10.1121/1.1458024).

Shapes: n samples, f frames every 10 ms, t lags.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LOW, HIGH = 60.0, 500.0
"""Range of the fundamental frequency, in Hz."""
HOP, WINDOW = 0.010, 0.025
"""Seconds between frames, and of the window that is compared with its shifted self."""
THRESHOLD = 0.15
"""Normalised difference above which a frame is unvoiced."""
QUIET = 0.01
"""RMS relative to the loudest frame (-40 dB) below which a frame is unvoiced."""
FACTS = {
    "pitch": f"YIN, {LOW:g}-{HIGH:g} Hz, windows of {WINDOW * 1000:g} ms every {HOP * 1000:g} ms, "
    f"threshold {THRESHOLD:g}, frames below {QUIET:g} of the loudest are unvoiced"
}


def pitch(wav: Array, rate: int) -> Array:
    """(n,) -> (f,): Hz, and 0 in unvoiced frames."""
    window, shortest, longest = round(WINDOW * rate), int(rate / HIGH), int(np.ceil(rate / LOW))
    size = window + longest + 1
    samples = np.asarray(wav, np.float64)
    samples = np.pad(samples, (0, max(0, size - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[:: round(HOP * rate)]
    shape = _normalised_difference(frames, window, longest + 1)
    # The first dip under the threshold: a later one may be deeper, but is a multiple of the period.
    middle = shape[:, 1:-1]
    dips = (middle < THRESHOLD) & (middle <= shape[:, :-2]) & (middle < shape[:, 2:])
    dips[:, : shortest - 1] = False
    lag = dips.argmax(1) + 1
    loud = np.sqrt(np.square(frames[:, :window]).mean(1))
    voiced = dips.any(1) & (loud > QUIET * loud.max())
    return np.where(voiced, rate / _refined(shape, lag), 0.0)


def _normalised_difference(frames: Array, window: int, longest: int) -> Array:
    """(f, t): equation 8, for lags from 0 to `longest`."""
    length = 1 << (frames.shape[1] + window - 1).bit_length()
    spectrum = np.fft.rfft(frames, length)
    correlation = np.fft.irfft(spectrum * np.fft.rfft(frames[:, :window], length).conj(), length)
    energy = np.pad(np.square(frames).cumsum(1), ((0, 0), (1, 0)))
    energies = energy[:, window : window + longest + 1] - energy[:, : longest + 1]
    # Equation 7; rounding may give small negative values.
    difference = (energies[:, :1] + energies - 2 * correlation[:, : longest + 1]).clip(0)
    mean = difference[:, 1:].cumsum(1) / np.arange(1, longest + 1)
    ratio = np.divide(difference[:, 1:], mean, out=np.ones_like(mean), where=mean > 0)
    return np.pad(ratio, ((0, 0), (1, 0)), constant_values=1.0)


def _refined(shape: Array, lag: Array) -> Array:
    """Lag at the minimum of the parabola through a dip and its neighbours."""
    before, at, after = (np.take_along_axis(shape, lag[:, None] + k, 1)[:, 0] for k in (-1, 0, 1))
    curve = before - 2 * at + after
    shift = np.divide(before - after, 2 * curve, out=np.zeros_like(curve), where=curve > 0)
    return lag + shift.clip(-1, 1)


def cents_apart(reference: Array, output: Array) -> float | None:
    """Median distance of two pitch contours over frames voiced in both, with the output stretched
    linearly to the length of the reference. None without such frames; 0 if neither sound has a
    voiced frame, as in whispers and clicks."""
    if not (reference > 0).any() and not (output > 0).any():
        return 0.0
    index = np.rint(np.linspace(0, len(output) - 1, len(reference))).astype(int)
    stretched = output[index]
    both = (reference > 0) & (stretched > 0)
    if not both.any():
        return None
    return float(np.median(np.abs(1200 * np.log2(stretched[both] / reference[both]))))
