"""Generate with the ONNX graphs beside this file, as `quintet sample` does with the model.

    python run.py --text "a red star on white" --seed 5 --out out

It needs numpy and onnxruntime, and neither torch nor Quintet. With the same seed it makes what
`quintet sample` makes on a CPU, up to rounding. driver.py has the loop of this kind of model, and
export.json its settings.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
KEY_STRIDE = 0x632BE59BD9B4E019
"""Between the keys of the steps of a sample."""
KINDS = {"int": int, "float": float, "str": str}

# -- random numbers -------------------------------------------------------------------------------


def fold(*parts: int | str) -> int:
    """63-bit hash of all parts, in their order."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def mixed(value: Any) -> Any:
    """The finaliser of splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def at_step(keys: Any, step: Any) -> Any:
    """Keys of a draw, or of several where these are (b, 1)."""
    return keys + np.atleast_1d(step).astype(np.uint64) * np.uint64(KEY_STRIDE)


def uniform(keys: Any, name: str, shape: tuple[int, ...]) -> Any:
    counter = np.arange(int(np.prod(shape)), dtype=np.uint64)
    bits = mixed(mixed(keys ^ np.uint64(fold(name)))[:, None] + counter * GOLDEN)
    values = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return values.reshape(len(keys), *shape)


def normal(keys: Any, name: str, shape: tuple[int, ...]) -> Any:
    radius, angle = (uniform(keys, f"{name}/{part}", shape) for part in ("radius", "angle"))
    return np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * np.float32(np.pi) * angle)


# -- the model ------------------------------------------------------------------------------------


class Model:
    """The graphs of a folder, and what export.json says of them."""

    def __init__(self, folder: Path = HERE) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / "export.json").read_text("utf-8"))
        self.sessions: dict[str, Any] = {}

    @property
    def driver(self) -> Any:
        """The loop of this kind of model."""
        return importlib.import_module("driver")

    def __call__(self, graph: str, **inputs: Any) -> list[Any]:
        """The outputs of a graph."""
        import onnxruntime

        if graph not in self.sessions:
            path = self.folder / f"{graph}.onnx"
            self.sessions[graph] = onnxruntime.InferenceSession(path)
        return self.sessions[graph].run(None, inputs)

    def decoded(self, **codes: Any) -> Any:
        """Pixels of codes, one sample at a time: this takes the most memory."""
        ((name, samples),) = codes.items()
        return np.concatenate([self("decode", **{name: each[None]})[0] for each in samples])

    def generate(self, text: str | None = None, **settings: Any) -> Any:
        """Samples; settings that are not given are those of export.json."""
        chosen = {name: value for name, (_, value) in self.about["settings"].items()} | settings
        return self.driver.generate(self, text, **chosen)

    def keys(self, count: int, seed: int) -> Any:
        """A key for each sample."""
        name, seed = self.about["key"], fold(seed, "chunk", 0) if self.about["fps"] else seed
        return np.array([fold(seed, name, number) for number in range(count)], np.uint64)

    def captions(self, text: str | None, count: int, scale: float) -> "Captions":
        """The context of samples with a caption, or without; under guidance also that of none."""
        about = self.about["captions"]
        guided = scale != 1 and text is not None and about is not None
        uncond = np.arange(count) + count * guided
        rows = np.arange(count * (1 + guided)) % count
        if about is None:
            return Captions({}, rows, uncond)
        context, mask = self("context", text=np.array([ids_of(text or "", **about)]))
        mask = mask[np.zeros_like(rows)]
        mask[0 if text is None else count :, 1:] = False
        return Captions({"context": context[np.zeros_like(rows)], "mask": mask}, rows, uncond)


class Captions:
    def __init__(self, inputs: dict[str, Any], rows: Any, uncond: Any) -> None:
        self.inputs = inputs
        """Of a graph: one row for each sample, and under guidance as many without a caption."""
        self.rows = rows
        """The sample of each row."""
        self.uncond = uncond
        """The row of each sample that has no caption; without guidance, the only one."""

    def guided(self, values: Any, scale: float) -> Any:
        """Values of each sample, from those of each row."""
        cond, uncond = values[: len(self.uncond)], values[self.uncond]
        return uncond + np.float32(scale) * (cond - uncond) if len(values) > len(cond) else cond


def ids_of(text: str, *, kind: str, length: int, words: int) -> list[int]:
    """Ids of a caption: a start id, then words (hashed) or bytes, then padding."""
    if kind == "words":
        found = re.findall(r"\w+|[^\w\s]", text.lower())[: length - 1]
        ids = [2 + zlib.crc32(word.encode("utf-8", "replace")) % words for word in found]
    else:
        encoded = text.encode("utf-8", "replace")
        if len(encoded) >= length:
            encoded = encoded[: length - 1].decode("utf-8", "ignore").encode()
        ids = [2 + byte for byte in encoded]
    return [1, *ids, *[0] * (length - 1 - len(ids))]


def solve(field: Callable[[Any, Any, Any], Any], x: Any, times: Any, method: str) -> Any:
    """x at the last time, by the velocities `field(x, time, end)` of steps that go to `end`."""
    if method not in ("euler", "midpoint"):
        raise SystemExit(f"--method is {method}; give euler or midpoint")
    for start, end in itertools.pairwise(times):
        velocity = field(x, start, end)
        if method == "midpoint":
            middle = (start + end) / 2
            velocity = field(x + (middle - start) * velocity, middle, end)
        x = x + (end - start) * velocity
    return x


# -- files ----------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def write_pixels(path: Path, pixels: Any, about: dict[str, Any]) -> Path:
    """A PNG of (c, h, w), or an animated one of (c, t, h, w)."""
    frames = np.round(np.moveaxis(pixels, 0, -1).clip(0, 1) * 255).astype(np.uint8)
    frames = frames if frames.ndim == 4 else frames[None]
    count, height, width, channels = frames.shape
    size = struct.pack(">II", width, height)
    data = b"\x89PNG\r\n\x1a\n"
    data += chunk(b"IHDR", size + bytes((8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)))
    if count > 1:
        data += chunk(b"acTL", struct.pack(">II", count, 0))
    for number, frame in enumerate(frames):
        # Each row begins with the number of its filter, 0; parts of an animation are counted.
        packed = zlib.compress(np.pad(frame.reshape(height, -1), ((0, 0), (1, 0))).tobytes())
        if count > 1:
            shown = struct.pack(">IIHHBB", 0, 0, 1, about["fps"], 0, 0)
            data += chunk(b"fcTL", struct.pack(">I", max(0, 2 * number - 1)) + size + shown)
        part = struct.pack(">I", 2 * number) + packed
        data += chunk(b"fdAT", part) if number else chunk(b"IDAT", packed)
    path = path.with_suffix(".png")
    path.write_bytes(data + chunk(b"IEND", b""))
    return path


def stem_of(text: str, number: int) -> str:
    """File name of a prompt: its number, and its letters and digits."""
    slug = "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
    return f"{number:02d}-{slug[:60]}" if slug else f"{number:02d}"


def main() -> None:
    model = Model()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", nargs="*", default=[], help="one or more")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder")
    for name, (kind, value) in model.about["settings"].items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=KINDS[kind], default=value, help=f"default: {value}")
    settings = vars(parser.parse_args())
    texts, out, seed = (settings.pop(name) for name in ("text", "out", "seed"))
    if texts and model.about["captions"] is None:
        parser.error("this model was trained without captions; drop --text")
    out.mkdir(parents=True, exist_ok=True)
    write = model.driver.write
    for number, text in enumerate(texts or [None]):
        stem = stem_of(text or "", number)
        for index, sample in enumerate(model.generate(text, seed=seed + number, **settings)):
            name = f"{stem}-{index:03d}" if "count" in settings else stem
            if path := write(out / name, sample, model.about):
                print(path)  # noqa: T201


if __name__ == "__main__":
    main()
