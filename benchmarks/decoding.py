"""Frames per second of a loader that reads windows out of long videos.

    python benchmarks/decoding.py [--frames 600] [--windows 30]

Windows of 17 frames of 256 x 256, resized and cropped to 128 x 128, at random places of two H.264
files: with a key frame every two seconds, and with a single one. The loader's own code, which
decodes from the key frame before the window, against decoding the whole file for the same 17
frames; one process, and its own processor time, so that a busy machine changes little. Exits with 1
where a window of the file with key frames is not read faster than the whole file, or is not equal.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np

from quintet.media.clips import reader as clips
from quintet.media.pixels import Pixels
from quintet.video.motion import compose, draw

SIDE, CROP, COUNT, RATE = 256, (128, 128), 17, 24
KEY_EVERY = 2 * RATE


def write(path: Path, frames: int, key_every: int) -> None:
    """A built-in clip after the other, with key frames at a fixed distance and nowhere else."""
    with av.open(str(path), "w") as container:
        fixed = {"keyint_min": str(key_every), "sc_threshold": "0", "threads": "1"}
        stream = container.add_stream("libx264", rate=RATE, options=fixed)
        stream.height = stream.width = SIDE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = key_every
        for number in range(0, frames, 100):
            for array in draw(compose(number), min(100, frames - number), SIDE, SIDE):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())


def window(path: Path, start: float) -> Pixels:
    """As the room's data does: frames shrunk as they are decoded, then one crop for all."""
    frames = clips.read_clip(path, count=COUNT, start=start, at_least=2 * CROP[0])
    return clips.resize_crop_clip(frames, CROP)


def whole(path: Path, start: float) -> Pixels:
    """Every frame is decoded, and those of the window are converted."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        first = round(start * (stream.frames - COUNT))
        kept = [
            np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
            for number, frame in enumerate(container.decode(stream))
            if first <= number < first + COUNT
        ]
    return clips.resize_crop_clip(np.stack(kept), CROP)


def mean_decoded(path: Path, starts: list[float]) -> float:
    """How many frames come out of the decoder for one window of the loader's."""
    count, timed = 0, clips._timed

    def counted(*arguments: Any) -> Iterator[Any]:
        nonlocal count
        for item in timed(*arguments):
            count += 1
            yield item

    clips._timed = counted
    try:
        for start in starts:
            window(path, start)
    finally:
        clips._timed = timed
    return count / len(starts)


def seconds_of(read: Callable[[Path, float], Pixels], path: Path, start: float) -> float:
    begin = time.process_time()
    read(path, start)
    return time.process_time() - begin


def measured(path: Path, starts: list[float], frames: int) -> Iterator[dict[str, Any]]:
    """In turns, so that what else the machine does falls on both."""
    pairs = [[seconds_of(read, path, start) for read in (window, whole)] for start in starts]
    decoded = (mean_decoded(path, starts), float(frames))
    for how, seconds, count in zip(("window", "whole file"), np.mean(pairs, axis=0), decoded):
        rate = COUNT / seconds
        yield {"how": how, "ms": 1000 * seconds, "frames_per_second": rate, "decoded": count}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--windows", type=int, default=30)
    asked = parser.parse_args()
    chance = random.Random(0)
    starts = [chance.random() for _ in range(asked.windows)]
    files = {"key frame every 2 s": KEY_EVERY, "single key frame": asked.frames}
    rows: list[dict[str, Any]] = []
    equal = True
    with tempfile.TemporaryDirectory() as place:
        for name, key_every in files.items():
            path = Path(place, f"{key_every}.mp4")
            write(path, asked.frames, key_every)
            equal = equal and all(np.array_equal(window(path, s), whole(path, s)) for s in (0, 1))
            rows += [{"file": name, **row} for row in measured(path, starts, asked.frames)]
    for row in rows:
        print(json.dumps({"benchmark": "decoding", "frames": asked.frames, **row}))
    print(f"\n{'file':20} {'how':11} {'ms/window':>10} {'frames/s':>9} {'decoded/window':>15}")
    for row in rows:
        file, how, cost, rate, decoded = row.values()
        print(f"{file:20} {how:11} {cost:10.1f} {rate:9.0f} {decoded:15.1f}")
    faster = rows[0]["ms"] < rows[1]["ms"]
    sys.exit(0 if faster and equal else 1)


if __name__ == "__main__":
    main()
