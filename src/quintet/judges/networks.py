"""Frozen networks of judges: weights by name, computed in fp32 without TF32."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from quintet.engine.errors import RunError
from quintet.nn.precision import without_tf32

BATCH = 8
"""Pictures that go through a network at once."""

M = TypeVar("M", bound=nn.Module)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def filled(build: Callable[[], M], tensors: Mapping[str, Tensor], source: str) -> M:
    """The network in eval mode; tensors that it does not have are ignored."""
    with torch.device("meta"):
        network = build()
    network.load_state_dict(values_for(network, tensors, source), assign=True)
    return network.requires_grad_(False).eval()


def values_for(network: nn.Module, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """All that the network has, in fp32; refused if it is another network's file."""
    expected = network.state_dict()
    values = {
        name: torch.zeros((), dtype=torch.long)  # a counter of training, often left out
        for name in expected
        if name.endswith(".num_batches_tracked")
    }
    missing = [name for name in expected if name not in tensors and name not in values]
    if missing:
        raise RunError(f"{source} lacks {len(missing)} tensors, first {missing[0]}")
    for name, like in expected.items():
        if name not in values:
            values[name] = tensors[name].float()
            if values[name].shape != like.shape:
                shapes = f"{tuple(values[name].shape)}, not {tuple(like.shape)}"
                raise RunError(f"{source} has {name} of shape {shapes}")
    return values


@contextmanager
def exact() -> Generator[None]:
    """Without gradients, and with the same kernels in fp32 each time."""
    kernels = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with torch.no_grad(), kernels, without_tf32():
        yield


def batches(samples: Sequence[Tensor], size: int = BATCH) -> Iterator[Tensor]:
    """Neighbours of one shape, stacked."""
    waiting: list[Tensor] = []
    for sample in samples:
        if waiting and (len(waiting) == size or sample.shape != waiting[0].shape):
            yield torch.stack(waiting)
            waiting = []
        waiting.append(sample)
    if waiting:
        yield torch.stack(waiting)


def eight_bit(pictures: Tensor) -> Tensor:
    """Pictures in 0..1 as a file of 8 bits holds them: whole numbers in 0..255, as floats."""
    return (pictures.clamp(0, 1) * 255).round()


def tf1_bilinear(pictures: Tensor, side: int) -> Tensor:
    """Resize (..., h, w) as TensorFlow 1: first pixels coincide; shrinking does not average."""
    for axis in (-1, -2):
        pictures = _stretched(pictures, axis, side)
    return pictures


def _stretched(x: Tensor, axis: int, side: int) -> Tensor:
    length = x.shape[axis]
    at = torch.arange(side, device=x.device, dtype=torch.float32) * (length / side)
    low = at.long()
    high = (low + 1).clamp_max(length - 1)
    share = (at - low).to(x.dtype)
    share = share[:, None] if axis == -2 else share
    before = x.index_select(axis, low)
    return before + (x.index_select(axis, high) - before) * share
