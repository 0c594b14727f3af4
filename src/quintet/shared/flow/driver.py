"""Generate pictures or clips from captions with the ONNX graphs beside this file.

    python generate.py --text "a red star on white" --count 4 --out out

It needs numpy, onnxruntime and Pillow, and neither torch nor Quintet. With the same seed it makes
what `quintet sample` makes of the same model on a CPU, up to rounding.
"""

import argparse
import hashlib
import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def fold(*parts: int | str) -> int:
    """63-bit hash of all parts, in their order."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def mixed(value: Any) -> Any:
    """The finaliser of splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def uniform(keys: Any, name: str, shape: tuple[int, ...]) -> Any:
    counter = np.arange(int(np.prod(shape)), dtype=np.uint64)
    bits = mixed(mixed(keys ^ np.uint64(fold(name)))[:, None] + counter * GOLDEN)
    values = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return values.reshape(len(keys), *shape)


def normal(keys: Any, name: str, shape: tuple[int, ...]) -> Any:
    radius, angle = (uniform(keys, f"{name}/{part}", shape) for part in ("radius", "angle"))
    return np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * np.float32(np.pi) * angle)


def ids_of(text: str, about: dict[str, Any]) -> list[int]:
    """Ids of a caption: a start id, then words (hashed) or bytes, then padding."""
    length = about["text_length"]
    if about["text"] == "words":
        words = re.findall(r"\w+|[^\w\s]", text.lower())[: length - 1]
        ids = [2 + zlib.crc32(word.encode()) % about["text_words"] for word in words]
    else:
        whole = text.encode()[: length - 1].decode("utf-8", "ignore").encode()
        ids = [2 + byte for byte in (text.encode() if len(text.encode()) < length else whole)]
    return [1, *ids, *[0] * (length - 1 - len(ids))]


def times_of(steps: int, shift: float) -> Any:
    share = np.linspace(0, 1, steps + 1)
    return (share / (share + shift * (1 - share))).astype(np.float32)


class Generator:
    def __init__(self, folder: Path = HERE) -> None:
        import onnxruntime

        self.about: dict[str, Any] = json.loads((folder / "generate.json").read_text())
        self.graphs: dict[str, Any] = {
            name: onnxruntime.InferenceSession(folder / f"{name}.onnx")
            for name in ("velocity", "decode")
        }

    def __call__(
        self,
        text: str | None,
        count: int,
        *,
        seed: int = 0,
        steps: int | None = None,
        cond_scale: float | None = None,
    ) -> Any:
        """Pictures (b, c, h, w), or clips (b, c, t, h, w), in 0..1."""
        about = self.about
        steps = int(about["steps"] if steps is None else steps)
        scale = about["cond_scale"] if cond_scale is None else cond_scale
        guided = scale != 1 and text is not None and about["text"] != "none" and not about["jumps"]
        shape = (about["latent_channels"], *about["grid"])
        keys = np.array([fold(seed, "flow", number) for number in range(count)], np.uint64)
        x, times = normal(keys, "noise", shape), times_of(steps, about["shift"])
        for start, end in itertools.pairwise(times):
            velocity = self.velocity(x, start, end, text)
            if guided:
                without = self.velocity(x, start, end, None)
                velocity = without + np.float32(scale) * (velocity - without)
            x = x + (end - start) * velocity
        return self.graphs["decode"].run(["pixels"], {"latents": x})[0]

    def velocity(self, x: Any, start: Any, end: Any, text: str | None) -> Any:
        count = len(x)
        values: dict[str, Any] = {
            "x": x,
            "time": np.full(count, start, np.float32),
            "known": np.zeros((count, 1, *x.shape[2:]), bool),
        }
        if self.about["text"] != "none":
            values["text"] = np.array([ids_of(text or "", self.about)] * count, np.int64)
            values["captioned"] = np.full(count, text is not None)
        if self.about["jumps"]:
            values["end"] = np.full(count, end, np.float32)
        return self.graphs["velocity"].run(["velocity"], values)[0]


def write(path: Path, pixels: Any) -> Path:
    """A PNG of (c, h, w), or a GIF of (c, t, h, w)."""
    from PIL import Image

    frames = np.round(np.moveaxis(pixels, 0, -1).clip(0, 1) * 255).astype(np.uint8)
    moving = frames.ndim == 4
    pictures = [Image.fromarray(each.squeeze()) for each in (frames if moving else frames[None])]
    path = path.with_suffix(".gif" if moving else ".png")
    if moving:
        pictures[0].save(path, save_all=True, append_images=pictures[1:])
    else:
        pictures[0].save(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cond-scale", type=float)
    parser.add_argument("--out", type=Path, default=Path("out"))
    asked = parser.parse_args()
    generate = Generator()
    asked.out.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(asked.text or [None]):
        seed = asked.seed + number
        chosen = {"seed": seed, "steps": asked.steps, "cond_scale": asked.cond_scale}
        for index, pixels in enumerate(generate(text, asked.count, **chosen)):
            path = write(asked.out / f"{number:02d}-{index:03d}", pixels)
            print(path)  # noqa: T201


if __name__ == "__main__":
    main()
