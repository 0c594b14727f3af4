"""Features of any network for a Fréchet distance: an ONNX file, which holds no code.

It takes pictures (b, 3, h, w) or clips (b, 3, t, h, w) in 0..255, as floats or bytes, and gives
(b, d): mean and deviation of its training data belong into the file. Where it fixes a height and a
width, samples are resized to them.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.errors import RunError
from quintet.files import digest_of

REMEDY = "it must take (b, 3, h, w), clips (b, 3, t, h, w), floats or bytes, and give (b, d)"
TYPES = {"tensor(float)": torch.float32, "tensor(uint8)": torch.uint8}


def problem(path: Path, shape: str) -> str | None:
    if not path.is_file():
        return f"needs any network of {shape} in 0..255 that gives (b, d), as {path}"
    if find_spec("onnxruntime") is None:
        return "needs onnxruntime: pip install 'quintet[onnx]'"
    return None


class OnnxNetwork:
    """A picture (3, h, w) or a clip (t, 3, h, w) in 0..255 -> (1, d), on the CPU."""

    def __init__(self, path: Path, rank: int) -> None:
        import onnxruntime

        self.path = path
        try:
            # From bytes, so that the digest is of all that it holds: it can name no other file.
            session: Any = onnxruntime.InferenceSession(
                path.read_bytes(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # many kinds, all of onnxruntime
            raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
        self.session, (self.input, *others) = session, session.get_inputs()
        shape = self.input.shape
        sides = [side if isinstance(side, int) else None for side in shape]
        if others or len(shape) != rank or sides[0] not in (None, 1) or sides[1] not in (None, 3):
            raise RunError(f"{path} takes {[i.shape for i in session.get_inputs()]}; {REMEDY}")
        if self.input.type not in TYPES:
            raise RunError(f"{path} takes {self.input.type}; {REMEDY}")
        self.size = (sides[-2], sides[-1]) if sides[-2] and sides[-1] else None
        self.digest = digest_of(path)[:16]

    def facts(self) -> Mapping[str, str]:
        size = "none" if self.size is None else "bilinear with antialiasing to {} x {}"
        return {
            "network": f"output {self.session.get_outputs()[0].name} of an ONNX file",
            "resize": size.format(*self.size or ()),
            "range": "0..255",
            "covariance": "over n - 1",
            "weights": self.digest,
        }

    def __call__(self, sample: Tensor) -> Tensor:
        if self.size is not None:
            frames = sample.reshape(-1, *sample.shape[-3:])
            frames = F.interpolate(frames, self.size, mode="bilinear", antialias=True)
            sample = frames.round().reshape(*sample.shape[:-2], *self.size)
        if sample.ndim == 4:
            sample = sample.movedim(1, 0)
        sample = sample[None].to(TYPES[self.input.type]).contiguous()
        try:
            rows = self.session.run(None, {self.input.name: sample.numpy()})[0]
        except Exception as error:
            reason = f"{tuple(sample.shape)}: {str(error).splitlines()[0]}"
            raise RunError(f"{self.path} does not take a sample of {reason}") from error
        if rows.ndim != 2 or len(rows) != 1:
            raise RunError(f"{self.path} gives {rows.shape} of one sample; {REMEDY}")
        return torch.from_numpy(rows)
