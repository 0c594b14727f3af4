"""Flow matching: paths, loss, guidance and ODE solvers (arXiv 2210.02747; speech: 2306.15687).

Shapes: noise x0 and data x1 (b, ...), times (b,) from 0 (noise) to 1 (data). A field maps a state
and its times to the velocity of the state.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from quintet.nn.precision import full_precision

Field = Callable[[Tensor, Tensor], Tensor]
Method = Literal["euler", "midpoint", "adaptive"]

SWAY = (-1.0, 2 / (math.pi - 2))
"""Range of coefficients for which sway sampling is monotonic."""


class Path(NamedTuple):
    x: Tensor
    """The state at the given time."""
    target: Tensor
    """The velocity, constant along the path."""


def straight_path(x0: Tensor, x1: Tensor, time: Tensor) -> Path:
    """The optimal-transport path from noise to data."""
    time = time.view(-1, *[1] * (x1.ndim - 1))
    return Path((1 - time) * x0 + time * x1, x1 - x0)


def flow_loss(predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | float) -> Tensor:
    """0-dim, fp32: squared errors (b, n, d), averaged over d, summed over the mask (b, n), / count.

    With the count over all micro-batches, their losses add up to that of the whole batch. Values
    outside the mask, even NaN, affect neither the loss nor its gradient.
    """
    error = full_precision(predicted) - full_precision(target)
    error = torch.where(mask[..., None], error, torch.zeros_like(error))
    return error.square().mean(-1).sum() / count


def swayed(time: Tensor, coefficient: float) -> Tensor:
    """Sway sampling (arXiv 2410.06885): a negative coefficient moves times towards the noise.

    0 and 1 are fixed points. For the steps of a solver, or for times drawn uniformly.
    """
    if not SWAY[0] <= coefficient <= SWAY[1]:
        raise ValueError(f"sway must be from {SWAY[0]:g} to {SWAY[1]:.3f}, not {coefficient:g}")
    return time + coefficient * (torch.cos(math.pi / 2 * time) - 1 + time)


def guided(
    network: Callable[..., Tensor],
    cond: Mapping[str, Any],
    uncond: Mapping[str, Any],
    scale: float,
) -> Field:
    """The field of `network(x, time, **cond)` under classifier-free guidance.

    Both velocities are computed as one batch of double size. A scale of 1 is the conditional
    field, at half the cost. `uncond` replaces some of the conditions (tensors, batch first); the
    others serve both halves.
    """
    if unknown := sorted(uncond.keys() - cond.keys()):
        raise ValueError(f"uncond has {', '.join(unknown)}, which cond has not")
    if scale == 1:
        return lambda x, time: network(x, time, **cond)
    both = {name: concat(value, uncond.get(name, value)) for name, value in cond.items()}

    def field(x: Tensor, time: Tensor) -> Tensor:
        velocity, uncond_velocity = network(concat(x, x), concat(time, time), **both).chunk(2)
        return uncond_velocity + scale * (velocity - uncond_velocity)

    return field


def concat(first: Any, second: Any) -> Any:
    """Tensors concatenated over the batch; anything else is shared by both halves."""
    return torch.cat((first, second)) if isinstance(first, Tensor) else first


@torch.no_grad()
def integrate(
    field: Field,
    x0: Tensor,
    steps: int,
    method: Method = "midpoint",
    *,
    sway: float = 0.0,
    tolerance: float = 1e-4,
) -> Tensor:
    """Integrate the field from `x0` at time 0 to time 1.

    `euler` evaluates the field once per step, `midpoint` twice, with nothing read from the device.
    `adaptive` (Dormand-Prince) starts with a step of 1 / `steps` and adapts it to a relative and
    absolute error of `tolerance` per step; it ignores `sway`.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    if method == "adaptive":
        return dormand_prince(field, x0, 1 / steps, tolerance)
    step = {"euler": euler_step, "midpoint": midpoint_step}.get(method)
    if step is None:
        raise ValueError(f"method is {method!r}: give 'euler', 'midpoint' or 'adaptive'")
    times = swayed(torch.linspace(0, 1, steps + 1, device=x0.device), sway)
    for start, end in pairwise(times):
        x0 = step(field, x0, start, end)
    return x0


def euler_step(field: Field, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    return x + (end - start) * field(x, start.expand(len(x)))


def midpoint_step(field: Field, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    middle = (start + end) / 2
    halfway = x + (middle - start) * field(x, start.expand(len(x)))
    return x + (end - start) * field(halfway, middle.expand(len(x)))


# The explicit pair of orders 5 and 4 of Dormand and Prince (1980). The last stage of a step is the
# first of the next.
NODES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
MAX_STEPS = 10_000
"""Steps after which the adaptive solver fails."""


def dormand_prince(field: Field, x: Tensor, step: float, tolerance: float) -> Tensor:
    """All samples share the step size; its error is read on the host."""

    def at(state: Tensor, when: float) -> Tensor:
        return field(state, torch.full((len(state),), when, device=state.device))

    time, slope = 0.0, at(x, 0.0)
    for _ in range(MAX_STEPS):
        step = min(step, 1 - time)
        slopes, ahead = [slope], x
        for node, weights in zip(NODES, STAGES):
            ahead = x + step * weighted(slopes, weights)
            slopes.append(at(ahead, time + node * step))
        allowed = tolerance * (1 + torch.maximum(x.abs(), ahead.abs()))
        excess = (step * weighted(slopes, ERRORS) / allowed).flatten(1).square().mean(1).sqrt()
        error = float(excess.max())
        if error <= 1:
            time, x, slope = time + step, ahead, slopes[-1]
            if time >= 1 - 1e-9:
                return x
        step *= min(5.0, max(0.2, 0.9 * max(error, 1e-9) ** -0.2)) if math.isfinite(error) else 0.2
    raise RuntimeError(
        f"the adaptive solver reached time {time:.3g} after {MAX_STEPS} steps at a tolerance of"
        f" {tolerance:g}; raise the tolerance, or use the method 'midpoint'"
    )


def weighted(slopes: list[Tensor], weights: tuple[float, ...]) -> Tensor:
    total = weights[0] * slopes[0]
    for slope, weight in zip(slopes[1:], weights[1:]):
        total = total + weight * slope
    return total
