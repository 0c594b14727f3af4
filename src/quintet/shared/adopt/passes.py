"""Passes of an adopted network over tensors that have shapes and no values: they cost no memory,
and seconds at most, whatever the size of the network. A process makes each once."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from quintet.shared.adopt.bottlenecks import AdoptedGaussian, as_tensor, is_gaussian
from quintet.shared.adopt.low_rank import Call

Shape = tuple[int, ...]
T = TypeVar("T")
RESULTS: dict[Any, Any] = {}
"""Results by what they depend on."""
LIMIT = 256


class Encoded(NamedTuple):
    """What the network's `encode` makes of one sample."""

    gaussian: bool
    """Whether these are means and log-variances."""
    shape: Shape
    """With the batch, as the network has it."""


class Pass(NamedTuple):
    """What a pass over one sample shows."""

    output: Shape
    """Without the batch."""
    encoder: frozenset[str]
    """Parameters that the latents, or the losses of the bottleneck, depend on."""
    decoder: frozenset[str]
    """Parameters that the output depends on, given the latents."""


def encode(model: Any, shape: Shape) -> Encoded:
    def make() -> Encoded:
        with torch.no_grad():
            encoded = _run(model, lambda model, pixels: model.encoded(pixels), shape)[0]
        return Encoded(is_gaussian(encoded), tuple(as_tensor(encoded).shape))

    return _once(("encode", *_key(model, shape)), make)


def output(model: Any, shape: Shape) -> Shape:
    """The shape of what a sample is decoded to, without the batch."""

    def make() -> Shape:
        with torch.no_grad():
            return tuple(_run(model, lambda *each: _halves(*each)[1], shape)[0].shape[1:])

    return _once(("output", *_key(model, shape)), make)


def _key(model: Any, shape: Shape) -> tuple[Any, ...]:
    return type(model), model.config.class_name, model.config.settings, shape


def _once(key: Any, make: Callable[[], T]) -> T:
    if key not in RESULTS:
        RESULTS[key] = make()
        if len(RESULTS) > LIMIT:
            RESULTS.pop(next(iter(RESULTS)))  # the oldest
    return RESULTS[key]


def both(model: Any, shape: Shape) -> Pass:
    """Leaves no parameter frozen."""
    model.requires_grad_(True)

    def make() -> Pass:
        with torch.enable_grad():
            (latents, output), weights = _run(model, _halves, shape)
        depend = [_dependencies(half, weights) for half in (latents, output)]
        return Pass(tuple(output.shape[1:]), *depend)

    codebooks = getattr(model.quantiser, "count", None)
    return _once(("both", codebooks, *_key(model, shape)), make)


def _halves(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    learns, model.encoder_learns = model.encoder_learns, True
    encoded = model.encode(pixels)
    model.encoder_learns = learns
    noise = encoded.chunk(2, 1)[:1] if isinstance(model.quantiser, AdoptedGaussian) else ()
    values, _, loss, *_ = model.quantiser(encoded, *noise)
    return values.sum() + loss, model.decode(values.detach())


def _run(
    model: Any, function: Callable[[Any, Tensor], Any], shape: Shape
) -> tuple[Any, dict[str, Tensor]]:
    if model.with_values:
        return function(model, next(model.parameters()).new_zeros(1, *shape)), {
            f"network.{name}": parameter for name, parameter in model.named_parameters()
        }
    call = Call(model, partial(function, model))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        weights = {
            name: torch.empty(value.shape, dtype=value.dtype)
            for name, value in (*call.named_parameters(), *call.named_buffers())
        }
        for name, _ in call.named_parameters():
            weights[name].requires_grad_()
        dtype = next(model.parameters()).dtype
        return functional_call(call, weights, (torch.empty(1, *shape, dtype=dtype),)), weights


def _dependencies(value: Tensor, weights: dict[str, Tensor]) -> frozenset[str]:
    trained = {n: w for n, w in weights.items() if w.requires_grad}
    gradients: Any = torch.autograd.grad(value.sum(), [*trained.values()], allow_unused=True)
    used = (name for name, gradient in zip(trained, gradients) if gradient is not None)
    return frozenset(name.removeprefix("network.") for name in used)
